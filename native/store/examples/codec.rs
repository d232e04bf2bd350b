//! GB/s of encoding and decoding a megabyte in several types, the best of many passes; the time of a megabyte of weights in
//! bf16 from RAM to compressed RAM and back; and, with a folder, that of a
//! megabyte from disk, of which the system holds nothing: `codec [FOLDER]`.

#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use sconce_store::codec::{Codec, decode, encode_as};
use sconce_store::{Dtype, Store, StoreOptions};
use sconce_tensor::rng::Rng;

/// Round trips, and reads from disk.
const TURNS: u64 = 2000;
const READS: u64 = 200;

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn best(bytes: usize, mut work: impl FnMut()) -> f64 {
    bytes as f64 / (0..200).map(|_| seconds(&mut work)).fold(f64::MAX, f64::min) / 1e9
}

fn print_times(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let [p50, p90, p99] = [50, 90, 99].map(|p| 1e3 * times[times.len() * p / 100]);
    println!("{what}: p50 {p50:.3}, p90 {p90:.3}, p99 {p99:.3} ms");
}

fn weights(seed: u64) -> Vec<u8> {
    let rng = Rng::new(seed, "weights", 0);
    let high = |i| ((0.05 * rng.normal(i)).to_bits() >> 16) as u16;
    (0..1 << 19).flat_map(|i| high(i).to_le_bytes()).collect()
}

fn main() {
    let rng = Rng::new(1, "weights", 0);
    let wide: Vec<u8> = (0..1 << 18).flat_map(|i| (0.05 * rng.normal(i)).to_le_bytes()).collect();
    let half = weights(1);
    // Counts and flags of frames, most of which repeat.
    let frame = |i: u64| if rng.below(i, 8) > 0 { (i / 400) as u32 } else { rng.u32(i) >> 28 };
    let frames: Vec<u8> = (0..1 << 18).flat_map(|i| frame(i).to_le_bytes()).collect();
    for (name, width, raw) in [("bf16", 2, &half), ("f32", 4, &wide), ("u32", 4, &frames)] {
        for codec in [Codec::Lz4, Codec::Bits] {
            let stored = encode_as(codec, width, raw);
            let ratio = raw.len() as f64 / stored.len() as f64;
            let there = best(raw.len(), || drop(encode_as(codec, width, raw)));
            let here = best(raw.len(), || drop(decode(codec, width, &stored, raw.len()).unwrap()));
            println!(
                "{name} {codec:?}: ratio {ratio:.2}, encode {there:.2}, decode {here:.2} GB/s"
            );
        }
    }
    let mut parts = [vec![], vec![], vec![]];
    for _ in 0..TURNS {
        let mut stored = vec![];
        let there = seconds(|| stored = encode_as(Codec::Bits, 2, &half));
        let here = seconds(|| drop(decode(Codec::Bits, 2, &stored, half.len()).unwrap()));
        parts.iter_mut().zip([there, here, there + here]).for_each(|(all, own)| all.push(own));
    }
    for (what, times) in ["to compressed", "from compressed", "there and back"].iter().zip(parts) {
        print_times(&format!("1 MB {what}"), times);
    }
    if let Some(folder) = std::env::args().nth(1) {
        from_disk(Path::new(&folder));
    }
}

/// Reads a tensor of a megabyte each time, in no order, and drops it from the cache of the system before.
fn from_disk(folder: &Path) {
    let options = StoreOptions { ram: 0, compressed: 0, threads: 0, ..StoreOptions::default() };
    let store = Store::open(folder, options).unwrap();
    let base = weights(1);
    let bf16 = Dtype::named("bf16").unwrap();
    for at in 0..READS as usize {
        let mut block = base.clone();
        block.rotate_left(2 * 1021 * at);
        store.put(&format!("{at}"), bf16, &[1 << 19], &block).unwrap();
    }
    store.commit().unwrap();
    let rng = Rng::new(2, "order", 0);
    let mut times = vec![];
    for turn in 0..READS {
        for file in std::fs::read_dir(folder.join("packs")).unwrap() {
            let file = File::open(file.unwrap().path()).unwrap();
            // SAFETY: the descriptor is that of an open file.
            #[cfg(target_os = "linux")]
            unsafe {
                libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED)
            };
        }
        let name = rng.below(turn, READS).to_string();
        times.push(seconds(|| drop(store.read(&name, None, 0).unwrap())));
    }
    print_times("1 MB from disk", times);
}
