//! Worker threads that share out numeric work.
//!
//! Work is cut into shards whose number and borders depend on the work alone, not on the number of threads, and sums
//! across shards are added in a fixed order, so results are bit-identical for any number of threads. A shard runs on
//! one thread.
//!
//! The calling thread takes shards too, and waits only for threads that have taken a shard. If all workers are busy, it
//! runs every shard itself.
//!
//! Every thread has a [`Class`], and each class has its own workers. Background threads yield to all others
//! ([`Priority`]), so a foreground thread must never wait for one: neither for a shard nor for a lock. A thread that
//! has lowered its priority cannot raise it again without a privilege. Afterwards the thread must serve no caller and
//! start no thread that does.

mod affinity;
mod priority;
mod workers;

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

pub use priority::Priority;
use workers::Workers;

use crate::{Error, Result};

/// The largest number of threads that [`set_threads`] accepts; a larger number is probably a typo.
pub const MAX_THREADS: usize = 4096;

/// The class of a thread's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Class {
    /// Work that a caller waits for, such as a decision or a forward pass.
    #[default]
    Foreground,
    /// Training, evaluation and import, and the threads that read files for them.
    Background,
}

/// The workers of a class. The lock is held only to clone or replace the `Arc`, never while a thread computes or waits.
type Shared = RwLock<Option<Arc<Workers>>>;

static FOREGROUND: Shared = RwLock::new(None);
static BACKGROUND: Shared = RwLock::new(None);

thread_local! {
    /// Whether this thread runs all shards of its work itself.
    static SERIAL: Cell<bool> = const { Cell::new(false) };
    static CLASS: Cell<Class> = const { Cell::new(Class::Foreground) };
}

impl Class {
    /// The class of the current thread. A new thread is in the foreground.
    pub fn current() -> Self {
        CLASS.get()
    }

    /// Puts the current thread into this class until it ends. Call it first on a new thread. A background thread lowers
    /// its priority. In either class the thread may run on all processors of the process.
    pub fn enter(self) {
        self.enter_at_full_priority();
        if self == Class::Background {
            priority::give_way();
        }
    }

    /// Puts the current thread into this class without a change of priority. For background threads that drive a card:
    /// callers wait for locks that these threads hold.
    pub fn enter_at_full_priority(self) {
        affinity::release();
        CLASS.set(self);
    }

    /// Wraps `work` for another thread, so that it runs in the class of the current thread.
    pub fn inherit<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let class = Class::current();
        move || {
            class.enter_at_full_priority();
            work()
        }
    }

    fn shared(self) -> &'static Shared {
        match self {
            Class::Foreground => &FOREGROUND,
            Class::Background => &BACKGROUND,
        }
    }
}

/// Sets the priority of background threads that start from now on.
pub fn set_background(priority: Priority) {
    priority::set(priority);
}

/// Whether this system grants the priority set for background threads.
pub fn gives_way() -> bool {
    priority::is_given()
}

/// The number of logical processors that this process may use, even if the calling thread is bound to one of them.
pub fn available() -> usize {
    static N: OnceLock<usize> = OnceLock::new();
    let count = || std::thread::available_parallelism().map_or(1, usize::from);
    let unbound = move || {
        affinity::release();
        count()
    };
    *N.get_or_init(|| {
        let counted = std::thread::Builder::new().name("sconce-count".into()).spawn(unbound);
        counted.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(count)
    })
}

/// Limits candle's own thread pools to one thread, because shards of this pool run in parallel instead. Candle runs
/// elementwise operations of at least 64 K values on its own pool, whose idle threads spin; on a busy machine the
/// spinning took most of a training step.
///
/// Call this function once, as early as possible. The limit affects only the pools inside this library.
pub fn keep_libraries_single_threaded() {
    // Fails only if the pool exists already; its size is then fixed.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(1).build_global();
    // SAFETY: other threads may read the environment meanwhile only through Rust, which takes a lock. Erlang keeps its
    // own copy of the variables. The remaining risk is a concurrent `getenv` in foreign code while the library is
    // loaded. That call is unsafe only if the C library frees or moves the list being read. glibc before 2.41 does so
    // if other code has added a variable before; the list that a process starts with is copied and stays. Candle has no
    // other way to set the number of threads.
    unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    // Creates the pool now, so that candle does not read the environment later.
    candle_core::utils::barrier_pool();
}

/// Sets the number of threads of the caller's class, including the caller. The default is [`available`]. Work in flight
/// finishes on the threads that it began on.
pub fn set_threads(threads: usize) -> Result<()> {
    let class = Class::current();
    let workers = Arc::new(build(threads, class)?);
    let before = class.shared().write().unwrap_or_else(|e| e.into_inner()).replace(workers);
    // The old workers end here, after the lock is released, or with the last work that uses them.
    drop(before);
    Ok(())
}

/// The number of threads of the caller's class, including the caller.
pub fn threads() -> usize {
    let workers = Class::current().shared().read().unwrap_or_else(|e| e.into_inner());
    workers.as_ref().map_or_else(available, |workers| workers.threads() + 1)
}

