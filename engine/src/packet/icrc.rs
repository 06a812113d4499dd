//! The invariant CRC: CRC-32 over the packet with the fields that routers may change set to ones.
//!
//! IBTA vol 1, 7.8.1 and annexes A16 and A17. Masked are TOS, TTL and checksum (IPv4), traffic
//! class, flow label and hop limit (IPv6, GRH), the UDP checksum, and byte 4 of the BTH. Eight bytes
//! of ones stand for a masked LRH. The value is stored least significant byte first.

use crc32fast::Hasher;

use super::parse::Network;

/// Bytes of ones that stand for the masked LRH.
pub(super) const LRH_LEN: usize = 8;

/// Their CRC-32, where they need not be fed.
const LRH_CRC: u32 = 0x2144_DF1C;

/// Longest header prefix with masked fields: IPv6, UDP, and the BTH's first 8 bytes.
const MASK_LEN_MAX: usize = 40 + 8 + 8;

/// Below this length one pass over a masked copy is cheaper than two passes.
const COPY_LEN_MAX: usize = 128;

/// Bytes from the start of the IP header (or GRH) to the BTH.
#[must_use]
pub const fn bth_offset(network: Network) -> usize {
    match network {
        Network::Ipv4 => 28,
        Network::Ipv6 => 48,
        Network::Grh => 40,
    }
}

/// Sets the masked fields of a header to ones, in place. `header` starts at the IP header or GRH
/// and reaches at least to BTH byte 4.
#[inline(always)]
pub fn mask(network: Network, header: &mut [u8]) {
    match network {
        Network::Ipv4 => {
            header[1] = 0xFF;
            header[8] = 0xFF;
            header[10..12].fill(0xFF);
            header[26..28].fill(0xFF);
        }
        Network::Ipv6 | Network::Grh => {
            header[0] |= 0x0F;
            header[1..4].fill(0xFF);
            header[7] = 0xFF;
            if matches!(network, Network::Ipv6) {
                header[46..48].fill(0xFF);
            }
        }
    }
    header[bth_offset(network) + 4] = 0xFF;
}

/// A CRC to begin with, and room for a masked copy. Made once and used for every packet: looking for
/// the CPU's CRC instructions, and clearing the room, each cost a good part of what a short packet
/// does.
#[derive(Clone, Debug)]
pub struct Icrc {
    empty: Hasher,
    /// The masked LRH and the copy. With it IPv4 headers are 48 bytes, and carry-less multiplication
    /// goes on in steps of 16: no odd bytes are left of most packets.
    copy: [u8; LRH_LEN + COPY_LEN_MAX],
}

impl Default for Icrc {
    fn default() -> Self {
        Self { empty: Hasher::new_with_initial(0), copy: [0xFF; LRH_LEN + COPY_LEN_MAX] }
    }
}

impl Icrc {
    /// The ICRC of a packet from its IP header or GRH up to, and not including, the ICRC field.
    /// `covered` reaches at least to the end of the BTH.
    #[inline(always)]
    #[must_use]
    pub fn of(&mut self, network: Network, covered: &[u8]) -> u32 {
        if covered.len() <= COPY_LEN_MAX {
            let whole = &mut self.copy[..LRH_LEN + covered.len()];
            whole[LRH_LEN..].copy_from_slice(covered);
            mask(network, &mut whole[LRH_LEN..]);
            return go_on(&self.empty, whole);
        }
        let (head, rest) = covered.split_at(MASK_LEN_MAX);
        let mut masked = [0xFF; LRH_LEN + MASK_LEN_MAX];
        masked[LRH_LEN..].copy_from_slice(head);
        mask(network, &mut masked[LRH_LEN..]);
        let mut hasher = self.empty.clone();
        hasher.update(&masked);
        hasher.update(rest);
        hasher.finalize()
    }
}

/// CRC-32 of the masked LRH and of bytes whose masked fields are already ones.
#[must_use]
pub fn of_masked(bytes: &[u8]) -> u32 {
    go_on(&Hasher::new_with_initial(LRH_CRC), bytes)
}

/// The CRC of what `before` has taken in and of `bytes`.
#[inline(always)]
pub(super) fn go_on(before: &Hasher, bytes: &[u8]) -> u32 {
    let mut hasher = before.clone();
    hasher.update(bytes);
    hasher.finalize()
}

/// [`Icrc::of`], for one packet.
#[must_use]
pub fn of(network: Network, covered: &[u8]) -> u32 {
    Icrc::default().of(network, covered)
}
