//! Refusal of memory as an error, before work begins and while it is under way.
//!
//! 1. Work whose memory can be estimated asks for [`room`] before it begins.
//! 2. Large buffers are taken by [`zeros`], [`repeated`], [`with_capacity`] and [`copied`]. One that the system
//!    refuses unwinds to [`caught`], or to what catches panics around it: the passes below have no way to
//!    return an error out of the middle of a product, and an ordinary allocation would end the process.
//!
//! Neither changes what is computed.

use std::alloc::{Layout, alloc_zeroed};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::available::{Available, least};
use super::refused::Refused;
use crate::{Error, Result};

/// Bytes of work that begins without a look at what is available: a look costs some tens of microseconds.
pub const WORTH: u64 = 64 << 20;
/// Bytes of a buffer that is taken by a request that may be refused.
const LARGE: usize = 1 << 20;
/// The part of what is available that stays for the rest of the process: one in `SPARE`.
const SPARE: u64 = 16;

static RELEASE: OnceLock<fn() -> u64> = OnceLock::new();

/// Says how the program's allocator gives freed memory back to the system. `release` answers how many bytes of
/// address space the allocator still holds for later.
pub fn set_release(release: fn() -> u64) {
    // Set once, as the allocator is.
    let _ = RELEASE.set(release);
}

/// Refuses work that takes more bytes than there are.
///
/// # Errors
/// `OutOfMemory` with the bytes, what is available and what bounds it.
pub fn room(what: &str, bytes: u64) -> Result<()> {
    match lack(bytes) {
        None => Ok(()),
        available => Err(Error::OutOfMemory { what: what.into(), bytes, available }),
    }
}

/// Whether work of these bytes has room beside what the allocator keeps.
pub fn fits(bytes: u64) -> bool {
    bytes < WORTH || is_plenty(bytes) || short(bytes, 0).is_none()
}

/// What is available, where that is less than these bytes even when the allocator gives back what it keeps.
fn lack(bytes: u64) -> Option<Available> {
    match fits(bytes) {
        true => None,
        false => short(bytes, RELEASE.get().map_or(0, |release| release())),
    }
}

/// What is available, where that is less than these bytes. `held` is address space that the allocator keeps.
fn short(bytes: u64, held: u64) -> Option<Available> {
    let all = least(Path::new("/"), held)?;
    let spared = Available { bytes: all.bytes - all.bytes / SPARE, ..all };
    *SEEN.lock().unwrap_or_else(|e| e.into_inner()) = Some((Instant::now(), spared.bytes));
    (spared.bytes < bytes).then_some(spared)
}

/// What was available at the last look, and when that was.
static SEEN: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
/// A look is good for this long, for work of at most half of what it saw.
const FRESH: Duration = Duration::from_millis(100);

/// Whether the last look, if it is fresh, saw twice these bytes: passes follow each other faster than memory goes.
fn is_plenty(bytes: u64) -> bool {
    let seen = *SEEN.lock().unwrap_or_else(|e| e.into_inner());
    seen.is_some_and(|(at, available)| at.elapsed() < FRESH && bytes <= available / 2)
}

/// Calls `take` again after the allocator gave back what it keeps, and refuses if that does not help either.
fn taken<T>(bytes: usize, mut take: impl FnMut() -> Option<T>) -> T {
    if let Some(taken) = take() {
        return taken;
    }
    if let Some(release) = RELEASE.get() {
        release();
    }
    match take() {
        Some(taken) => taken,
        // No panic hook is called: the error that this becomes has all there is to tell.
        None => resume_unwind(Box::new(Refused { bytes: bytes as u64 })),
    }
}

/// Runs work in which a buffer may be refused.
///
/// # Errors
/// `OutOfMemory` for a buffer that the system refused. Other panics go on.
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
        // SAFETY: the layout has a size.
        let numbers = unsafe { alloc_zeroed(layout) };
        // SAFETY: the global allocator gave memory of the layout of a vector of `count` numbers, and zero bits
        // are the number 0.
        (!numbers.is_null()).then(|| unsafe { Vec::from_raw_parts(numbers.cast(), count, count) })
    })
}

/// An empty vector with room for `count` values.
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

/// Values that are not written yet.
pub fn uninit<T>(count: usize) -> Box<[MaybeUninit<T>]> {
    let mut all = with_capacity::<MaybeUninit<T>>(count);
    // SAFETY: there is room for `count` values, and one that may be uninitialised is one whatever its bytes are.
    unsafe { all.set_len(count) };
    all.into_boxed_slice()
}

/// `count` copies of a value.
pub fn repeated<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut all = with_capacity(count);
    all.resize(count, value);
    all
}

/// Makes room for more values, as [`Vec::reserve`] does.
pub fn reserve<T>(all: &mut Vec<T>, more: usize) {
    let count = all.len().saturating_add(more);
    if count > all.capacity() && count.saturating_mul(size_of::<T>()) >= LARGE {
        taken(count.saturating_mul(size_of::<T>()), || all.try_reserve(more).ok());
    }
}

/// As many numbers as these, with zeros where there were fewer.
pub fn resize(numbers: &mut Vec<f32>, count: usize) {
    reserve(numbers, count.saturating_sub(numbers.len()));
    numbers.resize(count, 0.0);
}

/// A copy of these numbers.
pub fn copied<T: Copy>(numbers: &[T]) -> Vec<T> {
    let mut all = with_capacity(numbers.len());
    all.extend_from_slice(numbers);
    all
}

/// Makes sure that these bytes can be taken, before code that cannot be refused takes them.
pub fn granted(bytes: usize) {
    if bytes >= LARGE {
        drop(with_capacity::<u8>(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any address space.
    const TOO_MANY: usize = 1 << 58;

    #[test]
    fn buffers_hold_what_a_vector_would() {
        for count in [0, 3, LARGE] {
            assert_eq!(zeros(count), vec![0.0; count]);
            assert_eq!(repeated(7u16, count), vec![7; count]);
            assert_eq!(copied(&vec![1.5; count]), vec![1.5; count]);
        }
        granted(2 * LARGE);
    }

    #[test]
    fn a_buffer_that_is_refused_is_an_error_with_its_bytes() {
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
    fn a_refusal_in_a_shard_reaches_the_work_around_it() {
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
    fn a_panic_is_no_refusal() {
        let panicked = catch_unwind(|| caught::<()>(|| resume_unwind(Box::new("a bug"))));
        assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"a bug"));
    }

    #[test]
    fn work_that_no_machine_has_room_for_is_refused_with_numbers() {
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
