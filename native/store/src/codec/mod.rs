//! The stored form of a block: raw, or compressed by LZ4 in chunks, with or without the bits of its elements gathered by
//! their place first. Blocks that may lose something may also be stored in eight bits an element, see [`int8`].
//!
//! A compressed block is, for each chunk of [`CHUNK`] bytes, its stored length (u32, with the highest bit set if the
//! chunk is raw), and then the chunks without gaps.
//!
//! With gathered bits a mask (u64) stands before: bit `8 * byte + bit` says that this bit of the elements is in the part
//! that LZ4 gets, whose length the table has. The other bits come before it in each chunk, as planes, or as whole bytes if
//! the mask has no bit of a byte, and then the elements behind the last group.

mod bits;
pub mod int8;
mod lz4;

use sconce_tensor::memory;

use self::bits::Mask;
use self::int8::Real;

/// Bytes of a chunk before compression. With its copy it stays in a CPU's cache.
pub const CHUNK: usize = 1 << 16;
/// A compressed block of a smaller gain is stored raw, because reading it would cost more than it saves.
const WORTH: f64 = 0.95;
/// The mark of a chunk that LZ4 did not shorten.
const RAW: u32 = 1 << 31;
/// The acceleration of LZ4.
const LEAST: i32 = 3;
/// Bytes on which it is tried which planes gain.
const TRIAL: usize = 1 << 14;
/// LZ4 gets the planes that it makes shorter than this share.
const PLANE_WORTH: f64 = 0.9;
/// LZ4 gets all planes if it makes a block shorter than this share of what it is otherwise.
const MASK_WORTH: f64 = 0.97;

/// How the bytes of a block are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As they are.
    Raw,
    /// LZ4.
    Lz4,
    /// The bits of the elements gathered by their place, then LZ4 of those that it shortens.
    Bits,
    /// The bits gathered, then LZ4 of all, as former versions stored blocks. It is only read.
    FormerBits,
    /// Eight bits an element, which is lossy.
    Int8(Real),
}

impl Codec {
    /// The codec of a code in a file.
    pub fn of(code: u8) -> Option<Codec> {
        let exact = [Codec::Raw, Codec::Lz4, Codec::Bits, Codec::FormerBits].into_iter();
        exact.chain(Real::ALL.map(Codec::Int8)).find(|codec| codec.code() == code)
    }

    /// The code in a file.
    pub fn code(self) -> u8 {
        match self {
            Codec::Raw => 0,
            Codec::Lz4 => 1,
            Codec::FormerBits => 2,
            Codec::Bits => 6,
            Codec::Int8(Real::F32) => 3,
            Codec::Int8(Real::F16) => 4,
            Codec::Int8(Real::Bf16) => 5,
        }
    }

    /// Whether blocks that leave RAM are stored so in compressed RAM.
    pub fn is_packed(self) -> bool {
        matches!(self, Codec::Lz4 | Codec::Bits)
    }

    /// Whether the stored block is not what was put.
    pub fn is_lossy(self) -> bool {
        matches!(self, Codec::Int8(_))
    }

    /// Whether elements of this width may be stored so.
    pub fn fits(self, width: u8) -> bool {
        match self {
            Codec::Int8(real) => real.width() == width,
            _ => matches!(width, 1 | 2 | 4 | 8),
        }
    }
}

/// Chooses the codec by a trial on the first chunk of the middle half. Returns the stored sample too.
fn tried(raw: &[u8], width: u8) -> (Codec, Vec<u8>) {
    let begin = (raw.len() / 4).next_multiple_of(8).min(raw.len());
    let sample = raw.get(begin..).unwrap_or_default();
    let sample = sample.get(..CHUNK).unwrap_or(if raw.len() <= CHUNK { raw } else { sample });
    let plain = encode_as(Codec::Lz4, width, sample);
    let bits = encode_as(Codec::Bits, width, sample);
    match plain.len().min(bits.len()) as f64 <= WORTH * sample.len() as f64 {
        false => (Codec::Raw, vec![]),
        true if plain.len() <= bits.len() => (Codec::Lz4, plain),
        true => (Codec::Bits, bits),
    }
}

/// The codec of the trial.
pub fn choose(raw: &[u8], width: u8) -> Codec {
    tried(raw, width).0
}

/// The codec that the trial chose, and the stored bytes; raw if the whole gains too little.
pub fn encode(raw: &[u8], width: u8) -> (Codec, Option<Vec<u8>>) {
    let (codec, sample) = tried(raw, width);
    if codec == Codec::Raw {
        return (Codec::Raw, None);
    }
    // A block of one chunk is its own sample.
    let stored = if raw.len() <= CHUNK { sample } else { encode_as(codec, width, raw) };
    match stored.len() as f64 <= WORTH * raw.len() as f64 {
        true => (codec, Some(stored)),
        false => (Codec::Raw, None),
    }
}

