//! Sine and cosine of f32, without branches, for loops that compile to vector code.
//!
//! The argument is reduced by a multiple of pi/2 (Cody & Waite 1980), and each half of the result is a polynomial on
//! -pi/4..pi/4 (the coefficients of Cephes `sinf` and `cosf`).

use std::f32::consts::{PI, TAU};
use std::f64::consts::FRAC_2_PI;

use crate::simd::mul_add;

/// Largest |x| that [`sin_cos_with`] accepts. [`sin_cos`] accepts any number.
pub const LIMIT: f32 = 1e6;

/// Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lowest bits.
const ROUND: f32 = 12_582_912.0;
/// The first 24 bits of pi/2, the next 24 bits, and the next 24 bits.
const HALF_PI: [f32; 3] = [1.570_796_4, -4.371_139e-8, -1.715_124_5e-15];

/// The integer nearest to `x * factor`, plus [`ROUND`].
#[inline(always)]
fn nearest<const FMA: bool>(x: f32, factor: f64) -> f32 {
    // The same constant for f64, whose products have no rounding error that matters.
    const ROUND_64: f64 = 6_755_399_441_055_744.0;
    if FMA {
        x.mul_add(factor as f32, ROUND)
    } else {
        (f64::from(x) * factor + ROUND_64 - ROUND_64) as f32 + ROUND
    }
}

/// The remainder of `x` after `n` times pi/2.
#[inline(always)]
fn reduce<const FMA: bool>(x: f32, n: f32) -> f32 {
    if FMA {
        // The first product and the first difference are exact, because `x` is near `n` pi/2.
        let r = n.mul_add(-HALF_PI[0], x);
        n.mul_add(-HALF_PI[2], n.mul_add(-HALF_PI[1], r))
    } else {
        (f64::from(x) - f64::from(n) * std::f64::consts::FRAC_PI_2) as f32
    }
}

/// `(sin x, cos x)` for |x| up to [`LIMIT`] with an absolute error below 1e-7.
#[inline(always)]
#[allow(clippy::excessive_precision)] // the published coefficients
pub fn sin_cos_with<const FMA: bool>(x: f32) -> (f32, f32) {
    let shifted = nearest::<FMA>(x, FRAC_2_PI);
    let quadrant = shifted.to_bits();
    let r = reduce::<FMA>(x, shifted - ROUND);
    let z = r * r;
    let s = mul_add::<FMA>(-1.951_529_589_1e-4, z, 8.332_160_873_6e-3);
    let s = mul_add::<FMA>(s, z, -1.666_665_461_1e-1);
    let s = mul_add::<FMA>(s * z, r, r);
    let c = mul_add::<FMA>(2.443_315_711_809_948e-5, z, -1.388_731_625_493_765e-3);
    let c = mul_add::<FMA>(c, z, 4.166_664_568_298_827e-2);
    let c = mul_add::<FMA>(c * z, z, mul_add::<FMA>(-0.5, z, 1.0));
    // Odd quadrants swap the two; the sine is negative in quadrants 2 and 3, the cosine in 1 and 2.
    let (sin, cos) = if quadrant & 1 == 0 { (s, c) } else { (c, s) };
    let sign = |value: f32, bits: u32| f32::from_bits(value.to_bits() ^ (bits & 2) << 30);
    (sign(sin, quadrant), sign(cos, quadrant.wrapping_add(1)))
}

/// The angle in -pi..=pi that equals `x` up to full turns, for |x| up to [`LIMIT`].
#[inline(always)]
pub fn wrap_with<const FMA: bool>(x: f32) -> f32 {
    let turns = nearest::<FMA>(x, FRAC_2_PI / 4.0) - ROUND;
    let wrapped = reduce::<FMA>(x, 4.0 * turns);
    // Rounding may have chosen the other neighbour near a half turn.
    let below = if wrapped > PI { wrapped - TAU } else { wrapped };
    if below < -PI { below + TAU } else { below }
}

