//! Fake quantisation of single matrices, with gradients, for those who train elsewhere.

use sconce_ops::fake_quantise::first_steps;
use sconce_ops::{Codes, Groups, fake_quantise, learned_step};
use sconce_tensor::candle::{Device, Var};
use sconce_tensor::tape::{self, Gradients};
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Error, Result, Tensor};
use serde::{Deserialize, Serialize};

use crate::grid::{Fit, Grid};
use crate::matrix::{Matrix, finite};

/// The options of fake quantisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FakeOptions {
    /// The form of the grid.
    pub grid: Grid,
    /// Codes `-2^(bits - 1)..` instead of the symmetric range. Excludes zero points.
    pub full_range: bool,
    /// Steps and offsets are learned: they have gradients.
    pub learned: bool,
}

/// Fake quantisation of a matrix.
#[derive(Debug, Clone, Default)]
pub struct Fake {
    /// A step for each group. `None` stands for the first steps: those of [`first_steps`] if they are learned without
    /// offsets, else those of the matrix' own range.
    pub steps: Option<Vec<f32>>,
    /// A whole zero point for each group, or an offset if the steps are learned. Given if and only if the grid has zero
    /// points and the steps are given.
    pub zeros: Option<Vec<f32>>,
    /// The gradient of the result, if gradients are wanted.
    pub gradient: Option<Vec<f32>>,
}

/// The result of [`Fake::run`].
#[derive(Debug, Clone, PartialEq)]
pub struct Faked {
    /// The numbers on the grid.
    pub y: Vec<f32>,
    /// The steps in use.
    pub steps: Vec<f32>,
    /// The zero points or offsets in use; empty without.
    pub zeros: Vec<f32>,
    /// The gradients of matrix, steps and offsets. The last two are empty unless they are learned.
    pub gradients: Option<[Vec<f32>; 3]>,
}

impl FakeOptions {
    fn codes(self) -> Result<Codes> {
        match (self.full_range, self.grid.zero_point) {
            (true, true) => {
                Err(Error::mismatch("range", "the range of codes with zero points", "full"))
            }
            (true, false) => Codes::full(self.grid.bits),
            (false, _) => self.grid.codes(),
        }
    }
}

impl Fake {
    /// Rounds a matrix to its grid, by the ops that training uses.
    ///
    /// # Errors
    /// `OutOfRange` for bits, groups, steps and zero points out of range; `Mismatch` for other counts; `NonFinite`.
    pub fn run(self, x: &Matrix, options: FakeOptions) -> Result<Faked> {
        let codes = options.codes()?;
        let groups = options.grid.per.groups(x.rows(), x.cols())?;
        let gradient = self.gradient.clone();
        let (steps, zeros) = self.start(x, options, codes, groups)?;
        let _tape = tape::record();
        let shape = [x.rows(), x.cols()];
        let input = variable(x.values().to_vec(), &shape)?;
        let step = variable(steps.clone(), &[steps.len()])?;
        let beside = zeros.as_ref().map(|zeros| variable(zeros.clone(), &[zeros.len()]));
        let beside = beside.transpose()?;
        let y = match options.learned {
            true => learned_step(&input, &step, beside.as_ref(), codes, groups)?,
            false => fake_quantise(&input, &step, beside.as_ref(), codes, groups)?,
        };
        let values = to_vec(&y)?;
        let gradients = match gradient {
            None => None,
            Some(dy) => {
                let dy = Matrix::new("gradient", x.rows(), x.cols(), dy)?.values().to_vec();
                let found = tape::backward(&y, tensor(dy, &shape[..])?)?;
                let of = |x: Option<&Tensor>| x.map_or(Ok(vec![]), |x| read(&found, x));
                Some([of(Some(&input))?, of(Some(&step))?, of(beside.as_ref())?])
            }
        };
        finite("rounded numbers", &values)?;
        gradients.iter().flatten().try_for_each(|own| finite("gradient", own))?;
        Ok(Faked { y: values, steps, zeros: zeros.unwrap_or_default(), gradients })
    }

    /// Steps, and zero points or offsets.
    fn start(
        self,
        x: &Matrix,
        options: FakeOptions,
        codes: Codes,
        groups: Groups,
    ) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
        let what = if options.learned { "offset" } else { "zero" };
        let misfit = |expected: &str, got: &str| Err(Error::mismatch(what, expected, got));
        match (self.steps, self.zeros, options.grid.zero_point) {
            (Some(steps), None, false) => Ok((steps, None)),
            (None, None, false) if options.learned => {
                Ok((first_steps(x.values(), codes, groups), None))
            }
            (None, None, zero_point) => {
                let fits = groups
                    .of(x.values())
                    .map(|group| options.grid.fit(codes, group.iter().map(|w| f64::from(*w))));
                let fits: Vec<Fit> = fits.collect();
                let zero = |fit: &Fit| match options.learned {
                    true => -fit.scale * f32::from(fit.zero),
                    false => f32::from(fit.zero),
                };
                let zeros = zero_point.then(|| fits.iter().map(zero).collect());
                Ok((fits.iter().map(|fit| fit.scale).collect(), zeros))
            }
            (Some(steps), Some(zeros), true) => {
                finite(what, &zeros)?;
                let is_code = |z: &f32| z.fract() == 0.0 && (0.0..=codes.hi as f32).contains(z);
                match zeros.iter().find(|zero| !options.learned && !is_code(zero)) {
                    None => Ok((steps, Some(zeros))),
                    Some(zero) => {
                        let (zero, most) = (f64::from(*zero), f64::from(codes.hi));
                        Err(Error::out_of_range(what, zero, 0.0, most))
                    }
                }
            }
            (Some(_), None, true) => misfit("one for each step", "none"),
            (None, Some(_), true) => misfit("steps beside them", "none"),
            (_, Some(_), false) => misfit("none without zero points", "some"),
        }
    }
}

fn variable(values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?;
    Ok(Var::from_tensor(&tensor)?.into_inner())
}

/// A gradient; empty for an input without one.
fn read(gradients: &Gradients, x: &Tensor) -> Result<Vec<f32>> {
    gradients.get(x).map_or(Ok(vec![]), |d| Ok(to_vec(d)?))
}
