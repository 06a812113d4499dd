//! CRC-32 is linear: what a change of four bytes does to it can be said without the rest of the packet, and
//! four unknown bytes can be found from a CRC that is off. `udp` needs both, because the kernel writes the
//! header that the ICRC covers.
//!
//! Polynomials over GF(2) modulo the CRC's stand in a `u32` with the coefficient of x^0 in bit 31, as the
//! reflected CRC has them.

/// IEEE 802.3's polynomial, reflected, without its highest term.
const POLYNOMIAL: u32 = 0xEDB8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

const fn times_x(a: u32) -> u32 {
    if a & 1 == 0 { a >> 1 } else { a >> 1 ^ POLYNOMIAL }
}

/// Its inverse: the polynomial has a term of x^0, so that every element can be divided by x.
const fn over_x(a: u32) -> u32 {
    if a & ONE == 0 { a << 1 } else { (a ^ POLYNOMIAL) << 1 | 1 }
}

/// The product. It takes as many steps as `a` has degrees, plus one.
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = times_x(b);
    }
    product
}

const fn power(base: u32, mut exponent: usize) -> u32 {
    let (mut result, mut square) = (ONE, base);
    while exponent != 0 {
        if exponent & 1 != 0 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    result
}

/// Four bytes that are followed by so many others under the CRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    following: usize,
    /// x^(8 * following + 32)
    forth: u32,
    /// Its inverse.
    back: u32,
}

impl Word {
    fn new(following: usize) -> Self {
        let bits = 8 * following + 32;
        Self { following, forth: power(times_x(ONE), bits), back: power(over_x(ONE), bits) }
    }

    /// By how much the CRC changes where the four bytes change by this (exclusive or).
    pub(super) fn crc_change(&self, bytes: [u8; 4]) -> u32 {
        multiply(u32::from_le_bytes(bytes), self.forth)
    }

    /// The only change of the four bytes that changes the CRC by this.
    pub(super) fn solve(&self, crc_change: u32) -> [u8; 4] {
        multiply(crc_change, self.back).to_le_bytes()
    }
}

/// The last few positions: a transfer has one or two packet lengths, and the powers cost more than a packet.
#[derive(Debug)]
pub(super) struct Words([Word; WORDS]);

const WORDS: usize = 8;

impl Words {
    pub(super) fn new() -> Self {
        Self([Word::new(0); WORDS])
    }

    /// The word that has so many bytes behind it.
    pub(super) fn followed_by(&mut self, following: usize) -> &Word {
        let slot = &mut self.0[following / 4 % WORDS];
        if slot.following != following {
            *slot = Word::new(following);
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use softrnic_engine::packet::icrc;

    use super::*;

    proptest! {
        #[test]
        fn a_change_anywhere_is_foretold_and_found(
            mut packet in proptest::collection::vec(any::<u8>(), 4..5000),
            at in any::<prop::sample::Index>(),
            change in any::<[u8; 4]>(),
        ) {
            let before = icrc::of_masked(&packet);
            let at = at.index(packet.len() - 3);
            for (byte, change) in packet[at..].iter_mut().zip(change) {
                *byte ^= change;
            }
            let crc_change = before ^ icrc::of_masked(&packet);
            let mut words = Words::new();
            let word = words.followed_by(packet.len() - at - 4);
            prop_assert_eq!(word.crc_change(change), crc_change);
            prop_assert_eq!(word.solve(crc_change), change);
        }
    }

    #[test]
    fn a_remembered_word_is_not_taken_for_another() {
        let mut words = Words::new();
        for following in [0, 40, 8, 40, 4, 8 + 4 * WORDS, 8] {
            let change = words.followed_by(following).crc_change([1, 2, 3, 4]);
            assert_eq!(change, Word::new(following).crc_change([1, 2, 3, 4]), "{following}");
        }
    }
}
