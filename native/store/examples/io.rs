//! Reads 768 KB blocks of a file of 256 MB in several ways, and prints GB/s and the bytes that the device read: `io FOLDER [GROUP]`.
//! With a memory cgroup the program enters it once the file is written.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sconce_tensor::rng::Rng;

const BLOCK: usize = 768 << 10;
const BLOCKS: u64 = (256 << 20) / BLOCK as u64;
const ALIGNED: usize = 4096;
const TURNS: usize = 5;

/// GB/s of reading blocks in an order by threads.
fn rate(file: &File, order: &[u64], threads: usize) -> f64 {
    let next = AtomicUsize::new(0);
    let read = || {
        let mut memory = vec![0; BLOCK + ALIGNED];
        let begin = memory.as_ptr().align_offset(ALIGNED);
        while let Some(at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let to = &mut memory[begin..begin + BLOCK];
            file.read_exact_at(to, at * BLOCK as u64).unwrap();
        }
    };
    let began = Instant::now();
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(read))));
    order.len() as f64 * BLOCK as f64 / began.elapsed().as_secs_f64() / 1e9
}

/// MB that the disk of a file has read.
fn device_mb(file: &File) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let device = file.metadata().unwrap().dev();
    let path = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
    let stat = sconce_tensor::fs::kernel(Path::new(&path)).unwrap_or_default();
    let sectors = stat.split_whitespace().nth(2).and_then(|n| n.parse::<f64>().ok());
    sectors.unwrap_or_default() * 512.0 / 1e6
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let path = Path::new(&arguments[1]).join("io.bin");
    let rng = Rng::new(1, "io", 0);
    let content: Vec<u8> =
        (0..BLOCKS * BLOCK as u64 / 4).flat_map(|at| rng.u32(at).to_le_bytes()).collect();
    std::fs::write(&path, content).unwrap();
    if let Some(group) = arguments.get(2) {
        let id = std::process::id();
        std::fs::write(Path::new(group).join("cgroup.procs"), id.to_string()).unwrap();
    }
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
    let files =
        [("buffered", open(0)), ("without read-ahead", open(0)), ("direct", open(libc::O_DIRECT))];
    // SAFETY: the descriptor is that of an open file.
    unsafe { libc::posix_fadvise(files[1].1.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let orders: [(&str, Vec<u64>); 2] = [
        ("sequential", (0..BLOCKS).collect()),
        ("random", (0..BLOCKS).map(|at| rng.below(at, BLOCKS)).collect()),
    ];
    let mut rows: BTreeMap<(&str, usize, &str), Vec<[f64; 2]>> = BTreeMap::new();
    for _ in 0..TURNS {
        for (name, order) in &orders {
            for threads in [1, 2, 4] {
                for (kind, file) in &files {
                    std::process::Command::new("sync").status().unwrap();
                    let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
                    std::thread::sleep(Duration::from_millis(200));
                    let before = device_mb(file);
                    let own = [rate(file, order, threads), device_mb(file) - before];
                    rows.entry((name, threads, kind)).or_default().push(own);
                }
            }
        }
    }
    println!("order       threads  reads               GB/s: least, median, most    device MB");
    for ((name, threads, kind), mut own) in rows {
        own.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [least, median, most] = [0, TURNS / 2, TURNS - 1].map(|at| own[at][0]);
        let mb = own.iter().map(|own| own[1]).fold(f64::MAX, f64::min);
        println!("{name:12}{threads:7}  {kind:20}{least:5.2} {median:6.2} {most:6.2} {mb:24.0}");
    }
    std::fs::remove_file(&path).unwrap();
}
