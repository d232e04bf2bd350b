//! Arguments of kernels: memory with guards, and numbers.

use half::{bf16, f16};

/// Numbers of a device's type.
pub trait Element: Copy {
    /// The suffix of kernels of this type.
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

impl Element for f16 {
    const NAME: &'static str = "f16";

    fn of(value: f32) -> Self {
        f16::from_f32(value)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }

    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

impl Element for f64 {
    const NAME: &'static str = "f64";

    fn of(value: f32) -> Self {
        value.into()
    }

    fn value(self) -> f32 {
        self as f32
    }

    fn bits(self) -> u32 {
        (self.to_bits() >> 32) as u32
    }
}

/// Counts, which are exact. NaN is 0 here.
impl Element for i64 {
    const NAME: &'static str = "i64";

    fn of(value: f32) -> Self {
        value as i64
    }

    fn value(self) -> f32 {
        self as f32
    }

    fn bits(self) -> u32 {
        self as u32
    }
}

/// Labels, which are exact. NaN is 0 here.
impl Element for u16 {
    const NAME: &'static str = "u16";

    fn of(value: f32) -> Self {
        value as u16
    }

    fn value(self) -> f32 {
        self.into()
    }

    fn bits(self) -> u32 {
        self.into()
    }
}

/// Sizes, which are exact. NaN is 0 here.
impl Element for i32 {
    const NAME: &'static str = "i32";

    fn of(value: f32) -> Self {
        value as i32
    }

    fn value(self) -> f32 {
        self as f32
    }

    fn bits(self) -> u32 {
        self as u32
    }
}

/// Ids and words, which are exact. NaN is 0 here.
impl Element for u32 {
    const NAME: &'static str = "u32";

    fn of(value: f32) -> Self {
        value as u32
    }

    fn value(self) -> f32 {
        self as f32
    }

    fn bits(self) -> u32 {
        self
    }
}

/// Numbers between guards that no kernel may touch. Guards and unwritten numbers are NaN, so a kernel that reads them
/// shows it in its results.
pub struct Memory<T>(Vec<T>);

const GUARD: usize = 64;

impl<T: Element> Memory<T> {
    pub fn of(values: &[f32]) -> Self {
        Self::exactly(&values.iter().map(|value| T::of(*value)).collect::<Vec<_>>())
    }

    pub fn exactly(values: &[T]) -> Self {
        let guard = [T::of(f32::NAN); GUARD];
        Memory([&guard[..], values, &guard].concat())
    }

    pub fn unwritten(count: usize) -> Self {
        Self::of(&vec![f32::NAN; count])
    }

    /// The numbers, after a check of the guards.
    pub fn exact(&self) -> &[T] {
        let end = self.0.len() - GUARD;
        let untouched = T::of(f32::NAN).bits();
        let around = self.0[..GUARD].iter().chain(&self.0[end..]);
        assert!(
            around.into_iter().all(|v| v.bits() == untouched),
            "a kernel wrote outside its memory"
        );
        &self.0[GUARD..end]
    }

    pub fn read(&self) -> Vec<f32> {
        self.exact().iter().map(|v| v.value()).collect()
    }

    pub fn argument(&mut self) -> Argument<'_> {
        let bytes = size_of_val(&*self.0);
        // SAFETY: these are its bytes, for the duration of the borrow, and any bytes are valid numbers.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) };
        Argument::Memory { bytes, first: GUARD * size_of::<T>() }
    }
}

/// An argument of a kernel.
pub enum Argument<'a> {
    /// A pointer to the byte `first` of `bytes`.
    Memory {
        bytes: &'a mut [u8],
        first: usize,
    },
    /// A pointer to an array of these pointers; `Long(0)` is a null pointer.
    Pointers(Vec<Argument<'a>>),
    Long(i64),
    Int(i32),
    Float(f32),
}

/// A null pointer.
pub const NULL: Argument<'static> = Argument::Long(0);