/// The planes of a block that LZ4 gets, by a trial on a part of it.
fn mask_of(raw: &[u8], width: u8) -> Mask {
    let all = Mask::all(width);
    let Some(sample) = raw.get(raw.len() / 4 / 8 * 8..).and_then(|raw| raw.get(..TRIAL)) else {
        return all;
    };
    if raw.len() < CHUNK {
        return all;
    }
    let (mut planes, mut short) = ([0; TRIAL], [0; TRIAL]);
    bits::gather(width, all, sample, &mut planes, &mut []);
    let (plane, _) = all.lengths(width, TRIAL);
    let mut gains = |plane: &[u8]| {
        let room = (PLANE_WORTH * plane.len() as f64) as usize;
        lz4::compress(LEAST, plane, short.get_mut(..room)?)
    };
    let mut mask = Mask(0);
    // The planes that gain come together: planes that resemble each other gain more so.
    let mut chosen = memory::with_capacity(TRIAL);
    for (at, plane) in planes.chunks(plane).enumerate() {
        if gains(plane).is_some() {
            mask.0 |= 1 << at;
            chosen.extend_from_slice(plane);
        }
    }
    let together = gains(&chosen).unwrap_or(chosen.len()) + TRIAL - chosen.len();
    let is_worse = gains(&planes).is_some_and(|all| (all as f64) < MASK_WORTH * together as f64);
    if is_worse { all } else { mask }
}

/// The stored bytes of a compressed block.
pub fn encode_as(codec: Codec, width: u8, raw: &[u8]) -> Vec<u8> {
    let mask = (codec == Codec::Bits).then(|| mask_of(raw, width));
    let head = if mask.is_some() { 8 } else { 0 };
    let chunks = raw.len().div_ceil(CHUNK);
    let mut stored = memory::with_capacity(head + chunks * 4 + raw.len());
    if let Some(Mask(mask)) = mask {
        stored.extend_from_slice(&mask.to_le_bytes());
    }
    stored.resize(head + chunks * 4, 0);
    let mut planes = vec![0; if mask.is_some() { CHUNK.min(raw.len()) } else { 0 }];
    for (at, chunk) in raw.chunks(CHUNK).enumerate() {
        let mut from = chunk;
        if let Some(mask) = mask {
            let (_, count) = mask.lengths(width, chunk.len());
            let begin = stored.len();
            stored.resize(begin + chunk.len() - count, 0);
            let others = stored.get_mut(begin..).unwrap_or_default();
            let planes = planes.get_mut(..count).unwrap_or_default();
            bits::gather(width, mask, chunk, planes, others);
            from = planes;
        }
        let length = appended(from, &mut stored);
        if let Some(place) = stored.get_mut(head + at * 4..head + at * 4 + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }
    stored
}

/// Appends bytes, compressed if they get shorter. Returns the entry of the table.
fn appended(from: &[u8], stored: &mut Vec<u8>) -> u32 {
    let begin = stored.len();
    // A chunk that gets no shorter does not fit.
    stored.resize(begin + from.len().saturating_sub(1), 0);
    let written = lz4::compress(LEAST, from, stored.get_mut(begin..).unwrap_or_default());
    stored.truncate(begin + written.unwrap_or_default());
    match written {
        Some(written) => written as u32,
        None => {
            stored.extend_from_slice(from);
            from.len() as u32 | RAW
        }
    }
}

/// Restores a block of `length` bytes. Returns the fault of bytes that no encoder makes.
pub fn decode(
    codec: Codec,
    width: u8,
    stored: &[u8],
    length: usize,
) -> Result<Vec<u8>, &'static str> {
    match codec {
        Codec::Raw if stored.len() != length => Err("a raw block of another length"),
        Codec::Raw => Ok(memory::copied(stored)),
        Codec::Int8(real) => int8::decode(real, stored, length),
        Codec::Lz4 => decode_chunks(None, width, stored, length),
        Codec::FormerBits => decode_former(width, stored, length),
        Codec::Bits => {
            let (mask, rest) = stored.split_first_chunk().ok_or("a mask that is cut off")?;
            let mask = Mask(u64::from_le_bytes(*mask));
            if mask.0 & !Mask::all(width).0 != 0 {
                return Err("a mask of other elements");
            }
            decode_chunks(Some(mask), width, rest, length)
        }
    }
}

fn decode_former(width: u8, stored: &[u8], length: usize) -> Result<Vec<u8>, &'static str> {
    let gathered = decode_chunks(None, width, stored, length)?;
    let mut raw = memory::repeated(0, length);
    let mask = Mask::all(width);
    for (from, to) in gathered.chunks(CHUNK).zip(raw.chunks_mut(CHUNK)) {
        let (planes, others) = from.split_at(mask.lengths(width, from.len()).1);
        bits::scatter(width, mask, planes, others, to);
    }
    Ok(raw)
}

