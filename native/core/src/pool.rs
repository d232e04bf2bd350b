//! The threads of the native side.
//!
//! Work is cut into shards whose number and borders depend on the work alone, never on the number
//! of threads, and nothing is reduced across shards but in a fixed order: one thread and ten give
//! the same bits. What runs inside a shard is single-threaded.

use std::sync::{OnceLock, RwLock};

use rayon::ThreadPool;
use rayon::prelude::*;

use crate::{Error, Result};

static POOL: RwLock<Option<ThreadPool>> = RwLock::new(None);

/// Logical processors this process may use.
pub fn available() -> usize {
    static N: OnceLock<usize> = OnceLock::new();
    *N.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Keeps the pools on which candle runs some of its loops to one thread: shards of ours run beside
/// each other instead. Its elementwise operations of 64 K numbers and more have a pool of their own,
/// whose threads spin while they wait; on a busy machine most of a training step went by in that.
///
/// To be called once, as early as the program can. The pools are those inside this library and no
/// other's of the process.
pub fn keep_libraries_single_threaded() {
    // It fails only where the pool exists already, and then nothing can be changed any more.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(1).build_global();
    // SAFETY: a concurrent `getenv` of another library is the danger, if the C library then frees
    // the list that is being read. glibc and musl copy the list they got from the kernel at the
    // first change and never free it; Rust's own readers take a lock; Erlang's work on a copy.
    unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    // Made now, it never looks at the environment again.
    candle_core::utils::barrier_pool();
}

/// Sets the number of threads; the default is [`available`]. Waits for work that is under way.
pub fn set_threads(threads: usize) -> Result<()> {
    let pool = build(threads)?;
    *POOL.write().unwrap_or_else(|e| e.into_inner()) = Some(pool);
    Ok(())
}

pub fn threads() -> usize {
    let pool = POOL.read().unwrap_or_else(|e| e.into_inner());
    pool.as_ref().map_or_else(available, ThreadPool::current_num_threads)
}

fn build(threads: usize) -> Result<ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("sconce-{i}"))
        .build()
        .map_err(|e| Error::Unavailable { what: "threads".into(), reason: e.to_string() })
}

/// Runs `work(shard)` for every shard, on the pool if there is more than one.
pub fn for_each(shards: usize, work: impl Fn(usize) + Sync + Send) {
    if shards <= 1 || threads() == 1 || rayon::current_thread_index().is_some() {
        return (0..shards).for_each(work);
    }
    let mut pool = POOL.read().unwrap_or_else(|e| e.into_inner());
    if pool.is_none() {
        drop(pool);
        if set_threads(available()).is_err() {
            return (0..shards).for_each(work);
        }
        pool = POOL.read().unwrap_or_else(|e| e.into_inner());
    }
    match pool.as_ref() {
        Some(pool) => pool.install(|| (0..shards).into_par_iter().for_each(work)),
        None => (0..shards).for_each(work),
    }
}

/// Hands out `rows` rows of `width` in shards of at most `per_shard` rows.
pub fn for_each_rows<T: Send>(
    data: &mut [T],
    width: usize,
    per_shard: usize,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    let shards: Vec<_> = data.chunks_mut((width * per_shard).max(1)).collect();
    let cells: Vec<_> = shards.into_iter().map(|s| std::sync::Mutex::new(Some(s))).collect();
    for_each(cells.len(), |i| {
        let shard = cells[i].lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(shard) = shard {
            work(i * per_shard, shard);
        }
    });
}

#[cfg(test)]
mod tests {
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
}
