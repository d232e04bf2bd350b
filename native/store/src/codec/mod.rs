//! The stored form of a block: raw, or compressed by LZ4 in chunks, with or without the bits of its elements gathered by
//! their place first. Blocks that may lose something may also be stored in eight bits an element, see [`int8`].
//!
//! A compressed block is, for each chunk of [`CHUNK`] bytes, its stored length (u32, with the highest bit set if the
//! chunk is raw), and then the chunks without gaps.

mod bits;
pub mod int8;
mod lz4;

use sconce_tensor::memory;

use self::int8::Real;

/// Bytes of a chunk before compression. With its copy it stays in a CPU's cache.
pub const CHUNK: usize = 1 << 16;
/// A compressed block of a smaller gain is stored raw, because reading it would cost more than it saves.
const WORTH: f64 = 0.95;
/// The mark of a chunk that LZ4 did not shorten.
const RAW: u32 = 1 << 31;
/// The acceleration of LZ4, unless another one is better.
const LEAST: i32 = 3;

/// How the bytes of a block are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As they are.
    Raw,
    /// LZ4.
    Lz4,
    /// The bits of the elements gathered by their place, then LZ4.
    Bits,
    /// Eight bits an element. What is read is not what was put.
    Int8(Real),
}

impl Codec {
    /// The codec of a code in a file.
    pub fn of(code: u8) -> Option<Codec> {
        let exact = [Codec::Raw, Codec::Lz4, Codec::Bits].into_iter();
        exact.chain(Real::ALL.map(Codec::Int8)).find(|codec| codec.code() == code)
    }

    /// Weights in 16 bits take a quarter less time to compress than with 3, and a hundredth more bytes. Frames of games would
    /// take a tenth more.
    fn acceleration(self, width: u8) -> i32 {
        if self == Codec::Bits && width == 2 { 12 } else { LEAST }
    }

    /// The code in a file.
    pub fn code(self) -> u8 {
        match self {
            Codec::Raw => 0,
            Codec::Lz4 => 1,
            Codec::Bits => 2,
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

/// The stored bytes of a compressed block.
pub fn encode_as(codec: Codec, width: u8, raw: &[u8]) -> Vec<u8> {
    encode_by(codec.acceleration(width), codec, width, raw)
}

/// The stored bytes of a compressed block, as former versions stored it. `None` if they stored it as [`encode_as`] does.
pub(crate) fn encode_formerly(codec: Codec, width: u8, raw: &[u8]) -> Option<Vec<u8>> {
    (codec.acceleration(width) != LEAST).then(|| encode_by(LEAST, codec, width, raw))
}

fn encode_by(acceleration: i32, codec: Codec, width: u8, raw: &[u8]) -> Vec<u8> {
    let chunks = raw.len().div_ceil(CHUNK);
    let mut stored = memory::with_capacity(chunks * 4 + raw.len());
    stored.resize(chunks * 4, 0);
    let mut gathered = vec![0; CHUNK.min(raw.len())];
    let mut short = vec![0; CHUNK.min(raw.len())];
    for (at, chunk) in raw.chunks(CHUNK).enumerate() {
        let from = match (codec, gathered.get_mut(..chunk.len())) {
            (Codec::Bits, Some(gathered)) => {
                bits::gather(width, chunk, gathered);
                &*gathered
            }
            _ => chunk,
        };
        // A chunk that gets no shorter does not fit.
        let room = short.get_mut(..chunk.len().saturating_sub(1)).unwrap_or_default();
        let (length, bytes) = match lz4::compress(acceleration, from, room) {
            Some(written) => (written as u32, short.get(..written).unwrap_or_default()),
            None => (chunk.len() as u32 | RAW, chunk),
        };
        stored.extend_from_slice(bytes);
        if let Some(place) = stored.get_mut(at * 4..at * 4 + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }
    stored
}

/// Restores a block into `raw`, whose length is that of the block. Returns the fault of bytes that no encoder makes.
pub fn decode(codec: Codec, width: u8, stored: &[u8], raw: &mut [u8]) -> Result<(), &'static str> {
    if codec == Codec::Raw {
        if stored.len() != raw.len() {
            return Err("a raw block of another length");
        }
        raw.copy_from_slice(stored);
        return Ok(());
    }
    if let Codec::Int8(real) = codec {
        return int8::decode(real, stored, raw);
    }
    let chunks = raw.len().div_ceil(CHUNK);
    let (table, mut rest) = stored.split_at_checked(chunks * 4).ok_or("a table that is cut off")?;
    let (table, _) = table.as_chunks::<4>();
    let mut gathered = vec![0; CHUNK.min(raw.len())];
    for (place, length) in raw.chunks_mut(CHUNK).zip(table) {
        let length = u32::from_le_bytes(*length);
        let bytes = (length & !RAW) as usize;
        let (chunk, after) = rest.split_at_checked(bytes).ok_or("a chunk that is cut off")?;
        rest = after;
        if length & RAW != 0 {
            if bytes != place.len() {
                return Err("a raw chunk of another length");
            }
            place.copy_from_slice(chunk);
            continue;
        }
        let place_bytes = place.len();
        let to = match codec {
            Codec::Bits => gathered.get_mut(..place.len()).unwrap_or_default(),
            _ => &mut *place,
        };
        if lz4::decompress(chunk, to) != Some(place_bytes) {
            return Err("a chunk that LZ4 cannot read");
        }
        if codec == Codec::Bits {
            bits::scatter(width, &gathered, place);
        }
    }
    if rest.is_empty() { Ok(()) } else { Err("bytes behind the last chunk") }
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
                    let mut back = vec![1; len];
                    assert_eq!(decode(codec, width, &stored, &mut back), Ok(()));
                    assert!(back == raw, "{codec:?} width {width} length {len}");
                }
            }
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
        let mut back = vec![0; raw.len()];
        for at in 0..stored.len().min(600) {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x55;
            // Other bytes may come out: the checksum of a block finds these.
            let _ = decode(Codec::Bits, 2, &damaged, &mut back);
            assert!(decode(Codec::Bits, 2, &stored[..at], &mut back).is_err());
        }
        let longer = [stored.clone(), vec![0]].concat();
        assert!(decode(Codec::Bits, 2, &longer, &mut back).is_err());
        assert!(decode(Codec::Raw, 2, &raw[1..], &mut back).is_err());
    }
}
