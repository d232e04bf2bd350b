//! What the gradient of each weight looks like, and how far an update moves it.

use serde::{Deserialize, Serialize};

/// Classes of a histogram: class `i` has the numbers from `10^(LOWEST + i)` to ten times that. The first
/// has all that are smaller too, but for zeros, the last all that are larger.
pub const DECADES: usize = 16;

/// The power of ten at which the first class begins.
pub const LOWEST: i32 = -12;

/// A weight in one update.
///
/// The gradient is the mean of the step's batches before it is clipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightGradient {
    pub name: String,
    /// How many it has.
    pub numbers: u64,
    /// Euclidean length of the gradient,
    pub norm: f64,
    /// the mean and the largest of its absolute numbers,
    pub mean_abs: f64,
    pub max_abs: f64,
    /// and the share of those that are 0.
    pub zeros: f64,
    /// Absolute numbers other than 0 by their power of ten, see [`DECADES`].
    pub histogram: Vec<u64>,
    /// Length of the weight before the update,
    pub weight_norm: f64,
    /// and that of its change over it; none of a weight that was 0.
    pub update_ratio: Option<f64>,
}

/// All weights in one update; a line of `gradients.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GradientReport {
    pub step: u64,
    pub weights: Vec<WeightGradient>,
}

impl WeightGradient {
    /// Of a sum of gradients of which so much is `learned`, and the weight `before` and `after` it.
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
        // The mean of two batches: 3, 0, -4, 0.
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
    fn each_number_is_in_the_class_of_its_power_of_ten_and_the_last_ones_are_open() {
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
