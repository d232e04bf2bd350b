//! Memory-mapped files whose reads cannot kill the process.
//!
//! Reading a mapped page beyond the end of a truncated file raises SIGBUS. Sconce replaces files by rename
//! and never truncates them, but other programs may. Every read of a map therefore runs inside [`guarded`],
//! which replaces a missing page by a page of zeros and marks the map as cut (truncated). [`Mapped::verify`]
//! then returns an error that names the file, before the data is used. `verify` also detects a file that was
//! overwritten or replaced. [`Mapped::verify_open`] detects a file that was overwritten, and accepts one that was
//! replaced: its map keeps the old bytes.

use std::cmp::Ordering::Less;
use std::fs::Metadata;
use std::io;
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use memmap2::Mmap;

use crate::{Error, Result, fs};

/// A memory-mapped file.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    map: Mmap,
    /// Identity of the file when it was opened.
    stamp: Stamp,
    /// Set when a page was missing.
    cut: AtomicBool,
}

/// Identity of a file. The stamp differs between files of the same name, and changes when the file is
/// written.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    /// Device and inode.
    place: (u64, u64),
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        #[cfg(unix)]
        let place = (file.dev(), file.ino());
        #[cfg(not(unix))]
        let place = (0, 0);
        Stamp { length: file.len(), modified: file.modified().ok(), place }
    }
}

impl Mapped {
    /// Maps a whole file.
    pub fn open(path: &Path) -> Result<Self> {
        Mapped::of(&fs::open(path)?)
    }

    /// Maps an open file, which may be closed afterwards.
    pub fn of(file: &fs::Regular) -> Result<Self> {
        let path = file.path().to_path_buf();
        let stamp = Stamp::of(file.metadata());
        fault::watch();
        // SAFETY: mapped files are only ever replaced by rename, so the pages of this map keep their
        // bytes. If another program truncates the file, pages are lost. Reads inside `guarded` survive the
        // loss, and the data read is discarded.
        let map = unsafe { Mmap::map(file.file()) }.map_err(Error::io(&path))?;
        Ok(Mapped { path, map, stamp, cut: AtomicBool::new(false) })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of the file. Read them only inside [`guarded`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Checks that the file of this path exists and is unchanged, and that no page was missing in earlier reads.
    pub fn verify(&self) -> Result<()> {
        self.check(std::fs::metadata(self.path()))
    }

    /// Checks that the mapped file, which is still open, is unchanged, and that no page was missing in earlier reads.
    /// Another file may have taken its path.
    pub fn verify_open(&self, file: &fs::Regular) -> Result<()> {
        self.check(file.file().metadata())
    }

    fn check(&self, now: io::Result<Metadata>) -> Result<()> {
        let now = Stamp::of(&now.map_err(Error::io(&self.path))?);
        let same = now == self.stamp;
        if same && !self.cut.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (from, to) = (self.stamp.length, now.length);
        let reason = match to.cmp(&from) {
            Less => format!("cut while it was read, from {from} to {to} bytes"),
            _ if same => "a page of it could not be read".into(),
            _ => format!("changed while it was read, from {from} to {to} bytes"),
        };
        Err(Error::corrupt(self.path.display().to_string(), reason))
    }
}

/// Maximum files that one closure may read.
pub const MOST: usize = 2;

/// Runs `work`, which may read only the maps of `files`. There are at most [`MOST`] of them.
#[inline]
pub fn guarded<T>(files: &[Arc<Mapped>], work: impl FnOnce() -> T) -> T {
    let ranges = std::array::from_fn(|i| files.get(i).map_or(fault::Guard::NONE, fault_guard));
    fault::within(ranges, work)
}

fn fault_guard(file: &Arc<Mapped>) -> fault::Guard {
    let bytes = file.map.as_ptr_range();
    fault::Guard { begin: bytes.start as usize, end: bytes.end as usize, cut: &raw const file.cut }
}

#[cfg(unix)]
mod fault {
    use std::cell::Cell;
    use std::ptr::null;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

    use crate::mapped::MOST;

    /// The address range of a map that a thread reads, and the flag to set if a page is missing.
    #[derive(Clone, Copy)]
    pub(super) struct Guard {
        pub begin: usize,
        pub end: usize,
        pub cut: *const AtomicBool,
    }

    impl Guard {
        pub(super) const NONE: Guard = Guard { begin: 0, end: 0, cut: null() };
    }

    thread_local! {
        /// The guards of this thread. The cell has no destructor and is set before any fault, so a signal
        /// handler can read it without locking or allocating.
        static GUARDS: Cell<[Guard; MOST]> = const { Cell::new([Guard::NONE; MOST]) };
    }

    struct Restore([Guard; MOST]);

    impl Drop for Restore {
        fn drop(&mut self) {
            compiler_fence(Ordering::SeqCst);
            GUARDS.set(self.0);
        }
    }

    #[inline]
    pub(super) fn within<T>(guards: [Guard; MOST], work: impl FnOnce() -> T) -> T {
        let _before = Restore(GUARDS.replace(guards));
        // The handler runs on this thread, in the middle of `work`. No read of a map may move before its
        // guard is set or after it is removed.
        compiler_fence(Ordering::SeqCst);
        work()
    }

    /// The previous handler of the signal.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
    static PAGE: AtomicUsize = AtomicUsize::new(0);

    /// Installs the SIGBUS handler, once per process.
    pub(super) fn watch() {
        BEFORE.get_or_init(|| {
            // SAFETY: these are plain calls of the C library with pointers to values that outlive the
            // calls. The handler is async-signal-safe, and the page size is set before it can run.
            unsafe {
                PAGE.store(libc::sysconf(libc::_SC_PAGESIZE) as usize, Ordering::SeqCst);
                let mut before: libc::sigaction = std::mem::zeroed();
                libc::sigaction(libc::SIGBUS, null(), &raw mut before);
                let mut ours: libc::sigaction = std::mem::zeroed();
                ours.sa_sigaction = handle as *const () as usize;
                ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&raw mut ours.sa_mask);
                libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
                before
            }
        });
    }

    /// Handles a fault. If the address is guarded on this thread, marks the map as cut and maps a page of
    /// zeros at the address, so that the read continues. Passes any other fault to the previous handler.
    extern "C" fn handle(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel passes a valid `info` to a handler with SA_SIGINFO.
        let address = unsafe { (*info).si_addr() } as usize;
        let guards = GUARDS.get();
        let guard = guards.iter().find(|g| (g.begin..g.end).contains(&address));
        if let Some(guard) = guard
            && !guard.cut.is_null()
        {
            // SAFETY: the guarded map, and the flag beside it, live as long as the guard is set. The flag
            // is set before the page is mapped, so a reader that sees its zeros finds the flag set.
            unsafe { (*guard.cut).store(true, Ordering::SeqCst) };
            let size = PAGE.load(Ordering::SeqCst);
            let page = address - address % size;
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
            // SAFETY: the page lies in our own read-only map, which stays mapped. The new page reads as
            // zeros, and is unmapped with the whole map.
            let put = unsafe { libc::mmap(page as *mut _, size, libc::PROT_READ, flags, -1, 0) };
            if put != libc::MAP_FAILED {
                return;
            }
        }
        if let Some(before) = BEFORE.get() {
            // SAFETY: the arguments are exactly those that the kernel passed to this handler.
            unsafe { pass_on(before, signal, info, context) };
        }
    }

    /// Calls the previous handler. Without one, restores the default action permanently: the fault is raised
    /// again, and the default action ends the process.
    ///
    /// # Safety
    ///
    /// Must be called from a signal handler, with that handler's arguments and an action that was installed
    /// before.
    unsafe fn pass_on(
        before: &libc::sigaction,
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        type Plain = extern "C" fn(libc::c_int);
        type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: `before` was returned by the C library itself.
                unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: SA_SIGINFO means that the address is a function of this type.
                let handler = unsafe { std::mem::transmute::<usize, Full>(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: without SA_SIGINFO the address is a function of the signal alone.
                let handler = unsafe { std::mem::transmute::<usize, Plain>(handler) };
                handler(signal);
            }
        }
    }
}

/// On this platform a mapped file cannot be truncated, so reads need no guard.
#[cfg(not(unix))]
mod fault {
    use std::sync::atomic::AtomicBool;

