//! Statistics of the gradient of each weight, and of the size of its update.

use serde::{Deserialize, Serialize};

/// Number of classes of a histogram. Class `i` counts magnitudes from `10^(LOWEST + i)` to ten times that. The first
/// class also counts all smaller magnitudes except zeros, the last class all larger ones.
pub const DECADES: usize = 16;

/// The power of ten at which the first class begins.
pub const LOWEST: i32 = -12;

/// Statistics of a weight in one update.
///
/// The gradient is the mean over the batches of the step, before clipping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightGradient {
    /// Name of the weight.
    pub name: String,
    /// Number of elements of the weight.
    pub numbers: u64,
    /// Euclidean norm of the gradient.
    pub norm: f64,
    /// Mean magnitude of the gradient's elements.
    pub mean_abs: f64,
    /// Largest magnitude of the gradient's elements.
    pub max_abs: f64,
    /// Share of the gradient's elements that are 0.
    pub zeros: f64,
    /// Nonzero magnitudes by their power of ten, see [`DECADES`].
    pub histogram: Vec<u64>,
    /// Euclidean norm of the weight before the update.
    pub weight_norm: f64,
    /// Norm of the change divided by `weight_norm`; `None` for a weight that was 0.
    pub update_ratio: Option<f64>,
}

/// Statistics of all weights in one update; one line of `gradients.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GradientReport {
    /// Step of the update, counted from 1.
    pub step: u64,
    /// Statistics of each weight.
    pub weights: Vec<WeightGradient>,
}

impl WeightGradient {
    /// Computes the statistics of the mean gradient `gradient / learned`, and of the weight `before` and `after` the
    /// update.
    ///
    /// # Shapes
    /// `gradient`, `before`, `after` `[n]`
    pub fn new(name: &str, gradient: &[f32], learned: f64, before: &[f32], after: &[f32]) -> Self {
        let (mut squares, mut sum, mut max_abs, mut zeros) = (0.0, 0.0, 0.0f64, 0u64);
        let mut histogram = vec![0; DECADES];
        for g in gradient.iter().map(|&g| (f64::from(g) / learned).abs()) {
            squares += g * g;
            sum += g;
            max_abs = max_abs.max(g);
            match g {
                0.0 => zeros += 1,
                g => histogram[decade(g)] += 1,
            }
        }
        let change = before.iter().zip(after).map(|(a, b)| f64::from(*b) - f64::from(*a));
        let moved = length(change);
        let weight_norm = length(before.iter().map(|&w| f64::from(w)));
        let mean = |sum: f64| sum / gradient.len().max(1) as f64;
        WeightGradient {
            name: name.into(),
            numbers: gradient.len() as u64,
            norm: squares.sqrt(),
            mean_abs: mean(sum),
            max_abs,
            zeros: mean(zeros as f64),
            histogram,
            weight_norm,
            update_ratio: (weight_norm > 0.0).then(|| moved / weight_norm),
        }
    }
}

fn length(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|v| v * v).sum::<f64>().sqrt()
}

fn decade(g: f64) -> usize {
    let class = g.log10().floor() as i32 - LOWEST;
    class.clamp(0, DECADES as i32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_a_weight_are_those_worked_out_by_hand() {
        // The mean gradient of the two batches is 3, 0, -4, 0.
        let (gradient, before) = ([6.0, 0.0, -8.0, 0.0], [1.0, 2.0, 2.0, 4.0]);
        let seen = WeightGradient::new("w", &gradient, 2.0, &before, &[1.0, 2.0, 2.0, 4.5]);
        assert_eq!((seen.name.as_str(), seen.numbers), ("w", 4));
        assert_eq!((seen.norm, seen.mean_abs, seen.max_abs), (5.0, 1.75, 4.0));
        assert_eq!((seen.zeros, seen.weight_norm), (0.5, 5.0));
        assert_eq!(seen.update_ratio, Some(0.1));
        assert_eq!(seen.histogram.iter().sum::<u64>(), 2);
        assert_eq!(seen.histogram[-LOWEST as usize], 2);
    }

    #[test]
    fn each_magnitude_is_in_the_class_of_its_power_of_ten_and_the_first_and_last_are_open() {
        let gradient = [1e-30, 2e-12, 0.5, -1.5, 20.0, 1e30];
        let seen = WeightGradient::new("w", &gradient, 1.0, &[0.0; 6], &[1.0; 6]);
        let mut expected = vec![0; DECADES];
        for class in [0, 0, 11, 12, 13, DECADES - 1] {
            expected[class] += 1;
        }
        assert_eq!(seen.histogram, expected);
        assert_eq!(seen.update_ratio, None);
    }
}
