//! Reads 256 blocks of 1 MB of weights in bf16 in several orders, and prints GB/s: `traces FOLDER RAM_MB COMPRESSED_MB SECONDS [GROUP]`.
//! With a memory cgroup the program enters it once its data lie on disk.

use std::path::Path;
use std::time::Instant;

use sconce_store::{Dtype, Store, StoreOptions};
use sconce_tensor::rng::Rng;

const BLOCKS: u64 = 256;
const BYTES: usize = 1 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments[at].parse::<f64>().unwrap();
    let path = Path::new(&arguments[1]);
    let options = StoreOptions {
        ram: (number(2) * 1048576.0) as u64,
        compressed: (number(3) * 1048576.0) as u64,
        ..StoreOptions::default()
    };
    let seconds = number(4);
    let store = Store::open(path, options.clone()).unwrap();
    let rng = Rng::new(1, "weights", 0);
    let base: Vec<u8> = (0..BYTES as u64 / 2)
        .flat_map(|i| (((0.05 * rng.normal(i)).to_bits() >> 16) as u16).to_le_bytes())
        .collect();
    let bf16 = Dtype::named("bf16").unwrap();
    for at in 0..BLOCKS as usize {
        let mut block = base.clone();
        block.rotate_left(2 * 1021 * at);
        store.put(&format!("{at:03}"), bf16, &[BYTES as u64 / 2], &block).unwrap();
    }
    store.close().unwrap();
    drop(store);
    if let Some(group) = arguments.get(5) {
        let id = std::process::id();
        std::fs::write(Path::new(group).join("cgroup.procs"), id.to_string()).unwrap();
    }
    let orders: [(&str, Vec<u64>); 4] = [
        ("sequential", (0..BLOCKS).collect()),
        ("strided 3", (0..BLOCKS).map(|n| 3 * n % BLOCKS).collect()),
        ("periodic", (0..96).map(|n| rng.below(7000 + n, BLOCKS)).collect()),
        ("random", (0..4096).map(|n| rng.below(9000 + n, BLOCKS)).collect()),
    ];
    for (name, order) in orders {
        std::process::Command::new("sync").status().unwrap();
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
        let store = Store::open(path, options.clone()).unwrap();
        let (began, mut done, mut times) = (Instant::now(), 0, vec![]);
        while began.elapsed().as_secs_f64() < seconds {
            let start = Instant::now();
            let at = order[done % order.len()];
            let name = format!("{at:03}");
            if store.resident(&name, None, 0).unwrap().is_none() {
                store.read(&name, None, 0).unwrap();
            }
            times.push(start.elapsed().as_secs_f64() * 1e6);
            done += 1;
        }
        let rate = done as f64 * BYTES as f64 / began.elapsed().as_secs_f64() / 1e9;
        times.sort_by(f64::total_cmp);
        let counts = store.stats().counts;
        println!(
            "{name:12} {rate:.2} GB/s, p50 {:.0} us, p99 {:.0} us, {counts:?}",
            times[done / 2],
            times[done * 99 / 100]
        );
    }
}
