//! Bits that change on the way: which, to what, and whether the checksums are made to fit.
//!
//! Finds fields by the names of the engine's decoder. Works on any bytes; knows no rule.

use std::fmt;

use softrnic_engine::packet::{Network, icrc, parse, tree};

use crate::random::Random;

/// Which bits change, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// Where.
    pub spot: Spot,
    /// What becomes of them.
    pub change: Change,
    /// Afterwards, IPv4 header checksum and ICRC are made right again: the frame lies, and no check
    /// of bytes can tell.
    pub redo_icrc: bool,
}

/// A place in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// A header's field, where the frame has it.
    Field(Field),
    /// A byte, counted from the first of the frame; from the last where negative (-1).
    Byte(i64),
    /// Any byte, by the seed.
    Anywhere,
}

/// A field by its names in the engine's decoder; the first of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    header: &'static str,
    /// `None` for payload, pad and ICRC, which have no parts.
    field: Option<&'static str>,
}

/// First byte, bytes, and the highest and lowest bit in the number they make where that is not all.
type Place = (usize, usize, Option<(u8, u8)>);

/// What becomes of the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They are this number, as far as it fits; a field longer than 64 bits gets it in its last ones.
    Set(u64),
    /// The bits of this number are turned over.
    Flip(u64),
    /// One bit, by the seed, is turned over.
    FlipAny,
}

impl Field {
    /// The field of this name, `bth.psn` or `BTH.PSN`: letters and digits count, in either case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let wanted = plain(name);
        tree::field_names()
            .map(|(header, field)| Self { header, field })
            .find(|field| plain(&field.to_string()) == wanted)
    }

    /// Every field there is.
    pub fn all() -> impl Iterator<Item = Self> {
        tree::field_names().map(|(header, field)| Self { header, field })
    }

    fn find(self, frame: &[u8]) -> Option<Place> {
        let tree = tree::decode(frame);
        let header = tree.nodes.iter().find(|node| node.name == self.header)?;
        let node = match self.field {
            None => header,
            Some(name) => header.children.iter().find(|node| node.name == name)?,
        };
        (node.len > 0).then_some((node.offset, node.len, node.bits))
    }
}

/// As the decoder writes it, `BTH.PSN`.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.header)?;
        self.field.map_or(Ok(()), |field| write!(f, ".{field}"))
    }
}

fn plain(name: &str) -> String {
    let kept = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.');
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

impl Corruption {
    /// Changes the frame; false where it has no such place, or the change leaves it as it was.
    pub fn apply(&self, frame: &mut [u8], random: &mut Random) -> bool {
        let place = match self.spot {
            Spot::Field(field) => field.find(frame),
            Spot::Byte(at) => byte_at(at, frame.len()).map(|at| (at, 1, None)),
            Spot::Anywhere => {
                let drawn = random.next_u64();
                (!frame.is_empty()).then(|| ((drawn % frame.len() as u64) as usize, 1, None))
            }
        };
        let drawn = random.next_u64();
        let Some((at, len, bits)) = place else { return false };
        let parsed = parse(frame).ok().map(|p| (p.network, p.l3_offset(), p.icrc_offset()));
        let bytes = &mut frame[at..at + len];
        let (high, low) = bits.unwrap_or((0, 0));
        // Bits of the field, and where its lowest one is in the number that its last bytes make.
        let width = bits.map_or(8 * len as u64, |_| u64::from(high - low) + 1);
        let mask = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
        let changed = match self.change {
            Change::FlipAny => {
                let bit = drawn % width;
                let from_end = bit + u64::from(low);
                bytes[len - 1 - (from_end / 8) as usize] ^= 1 << (from_end % 8);
                true
            }
            Change::Flip(flip) => xor(bytes, (flip & mask) << low),
            Change::Set(value) => {
                let now =
                    bytes.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte)) >> low & mask;
                xor(bytes, (now ^ value & mask) << low)
            }
        };
        if let (true, Some((network, l3, icrc_at))) = (self.redo_icrc && changed, parsed) {
            redo(frame, network, l3, icrc_at);
        }
        changed
    }
}

/// Turns bits of the number that the last bytes make; whether there were any.
fn xor(bytes: &mut [u8], mut mask: u64) -> bool {
    let any = mask != 0;
    for byte in bytes.iter_mut().rev() {
        *byte ^= mask as u8;
        mask >>= 8;
    }
    any
}

fn byte_at(at: i64, len: usize) -> Option<usize> {
    let from_start = if at < 0 { (len as i64).checked_add(at)? } else { at };
    usize::try_from(from_start).ok().filter(|&at| at < len)
}

/// Makes IPv4 header checksum and ICRC right, where they stood before the change.
fn redo(frame: &mut [u8], network: Network, l3: usize, icrc_at: usize) {
    if matches!(network, Network::Ipv4) {
        redo_ipv4_checksum(&mut frame[l3..l3 + 20]);
    }
    let right = icrc::of(network, &frame[l3..icrc_at]);
    if let Some(carried) = frame.get_mut(icrc_at..icrc_at + 4) {
        carried.copy_from_slice(&right.to_le_bytes());
    }
}

/// RFC 791: the ones' complement of the ones' complement sum, with the field itself as 0.
fn redo_ipv4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let words = header.as_chunks::<2>().0.iter();
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// Sets "congestion experienced" (RFC 3168: both ECN bits) and mends the IPv4 checksum; the ICRC does
/// not cover it. False where the frame is not RoCE v2 or has the mark already.
pub(super) fn mark_ecn(frame: &mut [u8]) -> bool {
    let Ok(packet) = parse(frame) else { return false };
    let (network, l3, marked) =
        (packet.network, packet.l3_offset(), packet.congestion_experienced());
    if marked {
        return false;
    }
    match network {
        Network::Ipv4 => {
            frame[l3 + 1] |= 3;
            redo_ipv4_checksum(&mut frame[l3..l3 + 20]);
        }
        // The traffic class lies across two bytes; its last two bits are bits 5 and 4 of the second.
        Network::Ipv6 => frame[l3 + 1] |= 0x30,
        Network::Grh => return false,
    }
    true
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("corrupt ")?;
        match self.spot {
            Spot::Field(field) => write!(f, "{field}")?,
            Spot::Byte(at) => write!(f, "byte {at}")?,
            Spot::Anywhere => f.write_str("any byte")?,
        }
        match self.change {
            Change::Set(value) => write!(f, " to {value:#x}")?,
            Change::Flip(flip) => write!(f, " by {flip:#x}")?,
            Change::FlipAny => f.write_str(" in one bit")?,
        }
        f.write_str(if self.redo_icrc { ", ICRC made right" } else { "" })
    }
}
