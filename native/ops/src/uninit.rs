//! Writes to uninitialised memory.

use std::mem::MaybeUninit;

use crate::simd::LANES;

/// Casts initialised memory to memory to write to. Only initialised values may be written.
pub(crate) fn writable(x: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: both types have the same layout, and callers write only initialised values.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len()) }
}

/// `x = from`, into uninitialised memory.
pub(crate) fn copy(x: &mut [MaybeUninit<f32>], from: &[f32]) {
    for (x, v) in x.iter_mut().zip(from) {
        x.write(*v);
    }
}

/// [`simd::store`](crate::simd::store), into uninitialised memory.
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

/// Copies `from` into uninitialised memory and returns it as initialised.
pub(crate) fn copied<'a>(x: &'a mut [MaybeUninit<f32>], from: &[f32]) -> &'a mut [f32] {
    assert_eq!(x.len(), from.len(), "length of a copy");
    copy(x, from);
    // SAFETY: the lengths are equal, so `copy` wrote every number.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len()) }
}

/// Fills uninitialised memory with zeros and returns it as initialised.
pub(crate) fn zeroed(x: &mut [MaybeUninit<f32>]) -> &mut [f32] {
    x.fill(MaybeUninit::new(0.0));
    // SAFETY: every number has just been written.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len()) }
}
