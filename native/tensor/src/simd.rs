//! Loops over slices, compiled for the widest vectors of the CPU.
//!
//! Each body is written once in plain Rust. `dispatch!` compiles the body for AVX-512, for AVX2 and for the baseline,
//! and chooses one copy at run time. On one machine the choice is always the same, except under [`LIMIT`].

use std::sync::OnceLock;

/// The instruction set that a loop is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The baseline of the target.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, VL, DQ and BW, and FMA.
    Avx512,
}

/// The environment variable that limits the instruction set to `portable`, `avx2` or `avx512`. A limit also turns off
/// matrix units, which reproduces the behaviour of a smaller CPU.
pub const LIMIT: &str = "SCONCE_CPU";

fn limit() -> Option<Level> {
    match std::env::var(LIMIT).ok()?.as_str() {
        "portable" => Some(Level::Portable),
        "avx2" => Some(Level::Avx2),
        "avx512" => Some(Level::Avx512),
        _ => None,
    }
}

/// Whether [`LIMIT`] is set to a known value.
pub fn is_limited() -> bool {
    limit().is_some()
}

/// The widest instruction set that may be used.
#[inline]
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| limit().unwrap_or(Level::Avx512).min(widest()))
}

/// The widest instruction set of which the CPU has every feature that `dispatch!` enables.
fn widest() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("fma")
        {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Level::Avx2;
        }
    }
    Level::Portable
}

/// `dispatch!(pub fn name(args) { body })` defines a function that runs the widest available copy of `body`. In the
/// body, the constant `FMA` says whether [`mul_add`] is one instruction.
#[macro_export]
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) {
            #[inline(always)]
            fn body<const FMA: bool>($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn avx512($($arg: $ty),*) { body::<true>($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) { body::<true>($($arg),*) }
                match $crate::simd::level() {
                    // SAFETY: `level` found these features on this CPU.
                    $crate::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::simd::Level::Portable => {}
                }
            }
            body::<false>($($arg),*)
        }
    };
    // Takes the generics twice: as declared and as passed on.
    ($(#[$meta:meta])* $vis:vis fn $name:ident<[$($generic:tt)*], [$($param:tt)*]>($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$($generic)*>($($arg: $ty),*) {
            #[inline(always)]
            fn body<$($generic)*, const FMA: bool>($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn avx512<$($generic)*>($($arg: $ty),*) { body::<$($param)*, true>($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<$($generic)*>($($arg: $ty),*) { body::<$($param)*, true>($($arg),*) }
                match $crate::simd::level() {
                    // SAFETY: `level` found these features on this CPU.
                    $crate::simd::Level::Avx512 => return unsafe { avx512::<$($param)*>($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Level::Avx2 => return unsafe { avx2::<$($param)*>($($arg),*) },
                    $crate::simd::Level::Portable => {}
                }
            }
            body::<$($param)*, false>($($arg),*)
        }
    };
}
pub use dispatch;

/// `a * b + c`, rounded once if `FMA` is true. `dispatch!` sets `FMA` to true in copies for CPUs with the instruction.
#[inline(always)]
pub fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The common part of [`exp_with`] and [`expm1_with`]: `e^x = 2^n (1 + r + r^2 q)` as `(2^n, r, q)` for |x| <= 87,
/// saturating beyond. The argument is reduced by ln 2 in two parts, and `q(r)` is the polynomial of degree 4 with the
/// smallest maximum relative error (3e-9). The function has no branches, so loops over it compile to vector code.
#[inline(always)]
fn exp_parts<const FMA: bool>(x: f32) -> (f32, f32, f32) {
    reduced::<FMA>(x.clamp(-87.0, 88.0))
}

#[inline(always)]
fn reduced<const FMA: bool>(x: f32) -> (f32, f32, f32) {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<FMA>(n, -0.693_359_4, x);
    let r = mul_add::<FMA>(n, 2.121_944_4e-4, r);
    let q = mul_add::<FMA>(1.381_454e-3, r, 8.368_745e-3);
    let q = mul_add::<FMA>(q, r, 4.166_839e-2);
    let q = mul_add::<FMA>(q, r, 1.666_652e-1);
    let q = mul_add::<FMA>(q, r, 4.999_999_3e-1);
    (f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23)), r, q)
}

/// e^x with an error of at most 2 ulp.
#[inline(always)]
pub fn exp_with<const FMA: bool>(x: f32) -> f32 {
    let (power, r, q) = exp_parts::<FMA>(x);
    mul_add::<FMA>(mul_add::<FMA>(q, r, 1.0), r, 1.0) * power
}

/// [`exp_with`] for x of at most 88, such as the exponent of a decay. The bits are the same.
#[inline(always)]
pub fn exp_below<const FMA: bool>(x: f32) -> f32 {
    // NaN stays.
    let (power, r, q) = reduced::<FMA>(if x < -87.0 { -87.0 } else { x });
    mul_add::<FMA>(mul_add::<FMA>(q, r, 1.0), r, 1.0) * power
}

/// e^x - 1 with an error of a few ulp, also near 0, where `exp(x) - 1` cancels: here the 1 is subtracted from `2^n`,
/// which is exact.
#[inline(always)]
pub fn expm1_with<const FMA: bool>(x: f32) -> f32 {
    let (power, r, q) = exp_parts::<FMA>(x);
    mul_add::<FMA>(mul_add::<FMA>(q * r, r, r), power, power - 1.0)
}

/// [`exp_with`] for loops outside of `dispatch!`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp_with::<false>(x)
}

