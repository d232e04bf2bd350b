//! Refusal of memory as an error, before and during work.
//!
//! 1. Work whose memory can be estimated calls [`room`] before the start.
//! 2. Large buffers are allocated by [`zeros`], [`repeated`], [`with_capacity`] and [`copied`]. If the system refuses a
//!    buffer, these functions unwind to [`caught`] or to another handler of panics. Forward and backward passes cannot
//!    return an error from the middle of a product, and an ordinary allocation failure would abort the process.
//!
//! Neither check changes any result.

use std::alloc::{Layout, alloc_zeroed};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::available::{Available, least};
use super::refused::Refused;
use crate::{Error, Result};

/// Work of fewer bytes skips the check of available memory, which takes some tens of microseconds.
pub const WORTH: u64 = 64 << 20;
/// From this size on, in bytes, a refused allocation of a buffer becomes an error.
const LARGE: usize = 1 << 20;
/// `1 / SPARE` of the available memory is reserved for the rest of the process.
const SPARE: u64 = 16;

static RELEASE: OnceLock<fn() -> u64> = OnceLock::new();

/// Sets the function that makes the program's allocator return freed memory to the system. `release` returns the bytes
/// of address space that the allocator still holds.
pub fn set_release(release: fn() -> u64) {
    // Set once, because a program has one allocator.
    let _ = RELEASE.set(release);
}

/// Refuses work that needs more bytes than are available.
///
/// # Errors
/// `OutOfMemory` with the bytes, the available memory and its bound.
pub fn room(what: &str, bytes: u64) -> Result<()> {
    match lack(bytes) {
        None => Ok(()),
        available => Err(Error::OutOfMemory { what: what.into(), bytes, available }),
    }
}

/// Whether `bytes` are available without a release by the allocator.
pub fn fits(bytes: u64) -> bool {
    bytes < WORTH || is_plenty(bytes) || short(bytes, 0).is_none()
}

/// The available memory, if it is less than `bytes` even after the allocator has released its unused memory.
fn lack(bytes: u64) -> Option<Available> {
    match fits(bytes) {
        true => None,
        false => short(bytes, RELEASE.get().map_or(0, |release| release())),
    }
}

/// The available memory, if it is less than `bytes`. `held` is address space that the allocator holds.
fn short(bytes: u64, held: u64) -> Option<Available> {
    let all = least(Path::new("/"), held)?;
    let spared = Available { bytes: all.bytes - all.bytes / SPARE, ..all };
    *SEEN.lock().unwrap_or_else(|e| e.into_inner()) = Some((Instant::now(), spared.bytes));
    (spared.bytes < bytes).then_some(spared)
}

/// Time and result of the last check of available memory.
static SEEN: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
/// A check is valid for this time, for work of at most half of the memory that it found.
const FRESH: Duration = Duration::from_millis(100);

/// Whether the last check is still valid and found at least twice these bytes. Passes follow each other faster than
/// memory fills.
fn is_plenty(bytes: u64) -> bool {
    let seen = *SEEN.lock().unwrap_or_else(|e| e.into_inner());
    seen.is_some_and(|(at, available)| at.elapsed() < FRESH && bytes <= available / 2)
}

/// Calls `take`; if it fails, makes the allocator release memory and calls it again. Unwinds with [`Refused`] if both
/// calls fail.
fn taken<T>(bytes: usize, mut take: impl FnMut() -> Option<T>) -> T {
    if let Some(taken) = take() {
        return taken;
    }
    if let Some(release) = RELEASE.get() {
        release();
    }
    match take() {
        Some(taken) => taken,
        // Skips the panic hook, because the resulting error has all facts.
        None => resume_unwind(Box::new(Refused { bytes: bytes as u64 })),
    }
}

/// Runs work in which a buffer may be refused.
///
/// # Errors
/// `OutOfMemory` for a buffer that the system refused. Other panics keep unwinding.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| match payload.is::<Refused>() {
        true => Err(Error::of_panic(payload)),
        false => resume_unwind(payload),
    })
}

