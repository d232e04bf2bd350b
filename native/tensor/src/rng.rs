//! The counter-based generator of all random numbers: Philox 4x32-10.
//!
//! Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". Each random number depends only on seed, purpose,
//! step and index, so results do not depend on the number of threads, the order or the device.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// The low half of a word of 64 bits.
const LOW: u64 = 0xFFFF_FFFF;

/// Ten rounds over a 128-bit counter with a 64-bit key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// A stream of random numbers for one purpose at one step.
#[derive(Debug, Clone, Copy)]
pub struct Rng {
    key: [u32; 2],
    step: u64,
}

impl Rng {
    /// The stream of a seed, a purpose and a step. `purpose` separates streams of one seed: "init", "shuffle",
    /// "dropout.0", "sample", ...
    pub fn new(seed: u64, purpose: &str, step: u64) -> Self {
        // FNV-1a of the purpose, mixed with the seed by Philox itself.
        let hash = purpose.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let seed = [seed as u32, (seed >> 32) as u32];
        let mixed = philox([hash as u32, (hash >> 32) as u32, 0, 0], seed);
        Rng { key: [mixed[0], mixed[1]], step }
    }

    /// The stream of the same seed and purpose at another step. Unlike [`new`](Self::new) this takes no time.
    #[must_use]
    pub fn at(self, step: u64) -> Self {
        Rng { step, ..self }
    }

    /// The state as kernels read it: the key, then the step, low words first.
    pub fn words(&self) -> [u32; 4] {
        [self.key[0], self.key[1], self.step as u32, (self.step >> 32) as u32]
    }

    /// The four words of a block.
    pub fn block(&self, index: u64) -> [u32; 4] {
        let counter =
            [index as u32, (index >> 32) as u32, self.step as u32, (self.step >> 32) as u32];
        philox(counter, self.key)
    }

    /// The words of the blocks `index..index + N`, transposed: `[w][i]` is word `w` of block `index + i`.
    #[inline(always)]
    pub fn blocks<const N: usize>(&self, index: u64) -> [[u32; N]; 4] {
        let index = std::array::from_fn(|i| index.wrapping_add(i as u64));
        self.blocks_at(index, [self.step; N])
    }

    /// The words of the blocks `index[i]` at the steps `step[i]`, transposed as in [`blocks`](Self::blocks). Loops here
    /// are written to compile to vector code.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // one lane of all words at a time
    pub fn blocks_at<const N: usize>(&self, index: [u64; N], step: [u64; N]) -> [[u32; N]; 4] {
        // Lanes of 64 bits, of which the low half counts: a product of two such halves is one instruction of x86, and
        // stays where it is.
        let mut wide = [[0u64; N]; 4];
        for i in 0..N {
            (wide[0][i], wide[1][i]) = (index[i], index[i] >> 32);
            (wide[2][i], wide[3][i]) = (step[i], step[i] >> 32);
        }
        let mut key = self.key;
        for _ in 0..10 {
            let [first, second] = key.map(u64::from);
            for i in 0..N {
                let a = u64::from(MULTIPLIERS[0]) * (wide[0][i] & LOW);
                let b = u64::from(MULTIPLIERS[1]) * (wide[2][i] & LOW);
                wide[0][i] = (b >> 32) ^ wide[1][i] ^ first;
                wide[1][i] = b;
                wide[2][i] = (a >> 32) ^ wide[3][i] ^ second;
                wide[3][i] = a;
            }
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        wide.map(|wide| wide.map(|word| word as u32))
    }

    /// The word at `index`: uniform over all 32-bit numbers.
    pub fn u32(&self, index: u64) -> u32 {
        self.block(index / 4)[(index % 4) as usize]
    }

    /// A uniform number in `[0, 1)` with 24 random bits.
    pub fn uniform(&self, index: u64) -> f32 {
        unit(self.u32(index))
    }

    /// A standard normal number by the Box-Muller transform.
    pub fn normal(&self, index: u64) -> f32 {
        let words = self.block(index);
        // 1 - u lies in (0, 1], so its logarithm is finite.
        let radius = (-2.0 * f64::from(1.0 - unit(words[0])).ln()).sqrt();
        let angle = std::f64::consts::TAU * f64::from(words[1]) / 4_294_967_296.0;
        (radius * angle.cos()) as f32
    }

    /// A uniform number in `0..n`; `n` must not be 0. The bias is below n / 2^64.
    pub fn below(&self, index: u64, n: u64) -> u64 {
        let words = self.block(index);
        let wide = u64::from(words[0]) << 32 | u64::from(words[1]);
        ((u128::from(wide) * u128::from(n)) >> 64) as u64
    }
}

/// The numbers of [`Rng::uniform`] for a caller that asks for neighbours: it keeps the last block.
#[derive(Debug, Clone)]
pub struct Uniforms {
    rng: Rng,
    block: Option<(u64, [u32; 4])>,
}

impl Uniforms {
    /// The numbers of a stream.
    pub fn new(rng: Rng) -> Self {
        Uniforms { rng, block: None }
    }

    /// The number at `index`.
    pub fn at(&mut self, index: u64) -> f32 {
        let (_, words) = match self.block {
            Some(block) if block.0 == index / 4 => block,
            _ => *self.block.insert((index / 4, self.rng.block(index / 4))),
        };
        unit(words[(index % 4) as usize])
    }
}

/// The upper 24 bits of `word` as a number in `[0, 1)`.
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_returns_the_published_vectors() {
        // Known answers of Random123 for philox4x32-10.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let pi = philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]);
        assert_eq!(pi, [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
    }

    #[test]
    fn blocks_computed_together_equal_single_blocks() {
        let rng = Rng::new(5, "test", 1 << 40);
        let first = u64::from(u32::MAX) - 3;
        let words = rng.blocks::<8>(first);
        for i in 0..8 {
            assert_eq!(words.map(|w| w[i]), rng.block(first + i as u64));
        }
        let (index, step) = ([3, 1 << 33], [7, 1 << 50]);
        let words = rng.blocks_at(index, step);
        for i in 0..2 {
            assert_eq!(words.map(|w| w[i]), rng.at(step[i]).block(index[i]));
        }
    }

    #[test]
    fn streams_of_other_purposes_steps_and_seeds_differ() {
        let word = |seed, purpose, step| Rng::new(seed, purpose, step).u32(0);
        let words = [word(1, "a", 0), word(2, "a", 0), word(1, "b", 0), word(1, "a", 1)];
        for (i, a) in words.iter().enumerate() {
            assert!(words[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn neighbours_equal_single_uniform_numbers() {
        let rng = Rng::new(3, "test", 9);
        let mut uniforms = Uniforms::new(rng);
        for at in (0..10).chain([3, 2, 40, 7, 5]) {
            assert_eq!(uniforms.at(at), rng.uniform(at));
        }
    }

    #[test]
    fn a_stream_moved_to_another_step_equals_a_new_one() {
        let block = |rng: Rng| rng.block(3);
        assert_eq!(block(Rng::new(1, "a", 0).at(7)), block(Rng::new(1, "a", 7)));
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let rng = Rng::new(7, "test", 0);
        let n = 100_000;
        let values: Vec<f64> = (0..n).map(|i| f64::from(rng.normal(i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
