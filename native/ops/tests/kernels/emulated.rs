//! Kernels as functions of this process; see `tools/emulated-card`.

use std::ffi::{CStr, CString, c_void};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sconce_tensor::digest::sha256;

use crate::memory::Argument;
use crate::{Kernels, Shape};

/// A library of kernels, which is never unloaded.
pub struct Emulated(*mut c_void);

type Launch = unsafe extern "C" fn(*const u32, *const u32, usize, *mut *mut c_void);

/// Flags of the compiler. GCC fuses products and sums only at `-O2`, see `bin/emulated-card`.
/// There it takes values that some launches do not read for uninitialised. Clang lacks some of the options.
const FLAGS: [&str; 13] = [
    "-std=c++20",
    "-O2",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    "-funswitch-loops",
    "-Wall",
    "-Wno-maybe-uninitialized",
    "-Wno-ignored-optimization-argument",
    "-Wno-unknown-warning-option",
    "-Wno-unknown-pragmas",
    "-Werror",
    "-shared",
    "-fPIC",
];

/// Like nvcc, the compiler rounds a product and a sum once, if this CPU can.
fn fused() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        return &["-mfma"];
    }
    &[]
}

impl Emulated {
    /// Compiles `tools/emulated-card/{name}.cpp`, unless the same text was compiled before.
    pub fn compile(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        fs::create_dir_all(&folder).unwrap();
        // One test compiles at a time; the others reuse the result.
        let lock = File::create(folder.join(format!("{name}.lock"))).unwrap();
        lock.lock().unwrap();
        let flags = [FLAGS.concat(), fused().concat()].concat();
        let text = sha256([compiler(name, &["-E"]), flags.into_bytes()]);
        let library = folder.join(format!("{name}-{text}.so"));
        if !library.exists() {
            let beside = library.with_extension("new");
            compiler(name, &["-o", beside.to_str().unwrap()]);
            fs::rename(beside, &library).unwrap();
        }
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: the library's initialisers only fill their own table.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", last_error());
        Emulated(handle)
    }
}

/// The output of the compiler with further flags; with `-E` it is the whole text, including headers.
fn compiler(name: &str, more: &[&str]) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let emulation = root.join("tools/emulated-card");
    let source = emulation.join(format!("{name}.cpp"));
    let mut folders = vec![emulation];
    kernels(&root.join("native"), &mut folders);
    let mut command = Command::new("c++");
    command.args(FLAGS).args(fused()).args(more).arg(source);
    folders.iter().for_each(|folder| {
        command.arg("-I").arg(folder);
    });
    let output = command.output().expect("a C++ compiler, as c++ (Debian: apt-get install g++)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Collects the folders under `folder` that have kernels into `folders`.
fn kernels(folder: &Path, folders: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kernel = path.extension().is_some_and(|e| e == "cu" || e == "cuh");
        if path.is_dir() {
            kernels(&path, folders);
        } else if kernel && !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_path_buf());
        }
    }
}

impl Kernels for Emulated {
    fn launch_with(
        &self,
        kernel: &str,
        grid: Shape,
        block: Shape,
        together: Option<u32>,
        arguments: &mut [Argument],
    ) {
        let name = CString::new(format!("emulated_{kernel}")).unwrap();
        // SAFETY: the handle is that of a library, and the name ends with a zero.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "{}", last_error());
        let mut tables = vec![];
        let mut values: Vec<u64> = arguments.iter_mut().map(|a| value(a, &mut tables)).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        // SAFETY: all functions with such names have this type, and tests pass a kernel the arguments of its signature.
        unsafe {
            let launch: Launch = std::mem::transmute(function);
            let shared = together.unwrap_or(0) as usize;
            launch(grid.as_ptr(), block.as_ptr(), shared, pointers.as_mut_ptr());
        }
    }
}

/// The bits of an argument, in the lowest bytes; arrays of pointers are kept in `tables`.
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
    // SAFETY: after a failure it is a string that is valid until the next call.
    unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned()
}
