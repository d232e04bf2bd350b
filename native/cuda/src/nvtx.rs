//! Ranges of NVTX, which Nsight Systems shows, where its library is found.
//!
//! The library does nothing unless such a program has started this process.
//!
//! Source: NVIDIA's NVTX reference, <https://nvidia.github.io/NVTX/doxygen/index.html>.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use libloading::Library;

/// Names of the library, that of NVTX 3 first.
const NAMES: [&str; 4] =
    ["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1", "libnvToolsExt.so"];
/// The longest name of a range, with the zero behind it.
const LONGEST: usize = 128;

/// The open library. It is never closed: a program may have put its own functions into it.
struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    name: &'static str,
}

fn library() -> Option<&'static Nvtx> {
    static LIBRARY: OnceLock<Option<Nvtx>> = OnceLock::new();
    LIBRARY.get_or_init(|| NAMES.iter().find_map(|name| open(name))).as_ref()
}

fn open(name: &'static str) -> Option<Nvtx> {
    // SAFETY: NVIDIA's library runs no code that has conditions when it is loaded.
    let library = unsafe { Library::new(name) }.ok()?;
    // SAFETY: these functions have these types in all versions of NVTX.
    let nvtx = unsafe {
        Nvtx {
            push: *library.get(b"nvtxRangePushA\0").ok()?,
            pop: *library.get(b"nvtxRangePop\0").ok()?,
            name,
        }
    };
    std::mem::forget(library);
    Some(nvtx)
}

/// The name of the library, if it is found.
pub fn found() -> Option<&'static str> {
    library().map(|nvtx| nvtx.name)
}

/// Begins a range on this thread. Returns whether the library is found, and [`pop`] must follow.
pub fn push(name: &str) -> bool {
    let Some(nvtx) = library() else { return false };
    let mut text = [0; LONGEST];
    // The last byte stays zero. A zero within the name ends it.
    for (to, from) in text[..LONGEST - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the text ends with a zero, and the library copies it.
    unsafe { (nvtx.push)(text.as_ptr().cast()) };
    true
}

/// Ends the last range of this thread.
pub fn pop() {
    if let Some(nvtx) = library() {
        // SAFETY: the function has no conditions.
        unsafe { (nvtx.pop)() };
    }
}
