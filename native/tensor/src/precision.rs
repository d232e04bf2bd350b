//! The precision of matrix products.
//!
//! Below f32 both operands of a product are rounded to the nearest value of that format, ties to even. Products, sums
//! and everything else stay f32 (Micikevicius et al. 2018, "Mixed precision training"). Weights stay f32; copies
//! of them are rounded.

use std::cell::Cell;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::simd::dispatch;

/// The precision of the operands of matrix products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 24 bits of significand: no rounding.
    #[default]
    F32,
    /// 11 bits of significand and the range of f32. The tensor cores of cards round f32 operands to it themselves.
    Tf32,
    /// 8 bits of significand and the range of f32: the format of the matrix units of CPUs.
    Bf16,
    /// 11 bits of significand, magnitudes from 6e-8 to 65504.
    F16,
}

thread_local! {
    static CURRENT: Cell<Precision> = const { Cell::new(Precision::F32) };
}

impl Precision {
    /// The precision of products that this thread begins.
    pub fn current() -> Self {
        CURRENT.get()
    }

    /// Runs `work` with products of this precision, including shards on other threads.
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        struct Before(Precision);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _before = Before(CURRENT.replace(self));
        work()
    }

    /// Writes the values of `from` to `to`, rounded to this precision.
    pub fn round(self, to: &mut [f32], from: &[f32]) {
        match self {
            Precision::F32 => to.copy_from_slice(from),
            Precision::Tf32 => round_to_tf32(to, from),
            Precision::Bf16 => round_to_bf16(to, from),
            Precision::F16 => round_to_f16(to, from),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
        })
    }
}

dispatch! {
    fn round_to_tf32(to: &mut [f32], from: &[f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = nearest::<13>(*from));
    }
}

dispatch! {
    fn round_to_bf16(to: &mut [f32], from: &[f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = nearest::<16>(*from));
    }
}

dispatch! {
    fn round_to_f16(to: &mut [f32], from: &[f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f16(*from));
    }
}

/// Rounds `x` to the nearest value whose last `BITS` bits are 0, ties to even.
#[inline(always)]
fn nearest<const BITS: u32>(x: f32) -> f32 {
    let bits = x.to_bits();
    let last = bits >> BITS & 1;
    // A carry into the exponent is correct. For NaN the carry could reach the sign bit, so NaN is handled separately.
    let rounded = bits.wrapping_add((1 << (BITS - 1)) - 1 + last) & (u32::MAX << BITS);
    if x.is_nan() { f32::NAN } else { f32::from_bits(rounded) }
}

#[inline(always)]
fn f16(x: f32) -> f32 {
    /// Half a step beyond the largest finite f16; values from here on round to infinity.
    const ENDLESS: f32 = 65520.0;
    /// The smallest normal f16. Below it f16 values are 2^-24 apart, like f32 values between 0.5 and 1.
    const LEAST_NORMAL: f32 = 6.103_515_6e-5;
    let size = x.abs();
    let normal = if size >= ENDLESS { f32::INFINITY } else { nearest::<13>(size) };
    let rounded = if size < LEAST_NORMAL { (size + 0.5) - 0.5 } else { normal };
    rounded.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool;

    fn rounded(precision: Precision, x: f32) -> f32 {
        let mut to = [0.0];
        precision.round(&mut to, &[x]);
        to[0]
    }

    #[test]
    fn numbers_round_to_the_nearest_of_the_format_and_ties_to_even() {
        let bf16 = |x| rounded(Precision::Bf16, x);
        let step = 2f32.powi(-7);
        assert_eq!(bf16(1.0 + 0.5 * step), 1.0);
        assert_eq!(bf16(1.0 + 1.5 * step), 1.0 + 2.0 * step);
        assert_eq!(bf16(-1.0 - 0.501 * step), -1.0 - step);
        assert_eq!(bf16(f32::MAX), f32::INFINITY);
        let f16 = |x| rounded(Precision::F16, x);
        let step = 2f32.powi(-10);
        assert_eq!(f16(1.0 + 0.5 * step), 1.0);
        assert_eq!(f16(-1.0 - 1.5 * step), -1.0 - 2.0 * step);
        assert_eq!((f16(65519.0), f16(-65520.0)), (65504.0, -f32::INFINITY));
        let tf32 = |x| rounded(Precision::Tf32, x);
        assert_eq!([1.0, 3.0].map(|n| tf32(1.0 + n * 0.5 * step)), [1.0, 1.0 + 2.0 * step]);
        assert_eq!([tf32(1e-30), tf32(1e30)].map(|x| x > 0.0 && x.is_finite()), [true; 2]);
        let least = 2f32.powi(-24);
        assert_eq!(
            (f16(1.5 * least), f16(-0.5 * least), f16(0.6 * least)),
            (2.0 * least, 0.0, least)
        );
        for precision in [Precision::Tf32, Precision::Bf16, Precision::F16] {
            assert!(rounded(precision, f32::from_bits(0x7FFF_FFFF)).is_nan());
            assert_eq!(rounded(precision, f32::NEG_INFINITY), f32::NEG_INFINITY);
            assert_eq!(rounded(precision, -0.0).to_bits(), (-0.0f32).to_bits());
        }
        assert_eq!(rounded(Precision::F32, 0.1), 0.1);
    }

    #[test]
    fn shards_have_the_precision_of_their_caller() {
        let mut seen = vec![Precision::F32; 64];
        let look = |seen: &mut Vec<Precision>| {
            pool::for_each_rows(seen, 1, 1, |_, seen| seen.fill(Precision::current()));
        };
        Precision::F16.during(|| look(&mut seen));
        assert_eq!(seen, [Precision::F16; 64]);
        look(&mut seen);
        assert_eq!(seen, [Precision::F32; 64]);
        let panicked = std::panic::catch_unwind(|| Precision::Bf16.during(|| panic!("inside")));
        assert!(panicked.is_err());
        assert_eq!(Precision::current(), Precision::F32);
    }
}