/// The logistic function, `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid_with<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp_with::<FMA>(-x))
}

/// [`sigmoid_with`] for loops outside of `dispatch!`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    sigmoid_with::<false>(x)
}

/// ln(1 + u) for u in 0..=1 with a relative error near 1e-7, by the series of `2 artanh(u / (2 + u))`.
#[inline(always)]
pub fn ln_1p_with<const FMA: bool>(u: f32) -> f32 {
    let s = u / (2.0 + u);
    let z = s * s;
    let mut p = 1.0 / 15.0;
    for k in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        p = mul_add::<FMA>(p, z, 1.0 / k);
    }
    2.0 * mul_add::<FMA>(s * z, p, s)
}

/// [`ln_1p_with`] for loops outside of `dispatch!`.
#[inline(always)]
pub fn ln_1p(u: f32) -> f32 {
    ln_1p_with::<false>(u)
}

/// `ln(1 + e^x)`, accurate also where it is nearly 0 or nearly x.
#[inline(always)]
pub fn softplus_with<const FMA: bool>(x: f32) -> f32 {
    x.max(0.0) + ln_1p_with::<FMA>(exp_with::<FMA>(-x.abs()))
}

/// [`softplus_with`] for loops outside of `dispatch!`.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    softplus_with::<false>(x)
}

/// tanh(x) with a relative error near 1e-7, also around 0, where `1 - 2 / (e^2x + 1)` cancels.
#[inline(always)]
#[allow(clippy::excessive_precision)] // the published coefficients
pub fn tanh_with<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let big = 1.0 - 2.0 / (exp_with::<FMA>(2.0 * a) + 1.0);
    // Cephes `tanhf` for |x| below 0.625.
    let z = x * x;
    let p = mul_add::<FMA>(-5.704_988_727_45e-3, z, 2.063_908_884_97e-2);
    let p = mul_add::<FMA>(p, z, -5.373_971_551_31e-2);
    let p = mul_add::<FMA>(p, z, 1.333_144_186_52e-1);
    let p = mul_add::<FMA>(p, z, -3.333_328_194_22e-1);
    let small = mul_add::<FMA>(p * z, x, x);
    if a < 0.625 { small } else { big.copysign(x) }
}

/// [`tanh_with`] for loops outside of `dispatch!`.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    tanh_with::<false>(x)
}

/// Values that a loop processes at once: the f32 lanes of the widest vectors.
pub const LANES: usize = 16;

/// Loads `n <= LANES` values of `row` from `at` on, followed by zeros. For speed, pass the constant `LANES` for all
/// whole vectors and call the loop's body once more for the rest of a row.
#[inline(always)]
pub fn load(row: &[f32], at: usize, n: usize) -> [f32; LANES] {
    if n == LANES
        && let Some(lanes) = row[at..].first_chunk()
    {
        return *lanes;
    }
    let mut lanes = [0.0; LANES];
    lanes[..n].copy_from_slice(&row[at..at + n]);
    lanes
}

