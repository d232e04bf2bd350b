//! The indices of numbers that are not 0.

use sconce_tensor::simd::LANES;
#[cfg(target_arch = "x86_64")]
use sconce_tensor::simd::{Level, level};

/// Writes the indices of the numbers that are not 0, in order, and returns their count. `out` has at least [`LANES`]
/// numbers more than `seen`.
pub(super) fn places(out: &mut [u32], seen: &[u32]) -> usize {
    assert!(out.len() >= seen.len() + LANES, "room for a SIMD vector");
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Avx512 {
        // SAFETY: `level` found the features that the function needs, and `out` has the room.
        return unsafe { vector(out, seen) };
    }
    let mut count = 0;
    for (place, seen) in (0..).zip(seen) {
        out[count] = place;
        count += usize::from(*seen != 0);
    }
    count
}

/// Writes the indices of the numbers that are not 0, in order, and returns their count. Writes up to 16 numbers more.
///
/// # Safety
/// The CPU has AVX-512F, and `out` has 16 numbers more than `seen`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn vector(out: &mut [u32], seen: &[u32]) -> usize {
    use std::arch::x86_64::*;

    let lanes: [i32; LANES] = std::array::from_fn(|lane| lane as i32);
    // SAFETY: reads the 16 values of an array.
    let mut index = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
    let mut count = 0;
    for own in seen.chunks(LANES) {
        let mask = u32::MAX.unbounded_shr(32 - own.len() as u32) as __mmask16;
        // SAFETY: the mask covers only the values of the chunk.
        let own = unsafe { _mm512_maskz_loadu_epi32(mask, own.as_ptr().cast()) };
        let some = _mm512_test_epi32_mask(own, own);
        let packed = _mm512_maskz_compress_epi32(some, index);
        // SAFETY: `count` is at most the numbers of `seen` before this chunk.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(count).cast(), packed) };
        count += some.count_ones() as usize;
        index = _mm512_add_epi32(index, _mm512_set1_epi32(LANES as i32));
    }
    count
}

#[cfg(test)]
mod tests {
    use sconce_tensor::rng::Rng;

    use super::*;

    #[test]
    fn the_places_of_numbers_other_than_0_are_in_order() {
        let rng = Rng::new(1, "places", 0);
        for (share, len) in (0..5u64).flat_map(|share| (0..70).map(move |len| (share, len))) {
            let seen: Vec<u32> = (0..len)
                .map(|i| if rng.below(100 * share + i, 4) < share { i as u32 + 1 } else { 0 })
                .collect();
            let mut out = vec![u32::MAX; seen.len() + LANES];
            let count = places(&mut out, &seen);
            let want: Vec<u32> = (0..len as u32).filter(|i| seen[*i as usize] != 0).collect();
            assert_eq!(out[..count], want, "{share} of 4, {len}");
        }
    }
}
