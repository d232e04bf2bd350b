//! Two functions of the C library LZ4. The safe functions of the crate `lz4` also link its slow compressors, 0.1 MB.

use std::ffi::c_int;

use lz4_sys::{LZ4_compress_fast, LZ4_decompress_safe};

/// Compresses into `to`. A higher acceleration finds fewer repetitions in less time. Returns the bytes written, or `None`
/// if they do not fit.
pub(super) fn compress(acceleration: c_int, from: &[u8], to: &mut [u8]) -> Option<usize> {
    let (long, most) = (c_int::try_from(from.len()).ok()?, c_int::try_from(to.len()).ok()?);
    // SAFETY: the function reads `long` bytes of `from` and writes at most `most` bytes of `to`, their lengths.
    let written = unsafe {
        LZ4_compress_fast(from.as_ptr().cast(), to.as_mut_ptr().cast(), long, most, acceleration)
    };
    usize::try_from(written).ok().filter(|written| *written > 0)
}

/// Restores into `to`. Returns the bytes written, or `None` for bytes that are not of the compressor.
pub(super) fn decompress(from: &[u8], to: &mut [u8]) -> Option<usize> {
    let (long, most) = (c_int::try_from(from.len()).ok()?, c_int::try_from(to.len()).ok()?);
    // SAFETY: as above; for any bytes the function stays within both lengths.
    let written =
        unsafe { LZ4_decompress_safe(from.as_ptr().cast(), to.as_mut_ptr().cast(), long, most) };
    usize::try_from(written).ok()
}
