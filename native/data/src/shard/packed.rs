//! The compressed form of a game: segments of some hundred frames, and in each segment one column after the other.
//!
//! A segment is compressed alone, so that a window of frames needs one or two of them. Its columns lie together because
//! values of one column repeat more than those of one frame.

use sconce_store::codec::{self, Codec};
use sconce_tensor::memory;
use serde::{Deserialize, Serialize};

/// Bytes of a segment before compression, if a frame is small enough.
const SEGMENT: usize = 160 << 10;
/// Bounds of the frames in a segment, which are a power of two.
const FRAMES: (usize, usize) = (16, 1024);
/// Maximum bytes of a segment, so that a damaged table asks for no more.
const MAX_SEGMENT: usize = 1 << 28;
/// The element that most columns have, in bytes: the codec may gather the bits of such elements.
const WIDTH: u8 = 4;

/// The table of a game's segments, in its header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Packed {
    /// Frames in each segment but the last, a power of two.
    pub frames: usize,
    pub segments: Vec<Stored>,
}

/// A segment as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    pub bytes: usize,
    /// CRC-32 of these bytes.
    pub crc: u32,
    pub codec: u8,
}

/// Compresses columns, each with the bytes of one frame in it. Returns the table and the segments.
pub(super) fn pack(columns: &[Vec<u8>], widths: &[usize], frames: usize) -> (Packed, Vec<u8>) {
    let row: usize = widths.iter().sum();
    let each = 1 << (SEGMENT / row.max(1)).clamp(FRAMES.0, FRAMES.1).ilog2();
    let (mut segments, mut all) = (vec![], vec![]);
    let mut raw = memory::with_capacity(each.min(frames) * row);
    for from in (0..frames).step_by(each) {
        let to = (from + each).min(frames);
        raw.clear();
        for (column, width) in columns.iter().zip(widths) {
            raw.extend_from_slice(column.get(from * width..to * width).unwrap_or_default());
        }
        let (codec, stored) = codec::encode(&raw, WIDTH);
        let bytes = stored.as_deref().unwrap_or(&raw);
        let crc = crc32fast::hash(bytes);
        segments.push(Stored { bytes: bytes.len(), crc, codec: codec.code() });
        all.extend_from_slice(bytes);
    }
    (Packed { frames: each, segments }, all)
}

impl Packed {
    /// Checks the table of a game of `frames` frames of `row` bytes, whose segments have `bytes` bytes.
    pub(super) fn check(&self, frames: usize, row: usize, bytes: usize) -> Result<(), String> {
        let most = self.frames.checked_mul(row).filter(|most| *most <= MAX_SEGMENT);
        if !self.frames.is_power_of_two() || most.is_none() {
            return Err(format!("segments of {} frames of {row} bytes", self.frames));
        }
        let (found, wanted) = (self.segments.len(), frames.div_ceil(self.frames));
        if found != wanted {
            return Err(format!("{found} segments of {wanted}"));
        }
        let sum = self.segments.iter().try_fold(0_usize, |sum, own| sum.checked_add(own.bytes));
        match sum == Some(bytes) {
            true => Ok(()),
            false => Err(format!("segments of other than {bytes} bytes")),
        }
    }
}

impl Stored {
    /// Restores a segment of `raw` bytes.
    pub(super) fn unpack(&self, stored: &[u8], raw: usize) -> Result<Vec<u8>, String> {
        if crc32fast::hash(stored) != self.crc {
            return Err("another checksum than was written".into());
        }
        let codec = Codec::of(self.codec).filter(|codec| !codec.is_lossy());
        let codec = codec.ok_or_else(|| format!("codec {}", self.codec))?;
        Ok(codec::decode(codec, WIDTH, stored, raw)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_in_a_codec_that_loses_something_is_refused() {
        for codec in [3, 4, 5, 255] {
            let segment = Stored { bytes: 0, crc: crc32fast::hash(&[]), codec };
            assert_eq!(segment.unpack(&[], 0), Err(format!("codec {codec}")));
        }
    }
}