    use crate::mapped::MOST;

    pub struct Guard {
        pub begin: usize,
        pub end: usize,
        pub cut: *const AtomicBool,
    }

    impl Guard {
        pub const NONE: Guard = Guard { begin: 0, end: 0, cut: std::ptr::null() };
    }

    pub fn watch() {}

    pub fn within<T>(_guards: [Guard; MOST], work: impl FnOnce() -> T) -> T {
        work()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn missing_pages_read_as_zeros_and_the_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let files = [Arc::new(Mapped::open(&path).unwrap())];
        let sum =
            || guarded(&files, || files[0].bytes().iter().map(|b| usize::from(*b)).sum::<usize>());
        assert_eq!(sum(), 7 << 20);
        assert!(files[0].verify().is_ok());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 19).unwrap();
        // Several threads fault concurrently.
        std::thread::scope(|scope| {
            let sums: Vec<_> = (0..4).map(|_| scope.spawn(sum)).collect();
            for found in sums {
                assert_eq!(found.join().unwrap(), 7 << 19);
                assert_eq!(files[0].verify().unwrap_err().kind().name(), "corrupt");
            }
        });
        // The file has its old size again, but it has been modified.
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert!(files[0].verify().is_err());
    }

    #[test]
    fn an_overwritten_or_replaced_file_is_named_at_its_old_size() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        std::fs::write(&path, [7; 100]).unwrap();
        let reason = |file: &Mapped| file.verify().unwrap_err().to_string();
        let expected =
            format!("{}: changed while it was read, from 100 to 100 bytes", path.display());

        let open = fs::open(&path).unwrap();
        let file = Mapped::of(&open).unwrap();
        // The pause is longer than the timestamp resolution of a file system.
        std::thread::sleep(std::time::Duration::from_millis(50));
        std::fs::write(&path, [8; 100]).unwrap();
        assert_eq!(reason(&file), expected);
        assert!(file.verify_open(&open).is_err());

        let open = fs::open(&path).unwrap();
        let file = Mapped::of(&open).unwrap();
        assert!(file.verify().is_ok());
        std::fs::write(&other, [8; 100]).unwrap();
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::fs::File::options().write(true).open(&other).unwrap().set_modified(modified).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(reason(&file), expected);
        // The map has the bytes of the old file.
        assert!(file.verify_open(&open).is_ok());
        assert_eq!(file.bytes(), [8; 100]);
    }
}
