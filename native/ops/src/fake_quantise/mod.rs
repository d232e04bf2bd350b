//! Fake quantisation: numbers rounded to a grid of integer codes and back, with a gradient for training.
//!
//! Numbers lie in rows, and a row is cut into groups of consecutive columns. Each group has a step: the distance between
//! neighbouring numbers of its grid. Rounding is half to even.

mod codes;
mod composed;
mod inputs;
mod learned;
mod straight;

use candle_core::Tensor;

pub use self::codes::{Codes, Groups};
pub use self::inputs::InputGrid;
use self::learned::Learned;
use self::straight::Straight;
use crate::form::Form;
use crate::op::{Op, Pass};
use crate::simd::dispatch;
use crate::{Error, Result, memory, op, pool, tensor};

/// `y = step * clamp(round(x / step), lo - zero, hi - zero)` with the straight-through estimator (Bengio et al. 2013):
/// the gradient of `x` is that of `y` where the rounded code is inside of the range, and 0 elsewhere.
///
/// # Shapes
/// `x` has the numbers of `groups`, in any shape; `step` and `zero` (whole numbers, 0 if `None`) one number a group.
///
/// # Errors
/// `Mismatch` for other counts; on a CPU in f32 `OutOfRange` for a step that is not above 0. A card would have to wait for
/// its steps to check them.
pub fn fake_quantise(
    x: &Tensor,
    step: &Tensor,
    zero: Option<&Tensor>,
    codes: Codes,
    groups: Groups,
) -> Result<Tensor> {
    checked(x, step, zero, groups)?;
    if Form::of(x) != Form::Cpu {
        return composed::fake_quantise(x, step, zero, codes, groups);
    }
    let inputs: Vec<&Tensor> = [Some(x), Some(step), zero].into_iter().flatten().collect();
    op::apply(Straight { codes, groups }, &inputs, x.shape())
}

/// `y = step * round(clamp((x - offset) / step, lo, hi)) + offset` with learned steps: LSQ (Esser et al. 2020, eq. 1 to 3)
/// and with an offset LSQ+ (Bhalgat et al. 2020, eq. 1, 2, 5 and 6).
///
/// With `v = (x - offset) / step`, the gradients are those of `y` times
///
/// | input | where `lo < v < hi` | elsewhere |
/// |---|---|---|
/// | `x` | 1 | 0 |
/// | `step` | `g (round(v) - v)` | `g lo` or `g hi` |
/// | `offset` | 0 | `g` |
///
/// where `g = 1 / sqrt(N hi)` for N numbers in a group.
///
/// # Shapes
/// `x` has the numbers of `groups`, in any shape; `step` and `offset` one number a group.
///
/// # Errors
/// As [`fake_quantise`].
pub fn learned_step(
    x: &Tensor,
    step: &Tensor,
    offset: Option<&Tensor>,
    codes: Codes,
    groups: Groups,
) -> Result<Tensor> {
    checked(x, step, offset, groups)?;
    if Form::of(x) != Form::Cpu {
        return composed::learned_step(x, step, offset, codes, groups);
    }
    let inputs: Vec<&Tensor> = [Some(x), Some(step), offset].into_iter().flatten().collect();
    op::apply(Learned { codes, groups }, &inputs, x.shape())
}

