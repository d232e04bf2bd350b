//! Measures the coverage of inputs in instrumented builds. `fuzz/long` builds with LLVM's coverage pass, which
//! stable compilers have. The pass needs only two runtime functions, `extern "C"` below.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, slice};

use sconce_tensor::digest::sha256;

use crate::child::{Outcome, Reader, Verdict, tell};
use crate::rng::Rng;
use crate::runner::{Job, kept};
use crate::targets::Target;

/// Address and length of the counters of each module.
static COUNTERS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Registers the counters of a module. Each instrumented module calls this function before `main`.
///
/// # Safety
/// `start..stop` must be the module's counters, which must live as long as the process.
// SAFETY: no other function of this name is linked in, because the compiler's own runtime is not linked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let (start, stop) = (start as usize, stop as usize);
    let mut counters = COUNTERS.lock().unwrap_or_else(|e| e.into_inner());
    if stop > start && !counters.contains(&(start, stop - start)) {
        counters.push((start, stop - start));
    }
}

/// Receives the code addresses of the counters, and ignores them.
// SAFETY: no other function of this name is linked in.
#[unsafe(no_mangle)]
pub extern "C" fn __sanitizer_cov_pcs_init(_start: *const usize, _stop: *const usize) {}

/// Coverage of all inputs so far.
struct Seen {
    /// For each counter, a bit mask of the classes of its counts so far.
    classes: Vec<u8>,
    /// Count of classes seen, summed over all counters.
    features: usize,
}

impl Seen {
    fn new() -> Self {
        let counters = COUNTERS.lock().unwrap_or_else(|e| e.into_inner());
        let length = counters.iter().map(|(_, length)| length).sum();
        Seen { classes: vec![0; length], features: 0 }
    }

    /// Adds the classes of the current counts, and resets the counters. Returns the count of new features.
    fn add(&mut self) -> usize {
        let counters = COUNTERS.lock().unwrap_or_else(|e| e.into_inner());
        let mut classes = self.classes.iter_mut();
        let mut new = 0;
        for (start, length) in counters.iter() {
            // SAFETY: the module registered this range of counters. They are static bytes that instrumented
            // code increments. A concurrent increment may be lost, just as between two instrumented threads.
            let counts = unsafe { slice::from_raw_parts_mut(*start as *mut u8, *length) };
            for (count, classes) in counts.iter_mut().zip(classes.by_ref()) {
                if *count != 0 {
                    let class = class(*count);
                    new += usize::from(*classes & class == 0);
                    *classes |= class;
                    *count = 0;
                }
            }
        }
        self.features += new;
        new
    }
}

/// The class of a count: 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, or more.
fn class(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128.. => 128,
    }
}

/// Interval of the reports to the parent.
const EVERY: Duration = Duration::from_secs(10);

/// Mutates the inputs that reached new code, until the end of the job's range, in seconds since 1970. If an
/// input kills the child, the next child continues after that input. Inputs that reach new code are written
/// to `found/`, and are among the first inputs of the next run.
pub fn explore(job: &Job, seed: u64, seeds: &[Vec<u8>], reader: &Reader) {
    let (target, begin) = (job.target, Instant::now());
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("found").join(target.name);
    fs::create_dir_all(&found).expect("a folder for new inputs");
    let mut pool = Pool { seen: Seen::new(), inputs: vec![], index: job.range.start };
    pool.seen.add();
    for input in beginnings(target, seeds, &found) {
        pool.read(reader, input);
    }
    let first = pool.seen.features;
    let mut rng = Rng::new(target.name, seed, pool.index);
    let mut told = Instant::now();
    while now() < job.range.end && !pool.inputs.is_empty() {
        let mut input = target.mutant(&mut rng, &pool.inputs);
        if rng.one_in(3) {
            (target.mutate)(&mut rng, &mut input);
        }
        // Bounds the input's size: small inputs run faster, so more of them are tried.
        input.truncate(1 << 18);
        if pool.read(reader, input.clone()) {
            let name: String = sha256([&input]).chars().take(16).collect();
            let _ = fs::write(found.join(name), &input);
        }
        if told.elapsed() > EVERY {
            tell(pool.line(first, begin.elapsed()));
            told = Instant::now();
        }
    }
    tell(pool.line(first, begin.elapsed()));
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The first inputs: the target's seeds, inputs that broke the target, and inputs found in earlier runs.
fn beginnings(target: &Target, seeds: &[Vec<u8>], found: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(found).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = kept(target).into_iter().chain(entries);
    seeds.iter().cloned().chain(files.filter_map(|path| fs::read(path).ok())).collect()
}

struct Pool {
    seen: Seen,
    inputs: Vec<Vec<u8>>,
    index: u64,
}

impl Pool {
    /// Runs an input. Returns whether the input reached new code. An input that breaks the target is not mutated
    /// further.
    fn read(&mut self, reader: &Reader, input: Vec<u8>) -> bool {
        let Outcome { verdict, .. } = reader.read(self.index, &input);
        self.index += 1;
        let new = self.seen.add() > 0 && !matches!(verdict, Verdict::Broke(_));
        if new {
            self.inputs.push(input);
        }
        new
    }

    fn line(&self, first: usize, elapsed: Duration) -> String {
        let (features, inputs) = (self.seen.features, self.inputs.len());
        let (counters, reads) = (self.seen.classes.len(), self.index);
        let reached = self.seen.classes.iter().filter(|classes| **classes != 0).count();
        format!(
            "cover {} s: {reads} inputs, {reached} of {counters} places, {features} features ({first} at first), pool {inputs}",
            elapsed.as_secs()
        )
    }
}