/// Whether shards of work from this thread may run in parallel.
pub fn is_shared() -> bool {
    !SERIAL.get() && threads() > 1
}

/// The workers of the caller's class. The first call starts them. Returns no workers if no threads can be started.
fn share() -> Arc<Workers> {
    let class = Class::current();
    if let Some(workers) = &*class.shared().read().unwrap_or_else(|e| e.into_inner()) {
        return workers.clone();
    }
    let mut workers = class.shared().write().unwrap_or_else(|e| e.into_inner());
    workers.get_or_insert_with(|| Arc::new(build(available(), class).unwrap_or_default())).clone()
}

fn build(threads: usize, class: Class) -> Result<Workers> {
    if threads > MAX_THREADS {
        return Err(Error::out_of_range("threads", threads as f64, 1.0, MAX_THREADS as f64));
    }
    // 0 stands for all available processors.
    let threads = if threads == 0 { available() } else { threads };
    Workers::new(threads - 1, class)
        .map_err(|e| Error::Unavailable { what: "threads".into(), reason: e.to_string() })
}

/// Runs `work(shard)` for every shard, in parallel on the workers if there is more than one.
pub fn for_each(shards: usize, work: impl Fn(usize) + Sync + Send) {
    // Inside a shard and inside `serial`, work stays on its thread.
    if shards > 1 && !SERIAL.get() {
        let workers = share();
        if workers.threads() > 0 {
            return serial(|| workers.run(shards, &work));
        }
    }
    (0..shards).for_each(work);
}

/// Runs `work` with all its shards on the calling thread. Slower, but never waits for another thread. The results are
/// the same.
pub fn serial<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            SERIAL.set(self.0);
        }
    }
    let _before = Before(SERIAL.replace(true));
    work()
}

/// Runs `work(first, rows)` for shards of at most `per_shard` rows of `width` values each. `first` is the index of the
/// shard's first row.
pub fn for_each_rows<T: Send>(
    data: &mut [T],
    width: usize,
    per_shard: usize,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    let shard = (width * per_shard).max(1);
    if (1..=shard).contains(&data.len()) {
        return work(0, data);
    }
    hand_out(data.chunks_mut(shard).collect(), |i, rows| work(i * per_shard, rows));
}

/// [`for_each_rows`] with a partial sum per shard, which starts as `zero()`. Returns the partial sums in the order of
/// the shards, at least one.
pub fn sum_rows<T: Send, P: Send>(
    data: &mut [T],
    width: usize,
    per_shard: usize,
    zero: impl Fn() -> P,
    work: impl Fn(usize, &mut [T], &mut P) + Sync + Send,
) -> Vec<P> {
    let shards = data.chunks_mut((width * per_shard).max(1));
    let mut parts: Vec<P> = (0..shards.len().max(1)).map(|_| zero()).collect();
    let shards = shards.zip(&mut parts).collect();
    hand_out(shards, |i, (rows, part)| work(i * per_shard, rows, part));
    parts
}

/// Cuts buffers `[batch, width]` of several widths into the same shards of at most `rows` rows, and runs `work` on each
/// shard with its range of rows.
pub fn for_each_shard<const N: usize>(
    batch: usize,
    rows: usize,
    buffers: [(&mut [f32], usize); N],
    work: impl Fn(Range<usize>, [&mut [f32]; N]) + Sync + Send,
) {
    hand_out(cut(batch, rows, buffers), |i, shard| {
        if let Ok(shard) = shard.try_into() {
            work(i * rows..(i * rows + rows).min(batch), shard);
        }
    });
}

/// [`for_each_shard`] with a partial sum per shard, as in [`sum_rows`].
pub fn sum_shards<const N: usize, P: Send>(
    batch: usize,
    rows: usize,
    buffers: [(&mut [f32], usize); N],
    zero: impl Fn() -> P,
    work: impl Fn(Range<usize>, [&mut [f32]; N], &mut P) + Sync + Send,
) -> Vec<P> {
    let shards = cut(batch, rows, buffers);
    let mut parts: Vec<P> = (0..shards.len().max(1)).map(|_| zero()).collect();
    hand_out(shards.into_iter().zip(&mut parts).collect(), |i, (shard, part)| {
        if let Ok(shard) = shard.try_into() {
            work(i * rows..(i * rows + rows).min(batch), shard, part);
        }
    });
    parts
}

fn cut<const N: usize>(
    batch: usize,
    rows: usize,
    buffers: [(&mut [f32], usize); N],
) -> Vec<Vec<&mut [f32]>> {
    let mut shards: Vec<Vec<&mut [f32]>> =
        (0..batch.div_ceil(rows)).map(|_| Vec::with_capacity(N)).collect();
    for (buffer, width) in buffers {
        let mut rest = buffer;
        for (i, shard) in shards.iter_mut().enumerate() {
            let count = rows.min(batch - i * rows) * width;
            let (head, tail) = rest.split_at_mut(count);
            shard.push(head);
            rest = tail;
        }
    }
    shards
}