/// The gradients of the numbers and of the steps of [`learned_step`] without offsets, from the gradient `dy` of `y`.
///
/// # Errors
/// `Mismatch` for other counts or numbers of another type; `OutOfRange` for a step that is not above 0.
pub fn learned_step_gradients(
    x: &Tensor,
    step: &[f32],
    dy: &Tensor,
    codes: Codes,
    groups: Groups,
) -> Result<[Vec<f32>; 2]> {
    let count = |what: &str, expected: usize, got: usize| match got == expected {
        true => Ok(()),
        false => Err(Error::mismatch(what, expected, got)),
    };
    count("numbers to quantise", groups.numbers(), x.elem_count())?;
    count("gradients of numbers", groups.numbers(), dy.elem_count())?;
    count("steps", groups.count(), step.len())?;
    positive(step)?;
    let [x, dy] = [tensor::contiguous(x)?, tensor::contiguous(dy)?];
    let found = tensor::with(&x, |x| {
        tensor::with(&dy, |dy| {
            let (inputs, gradients) = ([x, step], [Some(dy)]);
            let (inputs, wanted) = (&inputs[..], &[true, true][..]);
            let pass = Pass { inputs, outputs: &[], gradients: &gradients, wanted };
            Ok(Learned { codes, groups }.backward(&pass))
        })
    })?;
    op::results(found?)
}

/// The first steps of LSQ, one for each group: `2 mean|x| / sqrt(hi)` (section 2.1), and 1 for a group of zeros.
pub fn first_steps(x: &[f32], codes: Codes, groups: Groups) -> Vec<f32> {
    let step = |group: &[f32]| {
        let sum: f64 = group.iter().map(|x| f64::from(x.abs())).sum();
        let step = 2.0 * sum / group.len() as f64 / f64::from(codes.hi).sqrt();
        if step > 0.0 { (step as f32).max(f32::MIN_POSITIVE) } else { 1.0 }
    };
    groups.of(x).map(step).collect()
}

/// The steps of the finest symmetric grids that contain their groups: `max|x| / hi`. The step of a group of zeros is 1, and
/// so is one that would be below the normal numbers of f32, which cannot be divided without loss.
pub fn finest_steps(x: &[f32], codes: Codes, groups: Groups) -> Vec<f32> {
    let [rows, cols, _] = groups.sizes();
    let mut steps = memory::zeros(groups.count());
    let hi = codes.hi as f32;
    pool::for_each_shard(
        rows,
        groups.shard(),
        [(&mut steps[..], groups.per_row())],
        |own, [steps]| {
            let all = steps.iter_mut().zip(groups.of(&x[own.start * cols..own.end * cols]));
            for (step, group) in all {
                let mut largest = 0.0;
                magnitude(group, &mut largest);
                let finest = largest / hi;
                *step = if finest >= f32::MIN_POSITIVE { finest } else { 1.0 };
            }
        },
    );
    steps
}

/// Partial maxima of a reduction.
const LANES: usize = 16;

dispatch! {
    /// Writes the largest magnitude.
    fn magnitude(x: &[f32], largest: &mut f32) {
        let mut lanes = [0.0f32; LANES];
        for x in x.chunks(LANES) {
            for (lane, x) in lanes.iter_mut().zip(x) {
                *lane = if x.abs() > *lane { x.abs() } else { *lane };
            }
        }
        *largest = lanes.iter().fold(0.0, |most, lane| f32::max(most, *lane));
    }
}

fn checked(x: &Tensor, step: &Tensor, beside: Option<&Tensor>, groups: Groups) -> Result<()> {
    let count = |what: &str, expected: usize, got: &Tensor| match got.elem_count() == expected {
        true => Ok(()),
        false => Err(Error::mismatch(what, expected, got.elem_count())),
    };
    count("numbers to quantise", groups.numbers(), x)?;
    count("steps", groups.count(), step)?;
    beside.map_or(Ok(()), |beside| count("zeros or offsets", groups.count(), beside))
}

/// Returns `OutOfRange` for a step that is not above 0, NaN included.
fn positive(steps: &[f32]) -> Result<()> {
    match steps.iter().find(|step| !(**step > 0.0 && step.is_finite())) {
        None => Ok(()),
        Some(step) if step.is_nan() => {
            Err(Error::NonFinite { what: "step".into(), value: f64::from(*step) })
        }
        Some(step) => Err(Error::out_of_range(
            "step",
            f64::from(*step),
            f64::MIN_POSITIVE,
            f64::from(f32::MAX),
        )),
    }
}
