//! Outliers of activations moved into the weights: SmoothQuant (Xiao et al. 2023).

use sconce_tensor::{Error, Result};

use crate::matrix::Matrix;

/// A layer whose inputs are easier to quantise.
#[derive(Debug, Clone, PartialEq)]
pub struct Smoothed {
    /// The factor of each input: the layer then reads its inputs divided by it.
    pub factors: Vec<f32>,
    /// The weight with each column multiplied by its factor, so that the outputs stay the same.
    pub weight: Vec<f32>,
}

/// Factors `max|x_j|^alpha / max|w_j|^(1 - alpha)` for each input j (eq. 4), from the largest magnitudes of the inputs.
/// An input that never fires, or that no output reads, has the factor 1.
///
/// # Errors
/// `Mismatch` for another number of maxima, `OutOfRange` for one below 0 and unless alpha is from 0 to 1, `NonFinite`
/// for maxima that are not finite and factors that f32 cannot hold.
pub fn smooth(weight: &Matrix, maxima: &[f32], alpha: f64) -> Result<Smoothed> {
    if maxima.len() != weight.cols() {
        let expected = format!("maxima of {} inputs", weight.cols());
        return Err(Error::mismatch("calibration", expected, maxima.len()));
    }
    if !(0.0..=1.0).contains(&alpha) {
        return Err(Error::out_of_range("alpha", alpha, 0.0, 1.0));
    }
    crate::matrix::finite("maximum of an input", maxima)?;
    if let Some(below) = maxima.iter().find(|most| **most < 0.0) {
        let below = f64::from(*below);
        return Err(Error::out_of_range("maximum of an input", below, 0.0, f64::MAX));
    }
    let mut most = vec![0f32; weight.cols()];
    for row in weight.each_row() {
        most.iter_mut().zip(row).for_each(|(most, w)| *most = most.max(w.abs()));
    }
    let factor = |(x, w): (&f32, &f32)| match *x > 0.0 && *w > 0.0 {
        true => (f64::from(*x).powf(alpha) / f64::from(*w).powf(1.0 - alpha)) as f32,
        false => 1.0,
    };
    let factors: Vec<f32> = maxima.iter().zip(&most).map(factor).collect();
    let row = |row: &[f32]| row.iter().zip(&factors).map(|(w, s)| w * s).collect::<Vec<_>>();
    let weight: Vec<f32> = weight.each_row().flat_map(row).collect();
    crate::matrix::finite("factor", &factors)?;
    crate::matrix::finite("smoothed weight", &weight)?;
    Ok(Smoothed { factors, weight })
}
