//! Kernels as functions of this process, see `native/cuda/emulation`.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::process::Command;

use crate::memory::Argument;
use crate::{Kernels, Shape};

/// A library of kernels, which stays with the process.
pub struct Emulated(*mut c_void);

type Launch = unsafe extern "C" fn(*const u32, *const u32, usize, *mut *mut c_void);

impl Emulated {
    /// Compiles `native/cuda/emulation/{name}.cpp`.
    pub fn compile(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/emulation");
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(format!("{name}.so"));
        let output = Command::new("c++")
            .args([
                "-std=c++20",
                "-O1",
                "-Wall",
                "-Wno-unknown-pragmas",
                "-Werror",
                "-shared",
                "-fPIC",
                "-I",
            ])
            .arg(&root)
            .arg("-o")
            .arg(&library)
            .arg(root.join(format!("{name}.cpp")))
            .output()
            .expect("a C++ compiler, as c++ (Debian: apt-get install g++)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: what runs when it is loaded fills a table of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", last_error());
        Emulated(handle)
    }
}

impl Kernels for Emulated {
    fn launch(&self, kernel: &str, grid: Shape, block: Shape, arguments: &mut [Argument]) {
        let name = CString::new(format!("emulated_{kernel}")).unwrap();
        // SAFETY: the handle is a library's, and the name ends with a zero.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "{}", last_error());
        let mut tables = vec![];
        let mut values: Vec<u64> = arguments.iter_mut().map(|a| value(a, &mut tables)).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        // SAFETY: all functions of that name have this type; a test gives a kernel what its signature says.
        unsafe {
            let launch: Launch = std::mem::transmute(function);
            launch(grid.as_ptr(), block.as_ptr(), 0, pointers.as_mut_ptr());
        }
    }
}

/// The bits of an argument, in the lowest bytes; pointers to pointers are to those that `tables` keep.
fn value(argument: &mut Argument, tables: &mut Vec<Vec<u64>>) -> u64 {
    match argument {
        Argument::Memory { bytes, first } => bytes[*first..].as_mut_ptr() as u64,
        Argument::Pointers(all) => {
            let table: Vec<u64> = all.iter_mut().map(|argument| value(argument, tables)).collect();
            let pointer = table.as_ptr() as u64;
            tables.push(table);
            pointer
        }
        Argument::Long(value) => *value as u64,
        Argument::Int(value) => u64::from(*value as u32),
        Argument::Float(value) => u64::from(value.to_bits()),
    }
}

fn last_error() -> String {
    // SAFETY: after a failure it is a text that stays until the next call.
    unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned()
}
