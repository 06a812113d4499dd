//! The text that chooses a link: `KIND:WHERE[?OPTION[=VALUE][&...]]`, one row for each kind. It opens nothing.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Which link, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkUrl {
    /// `qemu-stream:PATH[?listen]`: the UNIX socket of QEMU's `-netdev stream`.
    QemuStream {
        /// The socket.
        path: PathBuf,
        /// Wait for QEMU to connect (`server=off` there); else connect to it (`server=on` there).
        listen: bool,
    },
}

/// One kind of link, for parsing and for help.
#[derive(Debug)]
pub struct Kind {
    /// What stands before the colon.
    pub name: &'static str,
    /// The whole form.
    pub form: &'static str,
    /// One sentence.
    pub text: &'static str,
    parse: fn(&str, Options<'_>) -> Result<LinkUrl, LinkUrlError>,
}

/// Every kind of link.
pub const KINDS: &[Kind] = &[Kind {
    name: "qemu-stream",
    form: "qemu-stream:PATH[?listen]",
    text: "UNIX socket of QEMU's `-netdev stream`; connects, or listens for QEMU",
    parse: |rest, mut options| {
        let listen = options.flag("listen");
        options.done()?;
        Ok(LinkUrl::QemuStream { path: needed(rest, "qemu-stream:PATH")?.into(), listen })
    },
}];

/// Why a text names no link.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LinkUrlError {
    /// What stands before the colon is no kind.
    #[error("`{kind}` is no kind of link; there are {known}", kind = .0, known = kinds())]
    UnknownKind(String),
    /// Something is missing.
    #[error("a link of this kind is written {0}")]
    Missing(&'static str),
    /// An option that this kind does not have.
    #[error("`{0}` is no option of this link")]
    UnknownOption(String),
    /// An option's value cannot be read.
    #[error("`{value}` is no value for `{option}`: {wanted}")]
    BadValue {
        /// The option, or the part of the text.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        wanted: &'static str,
    },
}

fn kinds() -> String {
    KINDS.iter().map(|kind| kind.form).collect::<Vec<_>>().join(", ")
}

/// What stands behind the colon, if anything does.
fn needed<'a>(rest: &'a str, form: &'static str) -> Result<&'a str, LinkUrlError> {
    if rest.is_empty() { Err(LinkUrlError::Missing(form)) } else { Ok(rest) }
}

/// The options that nobody has asked for yet.
struct Options<'a>(Vec<(&'a str, Option<&'a str>)>);

impl<'a> Options<'a> {
    fn of(text: Option<&'a str>) -> Self {
        let options = text.unwrap_or_default().split('&').filter(|option| !option.is_empty());
        Self(
            options
                .map(|option| match option.split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (option, None),
                })
                .collect(),
        )
    }

    /// Takes an option out: its value, if it is there.
    fn take(&mut self, name: &str) -> Option<Option<&'a str>> {
        let at = self.0.iter().position(|(other, _)| *other == name)?;
        Some(self.0.remove(at).1)
    }

    fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some()
    }

    /// Nothing may be left.
    fn done(self) -> Result<(), LinkUrlError> {
        match self.0.first() {
            Some((name, _)) => Err(LinkUrlError::UnknownOption((*name).to_owned())),
            None => Ok(()),
        }
    }
}

impl FromStr for LinkUrl {
    type Err = LinkUrlError;

    fn from_str(text: &str) -> Result<Self, LinkUrlError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| LinkUrlError::UnknownKind(name.to_owned()))?;
        let (place, options) = match rest.split_once('?') {
            Some((place, options)) => (place, Some(options)),
            None => (rest, None),
        };
        (kind.parse)(place, Options::of(options))
    }
}

/// As it can be parsed again.
impl fmt::Display for LinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QemuStream { path, listen } => {
                write!(f, "qemu-stream:{}", path.display())?;
                if *listen { f.write_str("?listen") } else { Ok(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_read_again() {
        for text in ["qemu-stream:wire.sock", "qemu-stream:/run/a b.sock?listen"] {
            assert_eq!(text.parse::<LinkUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| text.parse::<LinkUrl>().unwrap_err().to_string();
        assert!(wrong("tip:x").starts_with("`tip` is no kind of link; there are qemu-stream:PATH"));
        assert_eq!(wrong("qemu-stream:"), "a link of this kind is written qemu-stream:PATH");
        assert_eq!(wrong("qemu-stream:a?lisen"), "`lisen` is no option of this link");
    }
}