/// Stores the first `n` lanes to `row` from `at` on: the reverse of [`load`].
#[inline(always)]
pub fn store(row: &mut [f32], at: usize, n: usize, lanes: [f32; LANES]) {
    if n == LANES
        && let Some(row) = row[at..].first_chunk_mut()
    {
        *row = lanes;
        return;
    }
    row[at..at + n].copy_from_slice(&lanes[..n]);
}

/// Sums all lanes pairwise.
#[inline(always)]
pub fn sum(lanes: [f32; LANES]) -> f32 {
    let mut lanes = lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The dot product `sum of a[i] b[i]`, in an order of additions that does not depend on the CPU.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    sum(lanes) + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

/// `y[i] += a x[i]`.
#[inline(always)]
pub fn axpy(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

dispatch! {
    /// `x[i] *= factor`.
    pub fn scale_all(x: &mut [f32], factor: f32) {
        for x in x.iter_mut() {
            *x *= factor;
        }
    }
}

dispatch! {
    /// `a[i] += b[i]`.
    pub fn add_assign(a: &mut [f32], b: &[f32]) {
        for (a, b) in a.iter_mut().zip(b) {
            *a += b;
        }
    }
}

/// Columns that [`add_rows`] keeps in registers.
const COLUMNS: usize = 4 * LANES;
/// The widest rows of which [`add_rows`] adds some columns at a time.
const NARROW: usize = 4 * COLUMNS;

dispatch! {
    /// Adds each row of `x: [m, n]` to `sum: [n]`, in order.
    pub fn add_rows(sum: &mut [f32], x: &[f32]) {
        let n = sum.len();
        let (blocks, rest) = match n {
            0..=NARROW => sum.as_chunks_mut::<COLUMNS>(),
            _ => (&mut [][..], sum),
        };
        let first = blocks.len() * COLUMNS;
        for (i, block) in blocks.iter_mut().enumerate() {
            let mut sums = *block;
            let columns = x.chunks_exact(n).filter_map(|row| row[i * COLUMNS..].first_chunk());
            for columns in columns {
                let columns: &[f32; COLUMNS] = columns;
                for j in 0..COLUMNS {
                    sums[j] += columns[j];
                }
            }
            *block = sums;
        }
        if !rest.is_empty() {
            for row in x.chunks_exact(n) {
                for (s, v) in rest.iter_mut().zip(&row[first..]) {
                    *s += v;
                }
            }
        }
    }
}

dispatch! {
    /// Raises `bits` to the largest bit pattern of |x[i]|. Infinity and NaN have the largest patterns.
    fn largest(bits: &mut u32, x: &[f32]) {
        for v in x {
            *bits = (*bits).max(v.abs().to_bits());
        }
    }
}

/// The first value that is NaN or infinite.
pub fn non_finite(x: &[f32]) -> Option<f32> {
    let mut bits = 0;
    largest(&mut bits, x);
    match f32::from_bits(bits).is_finite() {
        true => None,
        false => x.iter().copied().find(|v| !v.is_finite()),
    }
}

/// Sums the rows of `dy: [m, n]` into `sum: [n]`; adds to the contents of `sum` if `accumulate`.
pub fn row_sum(sum: &mut [f32], dy: &[f32], accumulate: bool) {
    if !accumulate {
        sum.fill(0.0);
    }
    add_rows(sum, dy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_excludes_wider_instruction_sets() {
        const CHILD: &str = "SCONCE_TEST_CHILD";
        let limits =
            [("portable", Level::Portable), ("avx2", Level::Avx2), ("avx512", Level::Avx512)];
        if std::env::var_os(CHILD).is_some() {
            let limit = std::env::var(LIMIT).unwrap();
            let known = limits.iter().find(|(name, _)| *name == limit);
            assert_eq!(level(), known.map_or(widest(), |(_, level)| widest().min(*level)));
            assert_eq!(is_limited(), known.is_some());
            return;
        }
        for limit in limits.map(|(name, _)| name).into_iter().chain(["avx3"]) {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "simd::tests::a_limit_excludes_wider_instruction_sets"])
                .envs([(CHILD, "1"), (LIMIT, limit)])
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success() && told.contains("1 passed"), "{limit}: {told}");
        }
    }

    fn worst(
        range: std::ops::Range<i32>,
        got: impl Fn(f32) -> f32,
        want: impl Fn(f64) -> f64,
    ) -> f64 {
        range
            .map(|i| {
                let x = i as f32 * 1e-3;
                let want = want(f64::from(x));
                (f64::from(got(x)) - want).abs() / want.abs().max(1e-30)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn exp_sigmoid_and_tanh_agree_with_libm() {
        assert!(worst(-86_000..86_000, exp, f64::exp) < 2e-7);
        assert!(worst(-80_000..80_000, sigmoid, |x| 1.0 / (1.0 + (-x).exp())) < 4e-7);
        assert!(worst(-20_000..20_000, tanh, f64::tanh) < 4e-7);
        assert!(worst(-20_000..20_000, tanh_with::<true>, f64::tanh) < 4e-7);
        assert!(worst(-86_000..86_000, exp_with::<true>, f64::exp) < 2e-7);
        assert!(worst(-80_000..80_000, softplus_with::<true>, |x| x.exp().ln_1p()) < 4e-7);
        assert!(worst(-80_000..80_000, softplus_with::<false>, |x| x.exp().ln_1p()) < 4e-7);
        assert!(worst(1..1000, ln_1p, f64::ln_1p) < 4e-7);
        assert_eq!((tanh(0.0), ln_1p(0.0)), (0.0, 0.0));
        assert!(tanh(f32::INFINITY) == 1.0 && tanh(f32::NEG_INFINITY) == -1.0);
    }

    #[test]
    fn an_exponential_below_its_bound_has_the_bits_of_any() {
        let special = [f32::NEG_INFINITY, -f32::MAX, -87.0, -0.0, 0.0, 88.0];
        let all = (-120_000..88_000).map(|i| i as f32 * 1e-3).chain(special);
        for x in all {
            let bits = [exp_below::<true>(x), exp_below::<false>(x)].map(f32::to_bits);
            assert_eq!(bits, [exp_with::<true>(x), exp_with::<false>(x)].map(f32::to_bits), "{x}");
        }
        assert!(exp_below::<true>(f32::NAN).is_nan() && exp_below::<false>(f32::NAN).is_nan());
    }

    #[test]
    fn expm1_keeps_its_digits_near_zero_and_far_out() {
        for expm1 in [expm1_with::<true>, expm1_with::<false>] {
            assert!(worst(-80_000..80_000, expm1, f64::exp_m1) < 4e-7);
            assert!(worst(-8000..8000, |x| expm1(x * 1e-4), |x| (x * 1e-4).exp_m1()) < 4e-7);
        }
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found_at_any_place() {
        let mut x = [f32::MAX, -f32::MAX, -0.0, f32::MIN_POSITIVE].repeat(2 * LANES);
        assert_eq!((non_finite(&x), non_finite(&[])), (None, None));
        for at in 0..x.len() {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
                let good = std::mem::replace(&mut x[at], bad);
                assert_eq!(non_finite(&x).map(f32::to_bits), Some(bad.to_bits()), "{at}");
                x[at] = good;
            }
        }
        (x[5], x[70]) = (f32::NEG_INFINITY, f32::NAN);
        assert_eq!(non_finite(&x), Some(f32::NEG_INFINITY));
    }

    #[test]
    fn rows_are_added_in_order_whatever_their_width() {
        for n in [1, 63, 64, 65, 200, 256, 300] {
            let x: Vec<f32> = (0..7 * n).map(|i| (i as f32 * 0.7).sin()).collect();
            let mut sum: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let mut want = sum.clone();
            for (i, v) in x.iter().enumerate() {
                want[i % n] += v;
            }
            add_rows(&mut sum, &x);
            assert_eq!(sum, want, "{n}");
        }
    }

    #[test]
    fn nan_stays_nan() {
        assert!(exp(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
    }
}
