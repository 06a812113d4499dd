//! What happens to frames between the link and a node in paired runs: two runs of one plan that must
//! come to the same (P-11, P-12).
//!
//! Bytes in, bytes out. Knows neither worlds nor nodes.

use softrnic_engine::packet::{Network, icrc, parse};

use crate::random::Random;

/// A change of arriving frames.
#[derive(Clone, Debug)]
pub(super) enum Meddle {
    /// None.
    None,
    /// The `nth` frame that arrives at `node`, from 0, gets lost.
    Lose { node: usize, nth: u64 },
    /// One bit of it that the ICRC covers turns over; `bit` chooses it.
    Flip { node: usize, nth: u64, bit: u64 },
    /// Bits that the ICRC does not cover turn over in every frame, but for ECN.
    Masked(Random),
    /// Before some frames comes another one that nobody may hear. `partitions`: the node looks at
    /// partition keys (ERNIC does not).
    Inject { random: Random, partitions: bool },
}

impl Meddle {
    /// What of it concerns a node, which looks at partition keys or does not.
    pub(super) fn for_node(&self, number: usize, looks: bool) -> Self {
        match self {
            Self::Lose { node, .. } | Self::Flip { node, .. } if *node != number => Self::None,
            Self::Masked(random) => Self::Masked(of_node(random, number)),
            Self::Inject { random, partitions } => {
                let partitions = *partitions && looks;
                Self::Inject { random: of_node(random, number), partitions }
            }
            other => other.clone(),
        }
    }

    /// Frames that arrive before this one.
    pub(super) fn before(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let Self::Inject { random, partitions } = self else { return None };
        if random.next_u64() % 3 != 0 {
            return None;
        }
        unheard(frame, random, *partitions)
    }

    /// What arrives instead of a frame: `None` for nothing, `Some(true)` for what is in `own` now.
    pub(super) fn change(&mut self, frame: &[u8], own: &mut Vec<u8>) -> Option<bool> {
        match self {
            Self::None | Self::Inject { .. } => Some(false),
            Self::Lose { nth, .. } => {
                let lost = *nth == 0;
                *nth = nth.wrapping_sub(1);
                (!lost).then_some(false)
            }
            Self::Flip { nth, bit, .. } => {
                let now = *nth == 0;
                *nth = nth.wrapping_sub(1);
                if !now {
                    return Some(false);
                }
                own.extend_from_slice(frame);
                // Where nothing is covered there is nothing to turn over.
                if flip_covered(own, *bit) { Some(true) } else { None }
            }
            Self::Masked(random) => {
                own.extend_from_slice(frame);
                turn_masked(own, random);
                Some(true)
            }
        }
    }
}

/// Each node draws for itself.
fn of_node(random: &Random, number: usize) -> Random {
    Random::new(random.clone().next_u64(), number as u64)
}

/// Turns over one bit that the ICRC covers.
fn flip_covered(frame: &mut [u8], bit: u64) -> bool {
    let Ok(packet) = parse(frame) else { return false };
    let (l3, end, network) = (packet.l3_offset(), packet.icrc_offset() + 4, packet.network);
    let len = end - l3;
    // From the chosen bit on, the first one that masking leaves as it is.
    for step in 0..8 * len as u64 {
        let bit = (bit + step) % (8 * len as u64);
        let (at, mask) = ((bit / 8) as usize, 1 << (bit % 8));
        let mut header = frame[l3..end].to_vec();
        icrc::mask(network, &mut header);
        header[at] ^= mask;
        let changed = header.clone();
        icrc::mask(network, &mut header);
        if header == changed {
            frame[l3 + at] ^= mask;
            return true;
        }
    }
    false
}

/// Turns over bits that the ICRC masks: DSCP, hop limit, flow label, and the reserved byte of the BTH
/// but for its congestion bits. IPv4's checksum is made right again.
fn turn_masked(frame: &mut [u8], random: &mut Random) {
    let Ok(packet) = parse(frame) else { return };
    let (l3, bth, network) = (packet.l3_offset(), packet.bth_offset(), packet.network);
    let drawn = random.next_u64();
    let [dscp, ttl, low, reserved, ..] = drawn.to_le_bytes();
    match network {
        Network::Ipv4 => {
            frame[l3 + 1] ^= dscp & 0xFC;
            frame[l3 + 8] ^= ttl;
            redo_checksum(&mut frame[l3..l3 + 20]);
        }
        Network::Ipv6 | Network::Grh => {
            frame[l3] ^= dscp & 0x0F;
            frame[l3 + 1] ^= (dscp & 0xC0) | low & 0x0F;
            frame[l3 + 3] ^= low;
            frame[l3 + 7] ^= ttl;
        }
    }
    // FECN and BECN are bits 7 and 6.
    frame[bth + 4] ^= reserved & 0x3F;
}

/// A frame like this one that no queue pair may hear (rules V-01 to V-08).
fn unheard(frame: &[u8], random: &mut Random, partitions: bool) -> Option<Vec<u8>> {
    let packet = parse(frame).ok()?;
    let (l3, bth, end) = (packet.l3_offset(), packet.bth_offset(), packet.icrc_offset());
    let (network, cnp) =
        (packet.network, packet.bth.opcode == softrnic_engine::packet::opcode::CNP);
    if cnp {
        return None;
    }
    let mut copy = frame.to_vec();
    let drawn = random.next_u64();
    let mut redo = true;
    match drawn % 7 {
        // Another queue pair's number.
        0 => copy[bth + 5] ^= 0x40,
        // Another sender's address.
        1 => {
            let last_of_source = if network == Network::Ipv4 { l3 + 15 } else { l3 + 23 };
            copy[last_of_source] ^= 0x80;
            // Datagrams may come from anybody.
            copy[bth] = if packet.deth().is_some() { 0 } else { copy[bth] };
        }
        // Another partition.
        2 if partitions => copy[bth + 3] ^= 0x11,
        // Another service's opcode.
        3 => copy[bth] ^= 0x20,
        // A transport version that is not ours.
        4 => copy[bth + 1] |= 1,
        // A wrong ICRC.
        5 => {
            copy[end] ^= 1 << (drawn >> 8 & 7);
            redo = false;
        }
        // Cut off.
        _ => {
            copy.truncate(l3 + (drawn >> 8) as usize % (end - l3));
            return Some(copy);
        }
    }
    if redo {
        if network == Network::Ipv4 {
            redo_checksum(&mut copy[l3..l3 + 20]);
        }
        let right = icrc::of(network, &copy[l3..end]);
        copy[end..end + 4].copy_from_slice(&right.to_le_bytes());
    }
    Some(copy)
}

/// RFC 1071.
fn redo_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let words = header.as_chunks::<2>().0.iter();
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
}
