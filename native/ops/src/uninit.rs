//! Writes to memory that holds nothing yet.

use std::mem::MaybeUninit;

use crate::simd::LANES;

/// `x = from`, for memory that holds nothing yet.
pub(crate) fn copy(x: &mut [MaybeUninit<f32>], from: &[f32]) {
    for (x, v) in x.iter_mut().zip(from) {
        x.write(*v);
    }
}

/// [`simd::store`](crate::simd::store), to memory that holds nothing yet.
#[inline(always)]
pub(crate) fn store(x: &mut [MaybeUninit<f32>], at: usize, n: usize, lanes: [f32; LANES]) {
    if n == LANES
        && let Some(x) = x[at..].first_chunk_mut()
    {
        *x = lanes.map(MaybeUninit::new);
        return;
    }
    copy(&mut x[at..at + n], &lanes);
}

/// The numbers of `from`, in memory that held nothing.
pub(crate) fn copied<'a>(x: &'a mut [MaybeUninit<f32>], from: &[f32]) -> &'a mut [f32] {
    assert_eq!(x.len(), from.len(), "numbers to be copied");
    copy(x, from);
    // SAFETY: `copy` wrote as many numbers as there are.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len()) }
}

/// Zeros, in memory that held nothing.
pub(crate) fn zeroed(x: &mut [MaybeUninit<f32>]) -> &mut [f32] {
    x.fill(MaybeUninit::new(0.0));
    // SAFETY: all of it has just been written.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len()) }
}