/// Runs `work(index, shard)` once for each shard, in parallel as [`for_each`] does.
pub fn hand_out<S: Send>(shards: Vec<S>, work: impl Fn(usize, S) + Sync + Send) {
    if shards.len() == 1 {
        return shards.into_iter().for_each(|shard| work(0, shard));
    }
    let cells: Vec<_> = shards.into_iter().map(|s| Mutex::new(Some(s))).collect();
    for_each(cells.len(), |i| {
        let shard = cells[i].lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(shard) = shard {
            work(i, shard);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_row_is_visited_once_with_its_own_index() {
        let mut data = vec![0usize; 1003 * 3];
        for_each_rows(&mut data, 3, 64, |first, rows| {
            for (i, row) in rows.chunks_mut(3).enumerate() {
                row.iter_mut().for_each(|v| *v += first + i);
            }
        });
        assert!(data.chunks(3).enumerate().all(|(i, row)| row == [i; 3]));
    }
    #[test]
    fn nested_shards_finish_while_the_number_of_threads_changes() {
        let (sender, ended) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let visits = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| (0..200).for_each(|i| drop(set_threads(2 + i % 2))));
                for _ in 0..2 {
                    scope.spawn(|| {
                        let inner = |_| for_each(4, |_| _ = visits.fetch_add(1, Relaxed));
                        (0..200).for_each(|_| for_each(4, inner));
                    });
                }
            });
            sender.send(visits.into_inner())
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(2 * 200 * 16));
    }

    #[test]
    fn serial_work_stays_on_its_thread_also_after_a_panic_inside() {
        let caller = std::thread::current().id();
        let elsewhere = |shards| {
            let elsewhere = AtomicUsize::new(0);
            for_each(shards, |_| {
                let moved = std::thread::current().id() != caller;
                elsewhere.fetch_add(usize::from(moved), Relaxed);
            });
            elsewhere.into_inner()
        };
        assert_eq!(serial(|| serial(|| elsewhere(64)) + elsewhere(64)), 0);
        assert!(std::panic::catch_unwind(|| serial(|| panic!("inside"))).is_err());
        assert!(!SERIAL.get());
    }

    /// A lock for tests that set the number of background threads.
    fn alone() -> std::sync::MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the result of `work` on a new thread of a class.
    fn of_class<T: Send>(class: Class, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                class.enter();
                work()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn the_numbers_of_background_and_foreground_threads_are_independent() {
        // More threads than any other test sets for the foreground.
        let many = available() + 7;
        let callers = of_class(Class::Background, || {
            let _alone = alone();
            let before = threads();
            set_threads(many).unwrap();
            assert_eq!(threads(), many);
            let callers = of_class(Class::Foreground, threads);
            set_threads(before).unwrap();
            callers
        });
        assert!(callers < many);
    }

    #[test]
    fn a_caller_has_workers_while_all_background_threads_are_busy() {
        let (held, release) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
        of_class(Class::Background, || {
            let _alone = alone();
            set_threads(2).unwrap();
            std::thread::scope(|scope| {
                let busy = || {
                    for_each(2, |_| {
                        held.wait();
                        release.wait();
                    });
                };
                scope.spawn(Class::inherit(busy));
                held.wait();
                of_class(Class::Foreground, || {
                    let workers = Workers::new(1, Class::Foreground).unwrap();
                    let both = std::sync::Barrier::new(2);
                    // Two shards that wait for each other: one thread alone would never finish.
                    serial(|| workers.run(2, &|_| _ = both.wait()));
                });
                release.wait();
            });
        });
    }

    #[test]
    fn inherited_work_runs_in_the_class_of_the_thread_that_wrapped_it() {
        let inherited = of_class(Class::Background, || {
            let work = Class::inherit(Class::current);
            std::thread::spawn(work).join().unwrap()
        });
        assert_eq!(inherited, Class::Background);
        assert_eq!(Class::current(), Class::Foreground);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn foreground_workers_keep_their_priority_after_background_threads_have_lowered_theirs() {
        let nice = |class| {
            let workers = Workers::new(1, class).unwrap();
            let seen = Mutex::new(vec![]);
            let both = std::sync::Barrier::new(2);
            workers.run(2, &|_| {
                both.wait();
                seen.lock().unwrap().push(priority::nice());
            });
            seen.into_inner().unwrap()
        };
        let background = of_class(Class::Background, || {
            let _alone = alone();
            set_threads(2).unwrap();
            nice(Class::Background)
        });
        assert_eq!(background, [19; 2]);
        let here = priority::nice();
        assert_eq!(of_class(Class::Foreground, || nice(Class::Foreground)), [here; 2]);
    }

    #[test]
    fn too_many_threads_are_refused() {
        assert!(set_threads(MAX_THREADS + 1).is_err());
    }
}
