//! Numbers that look random and are a pure function of a seed (SplitMix64, Steele et al. 2014).
//!
//! Not for secrets. Knows nothing of links or frames.

const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sequence of 64-bit numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of stream `stream` under `seed`; streams do not overlap in practice.
    #[must_use]
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream.wrapping_add(GOLDEN_GAMMA))))
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// True with this probability, 0.0 never and 1.0 always.
    pub fn chance(&mut self, probability: f64) -> bool {
        const TWO_TO_32: f64 = 4_294_967_296.0;
        // The comparison is on integers so that every build and machine agrees.
        let threshold = (probability.clamp(0.0, 1.0) * TWO_TO_32) as u64;
        self.next_u64() >> 32 < threshold
    }
}

/// SplitMix64's finisher: spreads every input bit over all output bits.
#[inline]
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_published_ones() {
        // First outputs of SplitMix64 for state 0 (Vigna's reference program).
        let mut random = Random(0);
        assert_eq!(random.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(random.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn a_chance_of_one_percent_is_about_one_percent() {
        let mut random = Random::new(7, 0);
        let hits = (0..100_000).filter(|_| random.chance(0.01)).count();
        assert!((900..1100).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !random.chance(0.0)));
        assert!((0..1000).all(|_| random.chance(1.0)));
    }
}
