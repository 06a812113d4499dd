//! The configuration file of `rnic serve`: TOML whose keys are the flags' names. What is wrong is said with
//! line and column.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Deserialize;
use softrnic_sim::ScenarioError;
use toml::Spanned;

use crate::regs;
use crate::serve::ServeArgs;
use crate::station_args::{FaceArg, StationArgs, parse_mac, parse_neighbour};
use crate::vfio_user::{Trace, VfioArgs};

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    #[serde(default = "default_name")]
    name: String,
    link: Spanned<String>,
    #[serde(default)]
    address: Vec<Spanned<String>>,
    mac: Option<Spanned<String>>,
    #[serde(default = "default_mtu")]
    mtu: Spanned<u16>,
    vlan: Option<u16>,
    #[serde(default)]
    neighbour: Vec<Spanned<String>>,
    #[serde(default)]
    gateway: Vec<IpAddr>,
    #[serde(default)]
    no_answers: bool,
    capture: Option<PathBuf>,
    faults: Option<PathBuf>,
    #[serde(default = "default_seed")]
    seed: u64,
    #[serde(default)]
    strict_icrc: bool,
    face: Option<Spanned<String>>,
    metrics: Option<SocketAddr>,
    control: Option<PathBuf>,
    echo_port: Option<u16>,
    vfio_user: Option<PathBuf>,
    profile: Option<Spanned<String>>,
    queue_pairs: Option<u16>,
    #[serde(default)]
    reconic: bool,
    trace: Option<Spanned<String>>,
}

fn default_name() -> String {
    "rnic0".to_owned()
}

fn default_mtu() -> Spanned<u16> {
    Spanned::new(0..0, 1500)
}

const fn default_seed() -> u64 {
    1
}

/// Where in the text something stands.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
}

impl Place<'_> {
    fn error(&self, at: usize, message: String) -> ScenarioError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        ScenarioError { file: self.file.to_owned(), line, column, message }
    }

    /// Reads a value as its flag would.
    fn value<T>(
        &self,
        key: &str,
        value: &Spanned<String>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, ScenarioError> {
        read(value.get_ref())
            .map_err(|message| self.error(value.span().start, format!("{key}: {message}")))
    }
}

fn from_str<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Reads a file's text. `file` is only for error messages.
///
/// # Errors
/// The first thing that is wrong.
pub(crate) fn parse(
    file: &str,
    text: &str,
) -> Result<(StationArgs, ServeArgs, VfioArgs), ScenarioError> {
    let place = Place { file, text };
    let raw: File = toml::from_str(text).map_err(|error| {
        place.error(error.span().map_or(0, |span| span.start), error.message().to_owned())
    })?;
    let mtu = *raw.mtu.get_ref();
    if mtu < 256 {
        let message = format!("mtu: {mtu} is not in 256..=65535");
        return Err(place.error(raw.mtu.span().start, message));
    }
    let all = |key: &str, values: &[Spanned<String>]| {
        values.iter().map(|value| place.value(key, value, from_str)).collect::<Result<_, _>>()
    };
    let neighbours = raw.neighbour.iter().map(|n| place.value("neighbour", n, parse_neighbour));
    let face = raw.face.as_ref();
    let profile = raw.profile.as_ref().map(|name| place.value("profile", name, regs::profile));
    let trace = raw.trace.as_ref();
    let trace = trace.map(|what| place.value("trace", what, |what| Trace::from_str(what, false)));
    let vfio = VfioArgs {
        vfio_user: raw.vfio_user,
        profile: profile.transpose()?,
        queue_pairs: raw.queue_pairs,
        reconic: raw.reconic,
        trace: trace.transpose()?,
    };
    let station = StationArgs {
        link: place.value("link", &raw.link, from_str)?,
        addresses: all("address", &raw.address)?,
        mac: raw.mac.as_ref().map(|mac| place.value("mac", mac, parse_mac)).transpose()?,
        mtu,
        vlan: raw.vlan,
        neighbours: neighbours.collect::<Result<_, _>>()?,
        gateways: raw.gateway,
        no_answers: raw.no_answers,
        capture: raw.capture,
        faults: raw.faults,
        seed: raw.seed,
        strict_icrc: raw.strict_icrc,
        face: face
            .map(|face| place.value("face", face, |face| FaceArg::from_str(face, false)))
            .transpose()?
            .unwrap_or_default(),
    };
    let File { name, metrics, control, echo_port, .. } = raw;
    let serve = ServeArgs { name, metrics, control, echo_port };
    Ok((station, serve, vfio))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_flags_names_and_mean_the_same() {
        let text = "link = \"qemu-stream:wire.sock?listen\"\naddress = [\"10.0.0.1/24\", \"fd00::1/64\"]\n\
                    neighbour = [\"10.0.0.2=02:00:00:00:00:02\"]\nmtu = 4200\ncontrol = \"rnic.sock\"\n\
                    echo-port = 7471\nvfio-user = \"nic.sock\"\nprofile = \"v3.1\"\nqueue-pairs = 16\n\
                    trace = \"registers\"\n";
        let (station, serve, vfio) = parse("rnic.toml", text).unwrap();
        let setup = station.setup().unwrap();
        assert_eq!(setup.port.ipv4, Some(([10, 0, 0, 1].into(), 24)));
        assert_eq!(setup.port.neighbours, [([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2])]);
        assert_eq!((setup.port.mtu, station.face), (4200, FaceArg::Native));
        assert_eq!((serve.name.as_str(), serve.control), ("rnic0", Some("rnic.sock".into())));
        assert_eq!(serve.echo_port, Some(7471));
        assert_eq!(vfio.vfio_user, Some("nic.sock".into()));
        assert_eq!(vfio.profile.map(|profile| profile.name), Some("v3.1"));
        assert_eq!((vfio.queue_pairs, vfio.reconic), (Some(16), false));
        assert_eq!(vfio.trace, Some(Trace::Registers));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key_and_line() {
        let link = "link = \"qemu-stream:wire.sock\"\n";
        for (text, wanted) in [
            ("adress = []\n", "rnic.toml:2:1: unknown field `adress`"),
            ("\naddress = [\"10.0.0.1/24\", \"10.0.0\"]\n", "rnic.toml:3:27: address: \"10.0.0\""),
            ("mtu = 100\n", "rnic.toml:2:7: mtu: 100"),
            ("mac = \"01:00:00:00:00:00\"\n", "rnic.toml:2:7: mac: "),
            ("face = \"mlx\"\n", "rnic.toml:2:8: face: "),
            ("metrics = \"localhost\"\n", "rnic.toml:2:11: "),
            ("seed = \n", "rnic.toml:2:"),
            ("profile = \"v9\"\n", "rnic.toml:2:11: profile: the profiles are "),
            ("trace = \"all\"\n", "rnic.toml:2:9: trace: "),
        ] {
            let error = parse("rnic.toml", &format!("{link}{text}")).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
        let error = parse("rnic.toml", "mtu = 1500\n").unwrap_err().to_string();
        assert!(error.contains("link"), "{error}");
    }
}
