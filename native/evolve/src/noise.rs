//! Standard normal numbers, computed in vector code.

use sconce_tensor::rng::Rng;
use sconce_tensor::simd::mul_add;
use sconce_tensor::trig::sin_cos_with;
use sconce_tensor::{dispatch, pool};

/// Blocks of Philox whose words lie together in a stream.
const BLOCKS: usize = 8;
/// Groups that are computed together: loops over 16 numbers compile to vector code.
const GROUPS: usize = 2;
/// Numbers of such blocks. Each word of a block gives one number.
pub(crate) const GROUP: usize = 4 * BLOCKS;
/// Groups that a shard of parallel work computes.
const SHARD: usize = 64;

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

dispatch! {
    /// Fills `out` with the numbers `GROUP * group..` of a stream (Box & Muller 1958).
    fn fill(rng: &Rng, group: u64, out: &mut [f32]) {
        for (at, out) in out.chunks_mut(GROUPS * GROUP).enumerate() {
            let first = (group + (at * GROUPS) as u64) * BLOCKS as u64;
            let words = rng.blocks::<{ GROUPS * BLOCKS }>(first);
            let mut normals = [[0.0f32; GROUPS * BLOCKS]; 4];
            for pair in 0..2 {
                for i in 0..GROUPS * BLOCKS {
                    let [radius, angle] = [words[2 * pair][i], words[2 * pair + 1][i]];
                    // Above 0 and at most 1, so that the logarithm is finite and not positive.
                    let uniform = ((radius >> 8) as i32 as f32 + 0.5) / 16_777_216.0;
                    let radius = (-2.0 * ln::<FMA>(uniform)).max(0.0).sqrt();
                    let angle = (angle >> 8) as i32 as f32 * (std::f32::consts::TAU / 16_777_216.0);
                    let (sin, cos) = sin_cos_with::<FMA>(angle);
                    normals[2 * pair][i] = radius * cos;
                    normals[2 * pair + 1][i] = radius * sin;
                }
            }
            for (group, out) in out.chunks_mut(GROUP).enumerate() {
                for (normals, out) in normals.iter().zip(out.chunks_mut(BLOCKS)) {
                    out.copy_from_slice(&normals[group * BLOCKS..][..out.len()]);
                }
            }
        }
    }
}

/// Fills `out` with standard normal numbers of a stream, from number `first`.
pub(crate) fn normals(rng: &Rng, first: u64, out: &mut [f32]) {
    const WIDE: u64 = GROUP as u64;
    let (group, before) = (first / WIDE, (first % WIDE) as usize);
    if before == 0 {
        return fill(rng, group, out);
    }
    let mut whole = [0.0; GROUP];
    fill(rng, group, &mut whole);
    let (head, rest) = out.split_at_mut(out.len().min(GROUP - before));
    head.copy_from_slice(&whole[before..][..head.len()]);
    fill(rng, group + 1, rest);
}

/// Standard normal numbers of a stream in parallel, from its first one.
pub(crate) fn wide_normals(rng: &Rng, count: usize) -> Vec<f64> {
    let mut all = sconce_tensor::memory::repeated(0.0f64, count);
    pool::for_each_rows(&mut all, GROUP, SHARD, |group, wide| {
        let mut narrow = [0.0; GROUP];
        for (at, wide) in wide.chunks_mut(GROUP).enumerate() {
            normals(rng, ((group + at) * GROUP) as u64, &mut narrow);
            wide.iter_mut().zip(narrow).for_each(|(wide, v)| *wide = f64::from(v));
        }
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_numbers_have_the_moments_and_the_tails_of_a_normal_distribution() {
        let all = wide_normals(&Rng::new(1, "test", 3), 1 << 20);
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
        let product: f64 = all.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / count;
        assert!(product.abs() < 0.005, "{product}");
    }

    #[test]
    fn a_part_of_a_stream_equals_the_whole() {
        let rng = Rng::new(7, "test", 1);
        let whole = wide_normals(&rng, 10_000);
        for (first, count) in
            [(96 * GROUP, 100), (0, 3), (5, 3), (31, 1), (31, 200), (70, 64), (33, 0)]
        {
            let mut part = vec![0.0; count];
            normals(&rng, first as u64, &mut part);
            let same = part.iter().zip(&whole[first..]).all(|(a, b)| f64::from(*a) == *b);
            assert!(same, "{first} {count}");
        }
    }
}
