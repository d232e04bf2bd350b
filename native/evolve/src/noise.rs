//! Standard normal numbers, computed in vector code.

use sconce_tensor::dispatch;
use sconce_tensor::rng::Rng;
use sconce_tensor::simd::mul_add;

/// Generators of a stream.
const LANES: usize = 16;
/// Words of each generator that are drawn together.
const STEPS: usize = 4;
/// Numbers of these words.
const GROUP: usize = STEPS * LANES;

/// A word of each generator.
type Words = [u32; LANES];

/// A stream of standard normal numbers (Box & Muller 1958) of [`LANES`] generators xoshiro128+ (Blackman & Vigna 2021),
/// whose states are words of a counter-based stream.
pub(crate) struct Normals {
    states: [Words; 4],
    /// The last group, of which the last `left` numbers were not taken yet.
    group: [f32; GROUP],
    left: usize,
}

impl Normals {
    /// Stream number `index` of many.
    pub(crate) fn new(rng: &Rng, index: u64) -> Self {
        let states = rng.blocks(index * LANES as u64);
        Normals { states, group: [0.0; GROUP], left: 0 }
    }

    /// Fills `out` with the next numbers.
    pub(crate) fn fill(&mut self, out: &mut [f32]) {
        let (head, rest) = out.split_at_mut(out.len().min(self.left));
        head.copy_from_slice(&self.group[GROUP - self.left..][..head.len()]);
        self.left -= head.len();
        let (groups, tail) = rest.as_chunks_mut();
        fill(&mut self.states, groups);
        if !tail.is_empty() {
            fill(&mut self.states, std::slice::from_mut(&mut self.group));
            tail.copy_from_slice(&self.group[..tail.len()]);
            self.left = GROUP - tail.len();
        }
    }
}

/// The logarithm of a normal number above 0, with an error of an ulp (the coefficients of Cephes `logf`).
#[inline(always)]
#[allow(clippy::excessive_precision)] // the published coefficients
fn ln<const FMA: bool>(value: f32) -> f32 {
    // Moves the mantissa to sqrt(1/2)..sqrt(2).
    const HALF_ROOT: u32 = 0x3f35_04f3;
    let bits = value.to_bits().wrapping_sub(HALF_ROOT);
    let exponent = (bits as i32 >> 23) as f32;
    let x = f32::from_bits((bits & 0x007f_ffff).wrapping_add(HALF_ROOT)) - 1.0;
    let mut p = 7.037_683_629_2e-2;
    for coefficient in [
        -1.151_461_031_0e-1,
        1.167_699_874_0e-1,
        -1.242_014_084_6e-1,
        1.424_932_278_7e-1,
        -1.666_805_766_5e-1,
        2.000_071_476_5e-1,
        -2.499_999_399_3e-1,
        3.333_333_117_4e-1,
    ] {
        p = mul_add::<FMA>(p, x, coefficient);
    }
    let z = x * x;
    let small = mul_add::<FMA>(exponent, -2.121_944_40e-4, p * x * z);
    mul_add::<FMA>(exponent, 0.693_359_375, x + mul_add::<FMA>(-0.5, z, small))
}

/// Sine and cosine on -pi/2..pi/2 with an absolute error of 1.5e-7, by polynomials of least error.
#[inline(always)]
fn half_circle<const FMA: bool>(x: f32) -> (f32, f32) {
    let z = x * x;
    let mut sin = 2.590_488_5e-6;
    for coefficient in [-1.980_089_8e-4, 8.332_9e-3, -1.666_664_8e-1, 1.0] {
        sin = mul_add::<FMA>(sin, z, coefficient);
    }
    let mut cos = 2.315_393_2e-5;
    for coefficient in [-1.385_370_4e-3, 4.166_358_5e-2, -4.999_990_5e-1, 1.0] {
        cos = mul_add::<FMA>(cos, z, coefficient);
    }
    (sin * x, cos)
}

/// The next words of each generator. One loop over all generators, with their states in memory, compiles to vector code.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one generator at a time
fn draw(states: &mut [Words; 4], words: &mut [Words; STEPS]) {
    for i in 0..LANES {
        let [mut a, mut b, mut c, mut d] = [0, 1, 2, 3].map(|word| states[word][i]);
        for word in words.iter_mut() {
            word[i] = a.wrapping_add(d);
            let moved = b << 9;
            c ^= a;
            d ^= b;
            b ^= c;
            a ^= d;
            c ^= moved;
            d = d.rotate_left(11);
        }
        (states[0][i], states[1][i], states[2][i], states[3][i]) = (a, b, c, d);
    }
}

