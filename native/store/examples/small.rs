//! Puts 100,000 tensors of 2 KB, 1,000 in each commit, and gets 20,000 of them in a random order: `small FOLDER`.

use std::path::Path;
use std::time::Instant;

use sconce_store::{Dtype, Store, StoreOptions};
use sconce_tensor::rng::Rng;

const COUNT: u64 = 100_000;
const COMMIT: u64 = 1000;
const READS: u64 = 20_000;

fn content(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes().repeat(256)
}

fn main() {
    let folder = std::env::args().nth(1).unwrap();
    let options = StoreOptions { ram: 64 << 20, compressed: 0, ..StoreOptions::default() };
    let store = Store::open(Path::new(&folder), options).unwrap();
    let f32s = Dtype::named("f32").unwrap();
    let (began, mut commits) = (Instant::now(), 0.0);
    for number in 0..COUNT {
        store.put(&format!("t{number:06}"), f32s, &[512], &content(number)).unwrap();
        if number % COMMIT == COMMIT - 1 {
            let start = Instant::now();
            store.commit().unwrap();
            commits += start.elapsed().as_secs_f64();
        }
    }
    let all = began.elapsed().as_secs_f64();
    println!("put {all:.2} s, of which commits {commits:.2} s");
    let rng = Rng::new(1, "small", 0);
    let mut times: Vec<[f64; 2]> = vec![];
    for at in 0..READS {
        let number = rng.below(at, COUNT);
        let (name, want) = (format!("t{number:06}"), content(number));
        let start = Instant::now();
        let resident = store.resident(&name, None, 0).unwrap();
        let in_ram = resident.is_some();
        let found = resident.unwrap_or_else(|| store.read(&name, None, 0).unwrap());
        times.push([start.elapsed().as_secs_f64() * 1e6, f64::from(u8::from(in_ram))]);
        assert!(found.parts[0].bytes() == want);
    }
    for (name, is) in [("in RAM", 1.0), ("not in RAM", 0.0)] {
        let mut own: Vec<f64> = times.iter().filter(|t| t[1] == is).map(|t| t[0]).collect();
        own.sort_by(f64::total_cmp);
        let at = |share: f64| own.get((own.len() as f64 * share) as usize).copied().unwrap_or(0.0);
        println!("{name}: {} reads, p50 {:.1} us, p99 {:.1} us", own.len(), at(0.5), at(0.99));
    }
}
