//! Sums of the lanes of several SIMD vectors at once.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use sconce_tensor::simd::{LANES, sum};
#[cfg(target_arch = "x86_64")]
use sconce_tensor::simd::{Level, level};

/// Sums all lanes of each of 16 SIMD vectors, with the bits of [`sum`]. The additions of one vector alone wait for each
/// other; those of 16 vectors share the instructions.
#[inline]
pub fn sums(rows: &[[f32; LANES]; LANES]) -> [f32; LANES] {
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx512 {
        // SAFETY: `level` found the features that the function needs.
        return unsafe { avx512(rows) };
    }
    rows.map(sum)
}

/// [`sums`] by AVX-512. Each step adds the halves of what is left of each vector, and packs two vectors in one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(rows: &[[f32; LANES]; LANES]) -> [f32; LANES] {
    /// The vector that each place of the first step takes, so that the sums end in order.
    const ORDER: [usize; LANES] = [0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15];
    // SAFETY: reads the 16 values of an array.
    let row = |i: usize| unsafe { _mm512_loadu_ps(rows[ORDER[i]].as_ptr()) };
    let eights: [__m512; 8] = std::array::from_fn(|i| {
        let (a, b) = (row(i), row(i + 8));
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b))
    });
    let fours: [__m512; 4] = std::array::from_fn(|i| {
        let (a, b) = (eights[i], eights[i + 4]);
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xDD>(a, b))
    });
    let twos: [__m512; 2] = std::array::from_fn(|i| {
        let (a, b) = (fours[i], fours[i + 2]);
        _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xEE>(a, b))
    });
    let [a, b] = twos;
    let ones = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xDD>(a, b));
    let mut sums = [0.0; LANES];
    // SAFETY: writes the 16 values of an array.
    unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), ones) };
    sums
}

#[cfg(test)]
mod tests {
    use sconce_tensor::rng::Rng;

    use super::*;

    #[test]
    fn each_sum_has_the_bits_of_a_sum_alone() {
        let rng = Rng::new(1, "sums", 0);
        let number = |i: usize, j: usize| rng.normal((i * LANES + j) as u64);
        let rows: [[f32; LANES]; LANES] =
            std::array::from_fn(|i| std::array::from_fn(|j| number(i, j)));
        assert_eq!(sums(&rows).map(f32::to_bits), rows.map(sum).map(f32::to_bits));
    }
}