fn decode_chunks(
    mask: Option<Mask>,
    width: u8,
    stored: &[u8],
    length: usize,
) -> Result<Vec<u8>, &'static str> {
    let chunks = length.div_ceil(CHUNK);
    let (table, mut rest) = stored.split_at_checked(chunks * 4).ok_or("a table that is cut off")?;
    let mut planes = vec![0; if mask.is_some() { CHUNK.min(length) } else { 0 }];
    let mut raw: Vec<u8> = memory::with_capacity(length);
    for entry in table.as_chunks().0 {
        let entry = u32::from_le_bytes(*entry);
        let (is_raw, bytes) = (entry & RAW != 0, (entry & !RAW) as usize);
        let begin = raw.len();
        // A chunk at a time stays in a CPU's cache.
        raw.resize(length.min(begin + CHUNK), 0);
        let place = raw.get_mut(begin..).unwrap_or_default();
        let count = mask.map_or(place.len(), |mask| mask.lengths(width, place.len()).1);
        let others = place.len() - count;
        let (others, after) = rest.split_at_checked(others).ok_or("planes that are cut off")?;
        let (chunk, after) = after.split_at_checked(bytes).ok_or("a chunk that is cut off")?;
        rest = after;
        let Some(mask) = mask else {
            restore(is_raw, chunk, place)?;
            continue;
        };
        let planes = planes.get_mut(..count).unwrap_or_default();
        restore(is_raw, chunk, planes)?;
        bits::scatter(width, mask, planes, others, place);
    }
    if rest.is_empty() { Ok(raw) } else { Err("bytes behind the last chunk") }
}

/// Restores one entry of the table.
fn restore(is_raw: bool, chunk: &[u8], to: &mut [u8]) -> Result<(), &'static str> {
    match is_raw {
        true if chunk.len() != to.len() => Err("a raw chunk of another length"),
        true => {
            to.copy_from_slice(chunk);
            Ok(())
        }
        false if lz4::decompress(chunk, to) == Some(to.len()) => Ok(()),
        false => Err("a chunk that LZ4 cannot read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16(count: u32) -> Vec<u8> {
        let rng = sconce_tensor::rng::Rng::new(3, "weights", 0);
        let value = |i| 0.05 * rng.normal(u64::from(i));
        (0..count).flat_map(|i| ((value(i).to_bits() >> 16) as u16).to_le_bytes()).collect()
    }

    #[test]
    fn every_codec_restores_blocks_of_every_length() {
        for width in [1, 2, 4, 8] {
            for len in [0, 1, 7, 8, 255, 256, 257, 2047, 4096, CHUNK - 1, CHUNK, CHUNK + 9, 200_001]
            {
                let raw: Vec<u8> = bf16(len as u32 / 2 + 1).into_iter().take(len).collect();
                for codec in [Codec::Lz4, Codec::Bits] {
                    let stored = encode_as(codec, width, &raw);
                    let back = decode(codec, width, &stored, len);
                    assert!(back == Ok(raw.clone()), "{codec:?} width {width} length {len}");
                }
            }
        }
    }

    #[test]
    fn blocks_of_former_versions_are_read() {
        for len in [0, 9, 5000, CHUNK, CHUNK + 700] {
            let raw: Vec<u8> = bf16(len as u32 / 2 + 1).into_iter().take(len).collect();
            let mut gathered = vec![0; len];
            for (from, to) in raw.chunks(CHUNK).zip(gathered.chunks_mut(CHUNK)) {
                let (planes, others) = to.split_at_mut(Mask::all(2).lengths(2, from.len()).1);
                bits::gather(2, Mask::all(2), from, planes, others);
            }
            let stored = encode_as(Codec::Lz4, 2, &gathered);
            assert!(decode(Codec::FormerBits, 2, &stored, len) == Ok(raw));
        }
    }

    #[test]
    fn weights_gain_by_gathered_bits_and_noise_stays_raw() {
        let weights = bf16(1 << 19);
        let (codec, stored) = encode(&weights, 2);
        let ratio = weights.len() as f64 / stored.map_or(0, |s| s.len()) as f64;
        assert_eq!(codec, Codec::Bits);
        assert!(ratio > 1.25, "{ratio}");
        let rng = sconce_tensor::rng::Rng::new(4, "noise", 0);
        let noise: Vec<u8> = (0..1_u64 << 18).flat_map(|i| rng.u32(i).to_le_bytes()).collect();
        assert_eq!(encode(&noise, 1), (Codec::Raw, None));
        assert_eq!(encode(&vec![0; 1 << 20], 4).0, Codec::Lz4);
    }

    #[test]
    fn bytes_that_no_encoder_makes_are_refused() {
        let raw = bf16(60_000);
        let stored = encode_as(Codec::Bits, 2, &raw);
        for at in 0..stored.len().min(600) {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x55;
            // Other bytes may come out: the checksum of a block finds these.
            let _ = decode(Codec::Bits, 2, &damaged, raw.len());
            assert!(decode(Codec::Bits, 2, &stored[..at], raw.len()).is_err());
        }
        let longer = [stored.clone(), vec![0]].concat();
        assert!(decode(Codec::Bits, 2, &longer, raw.len()).is_err());
        assert!(decode(Codec::Raw, 2, &raw[1..], raw.len()).is_err());
    }
}
