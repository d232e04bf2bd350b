//! GB/s of encoding and decoding a megabyte of weights in bf16 and f32, the best of many passes.

use std::time::Instant;

use sconce_store::codec::{Codec, decode, encode_as};
use sconce_tensor::rng::Rng;

fn best(bytes: usize, mut work: impl FnMut()) -> f64 {
    let pass = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    bytes as f64 / (0..200).map(pass).fold(f64::MAX, f64::min) / 1e9
}

fn main() {
    let rng = Rng::new(1, "weights", 0);
    let wide: Vec<u8> = (0..1 << 18).flat_map(|i| (0.05 * rng.normal(i)).to_le_bytes()).collect();
    let high = |i| ((0.05 * rng.normal(i)).to_bits() >> 16) as u16;
    let half: Vec<u8> = (0..1 << 19).flat_map(|i| high(i).to_le_bytes()).collect();
    // Counts and flags of frames, most of which repeat.
    let frame = |i: u64| if rng.below(i, 8) > 0 { (i / 400) as u32 } else { rng.u32(i) >> 28 };
    let frames: Vec<u8> = (0..1 << 18).flat_map(|i| frame(i).to_le_bytes()).collect();
    for (name, width, raw) in [("bf16", 2, half), ("f32", 4, wide), ("u32", 4, frames)] {
        for codec in [Codec::Lz4, Codec::Bits] {
            let stored = encode_as(codec, width, &raw);
            let mut back = vec![0; raw.len()];
            let ratio = raw.len() as f64 / stored.len() as f64;
            let there = best(raw.len(), || drop(encode_as(codec, width, &raw)));
            let here = best(raw.len(), || decode(codec, width, &stored, &mut back).unwrap());
            println!(
                "{name} {codec:?}: ratio {ratio:.2}, encode {there:.2}, decode {here:.2} GB/s"
            );
        }
    }
}
