//! Kernels as functions of this process, see `native/cuda/emulation`.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::process::Command;

use half::bf16;

/// The kernels of a file.
pub struct Kernels(*mut c_void);

/// A shape of a grid or of a block.
pub type Shape = [u32; 3];

type Launch = unsafe extern "C" fn(*const u32, *const u32, *mut *mut c_void);

impl Kernels {
    /// Compiles `native/cuda/emulation/{name}.cpp`. Once a test: the library stays with the process.
    pub fn compile(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/emulation");
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(format!("{name}.so"));
        let output = Command::new("c++")
            .args(["-std=c++20", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-I"])
            .arg(&root)
            .arg("-o")
            .arg(&library)
            .arg(root.join(format!("{name}.cpp")))
            .output()
            .expect("a C++ compiler, as c++ (Debian: apt-get install g++)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: the library has nothing that runs when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", last_error());
        Kernels(handle)
    }

    /// Runs a kernel; the arguments are those of its signature, in its order.
    pub fn launch(&self, kernel: &str, grid: Shape, block: Shape, arguments: &[Argument]) {
        let name = CString::new(format!("emulated_{kernel}")).unwrap();
        // SAFETY: the handle is a library's, and the name ends with a zero.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "{}", last_error());
        let mut slots: Vec<u64> = arguments.iter().map(|argument| argument.0).collect();
        let mut pointers: Vec<*mut c_void> =
            slots.iter_mut().map(|slot| std::ptr::from_mut(slot).cast()).collect();
        // SAFETY: all functions of that name have this type, and the kernel's own types are the callers' to keep.
        unsafe {
            let launch: Launch = std::mem::transmute(function);
            launch(grid.as_ptr(), block.as_ptr(), pointers.as_mut_ptr());
        }
    }
}

fn last_error() -> String {
    // SAFETY: after a failure it is a text that stays until the next call.
    unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned()
}

/// The bits of an argument, in the lowest bytes.
pub struct Argument(u64);

impl From<i64> for Argument {
    fn from(value: i64) -> Self {
        Argument(value as u64)
    }
}

impl From<i32> for Argument {
    fn from(value: i32) -> Self {
        Argument(u64::from(value as u32))
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Argument(u64::from(value.to_bits()))
    }
}

impl<T> From<&mut Memory<T>> for Argument {
    fn from(memory: &mut Memory<T>) -> Self {
        Argument(memory.0[GUARD..].as_mut_ptr() as u64)
    }
}

/// Numbers of a device's type.
pub trait Element: Copy + PartialEq {
    /// How kernels of this type are called.
    const NAME: &'static str;
    fn of(value: f32) -> Self;
    fn value(self) -> f32;
    fn bits(self) -> u32;
}

impl Element for f32 {
    const NAME: &'static str = "f32";

    fn of(value: f32) -> Self {
        value
    }

    fn value(self) -> f32 {
        self
    }

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Element for bf16 {
    const NAME: &'static str = "bf16";

    fn of(value: f32) -> Self {
        bf16::from_f32(value)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }

    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

/// Numbers with others before and behind that no kernel may touch. These are NaN, as is what nobody wrote: read,
/// they show in what comes out.
pub struct Memory<T>(Vec<T>);

const GUARD: usize = 64;

impl<T: Element> Memory<T> {
    pub fn of(values: &[f32]) -> Self {
        let guard = vec![T::of(f32::NAN); GUARD];
        let values = values.iter().map(|value| T::of(*value)).collect();
        Memory([guard.clone(), values, guard].concat())
    }

    pub fn unwritten(count: usize) -> Self {
        Self::of(&vec![f32::NAN; count])
    }

    /// The numbers, after a look at those around them.
    pub fn read(&self) -> Vec<f32> {
        let end = self.0.len() - GUARD;
        let untouched = T::of(f32::NAN).bits();
        let around = self.0[..GUARD].iter().chain(&self.0[end..]);
        assert!(around.into_iter().all(|v| v.bits() == untouched), "written outside");
        self.0[GUARD..end].iter().map(|v| v.value()).collect()
    }
}
