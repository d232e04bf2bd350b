//! Measurements of plans: the memory of work on a thread of its own, and lines through two measurements.

use sconce_tensor::memory::Meter;
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result, pool};

/// Bytes as a linear function of a size, from two measurements.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    sizes: [usize; 2],
    bytes: [u64; 2],
}

impl Line {
    /// The line through the bytes of two sizes, the smaller one first.
    pub fn through(sizes: [usize; 2], bytes: [u64; 2]) -> Self {
        Line { sizes, bytes }
    }

    /// The line through two measurements.
    ///
    /// # Errors
    /// Those of `bytes`.
    pub fn measure(sizes: [usize; 2], mut bytes: impl FnMut(usize) -> Result<u64>) -> Result<Self> {
        Ok(Line { sizes, bytes: [bytes(sizes[0])?, bytes(sizes[1])?] })
    }

    /// Bytes of a size.
    pub fn at(&self, size: usize) -> u64 {
        let Line { sizes: [few, more], bytes: [low, high] } = *self;
        let slope = match few == more {
            true => high as f64 / more.max(1) as f64,
            false => (high as f64 - low as f64) / (more as f64 - few as f64),
        };
        (high as f64 + slope * (size as f64 - more as f64)).max(0.0) as u64
    }
}

/// Halves `size` until its bytes are within the limit.
///
/// # Errors
/// `OverLimit` with `what` if a size of 1 already exceeds the limit, and those of `bytes`.
pub fn halved(
    what: &str,
    mut size: usize,
    limit: Option<u64>,
    mut bytes: impl FnMut(usize) -> Result<u64>,
) -> Result<usize> {
    let Some(limit) = limit else { return Ok(size) };
    loop {
        let bytes = bytes(size)?;
        match size {
            _ if bytes <= limit => return Ok(size),
            0 | 1 => return Err(Error::OverLimit { what: what.into(), bytes, limit }),
            _ => size = size.div_ceil(2),
        }
    }
}

/// Runs `work` on a new thread, without the pool, so that neither the number of threads nor scratch of earlier work
/// counts.
///
/// # Errors
/// Those of `work`, `Panic` if it panics, and `Unavailable` without a thread.
pub fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        // The thread needs a large stack: a graph is walked and dropped recursively.
        let thread = std::thread::Builder::new().stack_size(64 << 20);
        let thread = thread.spawn_scoped(scope, Class::inherit(|| pool::serial(work)));
        let thread = thread
            .map_err(|e| Error::Unavailable { what: "a thread".into(), reason: e.to_string() })?;
        thread.join().unwrap_or_else(|payload| Err(Error::of_panic(payload)))
    })
}

/// Peak bytes that `work` allocates and frees again.
///
/// # Errors
/// Those of `work`, and `Unavailable` in a program that does not count its memory.
pub fn passing(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let meter = Meter::start()?;
    work()?;
    Ok(meter.passing())
}
