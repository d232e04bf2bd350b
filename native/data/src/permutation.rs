//! A random order of `0..n`, computed element by element without storing a list.

use sconce_tensor::rng::Rng;

const ROUNDS: u64 = 6;

/// A Feistel network over the smallest even number of bits that holds `n`. The network is applied until the
/// value falls below `n` (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    rng: Rng,
}

impl Permutation {
    /// The order of `0..n` that a stream gives.
    pub fn new(n: u64, rng: Rng) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation { n, half_bits: bits.div_ceil(2).max(1), rng }
    }

    /// The value at `place`, which must be below `n`.
    pub fn get(&self, place: u64) -> u64 {
        let mut value = self.shuffle(place);
        // The domain is at most four times `n`, so few iterations are needed.
        while value >= self.n && self.n > 0 {
            value = self.shuffle(value);
        }
        value
    }

    fn shuffle(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let word = u64::from(self.rng.block(right << 3 | round)[0]);
            (left, right) = (right, (left ^ word) & mask);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_occurs_once_in_an_order_that_looks_random() {
        for n in [1, 2, 3, 7, 64, 1000, 1025] {
            let order = Permutation::new(n, Rng::new(5, "shuffle", 1));
            let mut values: Vec<u64> = (0..n).map(|i| order.get(i)).collect();
            if n == 1000 {
                let rising = values.windows(2).filter(|w| w[0] < w[1]).count();
                assert!((430..570).contains(&rising), "{rising}");
            }
            values.sort_unstable();
            assert_eq!(values, (0..n).collect::<Vec<_>>());
        }
    }
}