crate::dispatch! {
    fn sin_cos_within(x: &[f32], sin: &mut [f32], cos: &mut [f32]) {
        for ((x, sin), cos) in x.iter().zip(sin.iter_mut()).zip(cos.iter_mut()) {
            (*sin, *cos) = sin_cos_with::<FMA>(*x);
        }
    }
}

/// Writes the sine and the cosine of each number in `x`. Beyond [`LIMIT`] a slower path in f64 computes them. The result
/// of NaN and of an infinity is NaN.
pub fn sin_cos(x: &[f32], sin: &mut [f32], cos: &mut [f32]) {
    sin_cos_within(x, sin, cos);
    for ((x, sin), cos) in x.iter().zip(sin).zip(cos) {
        if x.abs() > LIMIT {
            let (s, c) = f64::from(*x).sin_cos();
            (*sin, *cos) = (s as f32, c as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of both signs: small ones in equal steps, large ones in equal ratios, and neighbours of multiples of pi/2.
    fn samples() -> Vec<f32> {
        let small = (0..400_000).map(|i| i as f32 * 1e-4);
        let large = (0..400_000).map(|i| 10f32.powf(i as f32 * 1.5e-5));
        let near = (0..636_000).step_by(7).flat_map(|n| {
            let x = (f64::from(n) * std::f64::consts::FRAC_PI_2) as f32;
            [x.next_down(), x, x.next_up()]
        });
        small.chain(large).chain(near).flat_map(|x| [x, -x]).filter(|x| x.abs() <= LIMIT).collect()
    }

    fn worst(f: impl Fn(f32) -> (f32, f32)) -> f64 {
        let error = |x: f32| {
            let ((s, c), (sin, cos)) = (f(x), f64::from(x).sin_cos());
            (f64::from(s) - sin).abs().max((f64::from(c) - cos).abs())
        };
        samples().into_iter().map(error).fold(0.0, f64::max)
    }

    #[test]
    fn sine_and_cosine_agree_with_f64_up_to_the_limit() {
        let errors = [worst(sin_cos_with::<true>), worst(sin_cos_with::<false>)];
        assert!(errors.iter().all(|error| *error < 1e-7), "{errors:?}");
    }

    #[test]
    fn near_zero_the_sine_has_a_relative_error_of_an_ulp() {
        for x in (0..300).map(|i| 10f32.powf(-f32::from(i as i16) / 10.0)) {
            let want = f64::from(x).sin();
            for (sin, _) in [sin_cos_with::<true>(x), sin_cos_with::<false>(x)] {
                assert!((f64::from(sin) - want).abs() <= 1.3e-7 * want, "{x}: {sin} {want}");
            }
        }
    }

    #[test]
    fn beyond_the_limit_slices_are_computed_in_f64() {
        let x = [1.5e6, -3e9, f32::MAX, 0.0, -LIMIT, f32::INFINITY, f32::NAN];
        let (mut sin, mut cos) = ([9.0; 7], [9.0; 7]);
        sin_cos(&x, &mut sin, &mut cos);
        for i in 0..5 {
            let (s, c) = f64::from(x[i]).sin_cos();
            assert!((f64::from(sin[i]) - s).abs() < 1e-7, "{}", x[i]);
            assert!((f64::from(cos[i]) - c).abs() < 1e-7, "{}", x[i]);
        }
        assert!(sin[5..].iter().chain(&cos[5..]).all(|v| v.is_nan()));
    }

    #[test]
    fn a_wrapped_angle_differs_by_full_turns() {
        let check = |x: f32, y: f32| {
            assert!(y.abs() <= std::f32::consts::PI, "{x}: {y}");
            let turns = (f64::from(x) - f64::from(y)) / std::f64::consts::TAU;
            assert!((turns - turns.round()).abs() < 1e-7, "{x}: {y}");
        };
        for x in samples() {
            check(x, wrap_with::<true>(x));
            check(x, wrap_with::<false>(x));
        }
    }
}