dispatch! {
    /// Fills groups with the next numbers.
    fn fill(states: &mut [Words; 4], groups: &mut [[f32; GROUP]]) {
        let mut words = [[0; LANES]; STEPS];
        for group in groups {
            draw(states, &mut words);
            let (places, _) = group.as_chunks_mut::<{ 2 * LANES }>();
            let (pairs, _) = words.as_chunks();
            for (place, [radii, angles]) in places.iter_mut().zip(pairs) {
                for i in 0..LANES {
                    // Above 0 and at most 1, so that the logarithm is finite and not positive.
                    let uniform = ((radii[i] >> 8) as i32 as f32 + 0.5) / 16_777_216.0;
                    let radius = (-2.0 * ln::<FMA>(uniform)).max(0.0).sqrt();
                    // The right half of the circle. A bit of the other word mirrors it.
                    let turn = (angles[i] as i32 >> 8) as f32 + 0.5;
                    let (sin, cos) = half_circle::<FMA>(turn * (std::f32::consts::PI / 16_777_216.0));
                    let sign = radii[i] << 24 & 0x8000_0000;
                    place[i] = radius * f32::from_bits(cos.to_bits() ^ sign);
                    place[LANES + i] = radius * sin;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(index: u64, count: usize) -> Vec<f64> {
        let mut all = vec![0.0; count];
        Normals::new(&Rng::new(1, "test", 3), index).fill(&mut all);
        all.into_iter().map(f64::from).collect()
    }

    #[test]
    fn the_logarithm_agrees_with_f64() {
        for at in (1..1 << 24).step_by(997) {
            let value = at as f32 / 16_777_216.0;
            let want = f64::from(value).ln();
            for got in [ln::<true>(value), ln::<false>(value)] {
                let error = (f64::from(got) - want).abs();
                assert!(error <= 1.5e-7 * want.abs().max(0.1), "{value}: {got} {want}");
            }
        }
    }

    #[test]
    fn sine_and_cosine_agree_with_f64() {
        for at in -8192..=8192 {
            let x = at as f32 * (std::f32::consts::FRAC_PI_2 / 8192.0);
            let (want_sin, want_cos) = f64::from(x).sin_cos();
            for (sin, cos) in [half_circle::<true>(x), half_circle::<false>(x)] {
                let errors = [f64::from(sin) - want_sin, f64::from(cos) - want_cos];
                assert!(errors.iter().all(|error| error.abs() < 2.5e-7), "{x}: {errors:?}");
            }
        }
    }

    #[test]
    fn the_numbers_have_the_moments_and_the_tails_of_a_normal_distribution() {
        // One long stream, and the beginnings of many.
        let many: Vec<f64> = (0..1 << 12).flat_map(|index| drawn(index, 1 << 8)).collect();
        for all in [drawn(0, 1 << 20), many] {
            let count = all.len() as f64;
            let moment = |power: i32| all.iter().map(|v| v.powi(power)).sum::<f64>() / count;
            assert!(moment(1).abs() < 0.005, "{}", moment(1));
            assert!((moment(2) - 1.0).abs() < 0.01, "{}", moment(2));
            assert!(moment(3).abs() < 0.03, "{}", moment(3));
            assert!((moment(4) - 3.0).abs() < 0.06, "{}", moment(4));
            let beyond = |limit: f64| all.iter().filter(|v| v.abs() > limit).count() as f64 / count;
            for (limit, share) in [(1.0, 0.3173), (2.0, 0.0455), (3.0, 0.0027)] {
                assert!((beyond(limit) - share).abs() < 0.05 * share + 0.001, "{limit}");
            }
            // Neighbours, both numbers of a pair, and the same generator one step and one group later.
            for gap in [1, LANES, 2 * LANES, GROUP] {
                let product: f64 = all.windows(gap + 1).map(|own| own[0] * own[gap]).sum();
                assert!((product / count).abs() < 0.005, "{gap}: {product}");
                let squares: f64 =
                    all.windows(gap + 1).map(|own| (own[0] * own[gap]).powi(2)).sum();
                assert!((squares / count - 1.0).abs() < 0.02, "{gap}: {squares}");
            }
        }
    }

    #[test]
    fn a_stream_that_is_taken_in_parts_equals_the_whole() {
        let whole = drawn(7, 10_000);
        let mut stream = Normals::new(&Rng::new(1, "test", 3), 7);
        let mut first = 0;
        for count in [1, 3, 28, 0, 31, 33, 64, 5, 200, 1000, 27] {
            let mut part = vec![0.0; count];
            stream.fill(&mut part);
            let same = part.iter().zip(&whole[first..]).all(|(a, b)| f64::from(*a) == *b);
            assert!(same, "{first} {count}");
            first += count;
        }
    }
}