/// `count` zeros.
pub fn zeros(count: usize) -> Vec<f32> {
    let bytes = count.saturating_mul(size_of::<f32>());
    if bytes < LARGE {
        return vec![0.0; count];
    }
    taken(bytes, || {
        let layout = Layout::array::<f32>(count).ok()?;
        // SAFETY: the layout's size is not 0.
        let numbers = unsafe { alloc_zeroed(layout) };
        // SAFETY: the global allocator returned memory with the layout of a vector of `count` values, and zero bits are
        // the value 0.
        (!numbers.is_null()).then(|| unsafe { Vec::from_raw_parts(numbers.cast(), count, count) })
    })
}

/// An empty vector with capacity for `count` values.
pub fn with_capacity<T>(count: usize) -> Vec<T> {
    let bytes = count.saturating_mul(size_of::<T>());
    if bytes < LARGE {
        return Vec::with_capacity(count);
    }
    taken(bytes, || {
        let mut room = Vec::new();
        room.try_reserve_exact(count).ok()?;
        Some(room)
    })
}

/// `count` uninitialised values.
pub fn uninit<T>(count: usize) -> Box<[MaybeUninit<T>]> {
    let mut all = with_capacity::<MaybeUninit<T>>(count);
    // SAFETY: the capacity is at least `count`, and `MaybeUninit` needs no initialisation.
    unsafe { all.set_len(count) };
    all.into_boxed_slice()
}

/// `count` copies of a value.
pub fn repeated<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut all = with_capacity(count);
    all.resize(count, value);
    all
}

/// Reserves capacity for `more` values, as [`Vec::reserve`] does.
pub fn reserve<T>(all: &mut Vec<T>, more: usize) {
    let count = all.len().saturating_add(more);
    if count > all.capacity() && count.saturating_mul(size_of::<T>()) >= LARGE {
        taken(count.saturating_mul(size_of::<T>()), || all.try_reserve(more).ok());
    }
}

/// Resizes a vector to `count` values. New values are 0.
pub fn resize(numbers: &mut Vec<f32>, count: usize) {
    reserve(numbers, count.saturating_sub(numbers.len()));
    numbers.resize(count, 0.0);
}

/// A copy of `numbers`.
pub fn copied<T: Copy>(numbers: &[T]) -> Vec<T> {
    let mut all = with_capacity(numbers.len());
    all.extend_from_slice(numbers);
    all
}

/// Checks that `bytes` can be allocated, before code that cannot handle a refusal allocates them.
pub fn granted(bytes: usize) {
    if bytes >= LARGE {
        drop(with_capacity::<u8>(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More values than any address space holds.
    const TOO_MANY: usize = 1 << 58;

    #[test]
    fn buffers_have_the_contents_of_a_plain_vector() {
        for count in [0, 3, LARGE] {
            assert_eq!(zeros(count), vec![0.0; count]);
            assert_eq!(repeated(7u16, count), vec![7; count]);
            assert_eq!(copied(&vec![1.5; count]), vec![1.5; count]);
        }
        granted(2 * LARGE);
    }

    #[test]
    fn a_refused_buffer_is_an_error_with_its_bytes() {
        let refusals: [fn(); 4] = [
            || drop(zeros(TOO_MANY)),
            || drop(with_capacity::<f32>(TOO_MANY)),
            || drop(repeated(1.0f32, usize::MAX)),
            || granted(4 * TOO_MANY),
        ];
        for refusal in refusals {
            let refused = caught(|| {
                refusal();
                Ok(())
            });
            match refused {
                Err(Error::OutOfMemory { bytes, .. }) => assert!(bytes >= 1 << 60),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_refusal_in_a_shard_reaches_its_caller() {
        let work = |shard| {
            if shard == 5 {
                drop(zeros(TOO_MANY))
            }
        };
        let refused = caught(|| {
            crate::pool::for_each(8, work);
            Ok(())
        });
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn other_panics_are_not_refusals() {
        let panicked = catch_unwind(|| caught::<()>(|| resume_unwind(Box::new("a bug"))));
        assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"a bug"));
    }

    #[test]
    fn work_beyond_any_machine_s_memory_is_refused_with_numbers() {
        assert!(room("a pass", WORTH - 1).is_ok());
        let refused = room("a pass", 1 << 60);
        if least(Path::new("/"), 0).is_none() {
            return assert!(refused.is_ok());
        }
        match refused {
            Err(Error::OutOfMemory { what, bytes, available: Some(available) }) => {
                assert_eq!((what.as_str(), bytes), ("a pass", 1 << 60));
                assert!(available.bytes < bytes);
            }
            other => panic!("{other:?}"),
        }
    }
}
