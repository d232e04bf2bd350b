//! Bounded numbers: a Gaussian squashed by tanh (Haarnoja et al. 2018, appendix C).
//!
//! `u ~ N(mean, e^s)` and `a = low + (high - low) (tanh u + 1) / 2`. The logits are the means of all numbers, then
//! their log standard deviations s, clamped to [`LOG_STD`]. The log-density is `log p(a) = log N(u) - log |da/du|` with
//! `|da/du| = 2 (a - low) (high - a) / (high - low)` (equations 20 and 21 of that paper).
//!
//! A number at a bound has an infinite u. Such a number is moved inside by [`MARGIN`] times the range, wherever the
//! range lies. Moving to the nearest f32 would not suffice, because near 0 the spacing of f32 is almost 0.

mod moments;

use sconce_tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::distribution::{BaselineKind, Chance, Direction, Distribution, Pair, PriorRead, Shape};
use crate::bounds::{MAX_SIZE, within};
use crate::{Error, Result};

/// `size` independent numbers in `low..=high`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gaussian {
    /// Number of numbers.
    pub size: usize,
    /// Smallest value.
    pub low: f32,
    /// Largest value.
    pub high: f32,
}

/// Bounds of a log standard deviation. Without a lower bound the likelihood of an expert that never varies has no
/// maximum, and gradients of the mean grow without limit.
const LOG_STD: [f64; 2] = [-5.0, 2.0];

/// Largest distance of a likely label from the mode, as a share of the range: half a step of a stick of 17 positions.
const LIKELY: f32 = 1.0 / 32.0;

/// For a number at a bound, the assumed distance from the bound, as a share of the range: a rounding error of f32.
const MARGIN: f64 = 1.0 / (1u64 << 25) as f64;

/// First index of the random numbers for normals. From here on, no other head uses the generator's blocks.
const NORMALS: u64 = 1 << 32;

const HALF_LOG_TAU: f64 = 0.918_938_533_204_672_7;

/// Mean and log standard deviation of one u.
#[derive(Debug, Clone, Copy)]
struct Normal {
    mean: f64,
    log_std: f64,
}

impl Normal {
    fn new(mean: f32, log_std: f32) -> Self {
        let [least, most] = LOG_STD;
        Normal { mean: mean.into(), log_std: f64::from(log_std).clamp(least, most) }
    }

    fn std(self) -> f64 {
        self.log_std.exp()
    }

    fn entropy(self) -> f64 {
        self.log_std + HALF_LOG_TAU + 0.5
    }

    /// Distance of u from the mean in standard deviations.
    fn score(self, u: f64) -> f64 {
        (u - self.mean) / self.std()
    }

    /// Negative log-density of u.
    fn nll(self, u: f64) -> f64 {
        let z = self.score(u);
        0.5 * z * z + self.log_std + HALF_LOG_TAU
    }

    /// KL(self || other).
    fn divergence(self, other: Normal) -> f64 {
        let apart = self.score(other.mean);
        let ratio = 2.0 * (self.log_std - other.log_std);
        0.5 * (ratio.exp() * (1.0 + apart * apart) - 1.0 - ratio)
    }
}

impl Gaussian {
    fn width(&self) -> f64 {
        f64::from(self.high) - f64::from(self.low)
    }

    /// The distribution of u for each number.
    fn normals<'a>(&self, logits: &'a [f32]) -> impl Iterator<Item = Normal> + use<'a> {
        let (means, log_stds) = logits.split_at(self.size.min(logits.len()));
        means.iter().zip(log_stds).map(|(mean, log_std)| Normal::new(*mean, *log_std))
    }

    /// Distances of a number from both bounds. Both are positive.
    fn within(&self, value: f32) -> [f64; 2] {
        let (value, margin) = (f64::from(value), MARGIN * self.width());
        [value - f64::from(self.low), f64::from(self.high) - value]
            .map(|far| if far > 0.0 { far } else { margin })
    }

    /// Computes u, the value before tanh, from a number.
    fn pre(&self, value: f32) -> f64 {
        let [above, below] = self.within(value);
        0.5 * (above.ln() - below.ln())
    }

    fn squash(&self, u: f64) -> f32 {
        let value = f64::from(self.low) + self.width() * 0.5 * (u.tanh() + 1.0);
        (value as f32).clamp(self.low, self.high)
    }

    /// `log |da/du|`
    fn log_slope(&self, value: f32) -> f64 {
        let [above, below] = self.within(value);
        (2.0 * above * below / self.width()).ln()
    }
}

impl Distribution for Gaussian {
    fn logits(&self) -> usize {
        self.size.saturating_mul(2)
    }

    fn labels(&self) -> usize {
        self.size
    }

    fn bounds(&self) -> [f32; 2] {
        [self.low, self.high]
    }

    fn on_card(&self) -> Option<i32> {
        Some(2)
    }

    fn validate(&self, field: &str) -> Result<()> {
        within(&format!("{field}.size"), self.size, 1, MAX_SIZE / 2)?;
        let width = self.high - self.low;
        if width.is_finite() && width > 0.0 && (2.0 / width).is_finite() {
            return Ok(());
        }
        let got = format!("{}..{}", self.low, self.high);
        Err(Error::mismatch(field, "bounds from a number to a greater one", got))
    }

    fn choose(&self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]) {
        for (i, (normal, out)) in self.normals(logits).zip(out).enumerate() {
            let spread = || {
                let drawn = chance.rng.normal(NORMALS + chance.index + i as u64);
                normal.std() * f64::from(chance.sampling.temperature) * f64::from(drawn)
            };
            let spread = if chance.sampling.deterministic { 0.0 } else { spread() };
            *out = self.squash(normal.mean + spread);
        }
    }

    /// One minus the share of the range within one standard deviation of the mean, averaged over the numbers.
    fn confidence(&self, logits: &[f32]) -> f32 {
        let sure = |normal: Normal| {
            let (mean, std) = (normal.mean, normal.std());
            1.0 - 0.5 * ((mean + std).tanh() - (mean - std).tanh())
        };
        (self.normals(logits).map(sure).sum::<f64>() / self.size as f64) as f32
    }

    fn is_likely(&self, logits: &[f32], label: &[f32]) -> bool {
        let near = |(normal, label): (Normal, &f32)| {
            (self.squash(normal.mean) - label).abs() <= LIKELY * (self.high - self.low)
        };
        self.normals(logits).zip(label).all(near)
    }

    fn features(&self) -> usize {
        self.size
    }

    /// Maps numbers to -1..1.
    fn encode(&self, label: &[f32], out: &mut [f32]) {
        for (out, label) in out.iter_mut().zip(label) {
            *out = 2.0 * (label - self.low) / (self.high - self.low) - 1.0;
        }
    }

    fn encode_there(&self, labels: &Tensor, [n, all]: [usize; 2], first: usize) -> Result<Tensor> {
        let own = labels.reshape((n, all))?.narrow(1, first, self.size)?;
        let scale = 2.0 / self.width();
        Ok(own.affine(scale, -1.0 - scale * f64::from(self.low))?)
    }

    fn nll(&self, logits: &[f32], label: &[f32]) -> f64 {
        let of_number =
            |(normal, label): (Normal, &f32)| normal.nll(self.pre(*label)) + self.log_slope(*label);
        self.normals(logits).zip(label).map(of_number).sum()
    }

    /// The entropy of u, because the entropy of a squashed Gaussian has no closed form.
    fn entropy(&self, logits: &[f32]) -> f64 {
        self.normals(logits).map(Normal::entropy).sum()
    }

    fn learn(
        &self,
        logits: &[f32],
        label: &[f32],
        shape: &Shape<'_>,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Pair {
        let (means, log_stds) = gradient.split_at_mut(self.size);
        let mut sum = Pair { loss: 0.0, entropy: self.entropy(logits) * shape.entropy };
        let numbers = self.normals(logits).zip(label).zip(means).zip(log_stds).enumerate();
        for (i, (((normal, label), mean), log_std)) in numbers {
            let u = self.pre(*label);
            let z = normal.score(u);
            sum.loss += normal.nll(u) + self.log_slope(*label);
            *mean = (-pull.loss * z / normal.std()) as f32;
            let slope = pull.loss * (1.0 - z * z) - pull.entropy * shape.entropy;
            *log_std = held(slope, logits[self.size + i]) as f32;
        }
        sum
    }

    fn divergence(
        &self,
        direction: Direction,
        x: &[f32],
        y: &[f32],
        scale: f64,
        gradient: &mut [f32],
    ) -> f64 {
        let (means, log_stds) = gradient.split_at_mut(self.size);
        let mut sum = 0.0;
        let numbers = self.normals(x).zip(self.normals(y)).zip(means).zip(log_stds).enumerate();
        for (i, (((own, other), mean), log_std)) in numbers {
            let (kl, [by_mean, by_log_std]) = match direction {
                Direction::Forward => {
                    let apart = other.score(own.mean);
                    let ratio = (2.0 * (own.log_std - other.log_std)).exp();
                    (own.divergence(other), [apart / other.std(), ratio - 1.0])
                }
                Direction::Reverse => {
                    let apart = own.score(other.mean);
                    let ratio = (2.0 * (other.log_std - own.log_std)).exp();
                    (other.divergence(own), [-apart / own.std(), 1.0 - ratio - apart * apart])
                }
            };
            sum += kl;
            *mean += (scale * by_mean) as f32;
            *log_std += held(scale * by_log_std, x[self.size + i]) as f32;
        }
        sum
    }

    /// The table has one row for each mean, then one for each log standard deviation. A row holds a factor for u of
    /// each previous number, a constant that applies with a previous label, and one that applies without.
    fn prior(&self) -> [usize; 2] {
        [2 * self.size, self.size + 2]
    }

    fn prior_read(&self) -> PriorRead {
        PriorRead::Product(self.size + 2)
    }

    fn prior_key(&self, previous: Option<&[f32]>, out: &mut Vec<u32>) {
        out.extend(self.known(previous).map(f32::to_bits));
    }

    fn add_prior(&self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]) {
        for (row, logit) in table.chunks_exact(self.size + 2).zip(logits) {
            *logit += row.iter().zip(self.known(previous)).map(|(a, b)| a * b).sum::<f32>();
        }
    }

    fn counts(&self) -> usize {
        self.size * moments::LEN
    }

    fn count(&self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]) {
        for (i, (label, own)) in label.iter().zip(counts.chunks_exact_mut(moments::LEN)).enumerate()
        {
            let before = previous.and_then(|previous| previous.get(i));
            moments::count(before.map(|before| self.pre(*before)), self.pre(*label), own);
        }
    }

    fn fit(&self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32> {
        let columns = self.size + 2;
        let mut table = vec![0.0; 2 * self.size * columns];
        for (i, counts) in counts.chunks_exact(moments::LEN).enumerate() {
            let line = moments::fit(baseline, counts);
            let (mean, log_std) = (i * columns, (self.size + i) * columns);
            table[mean + i] = line.slope as f32;
            let [known, none] = [line.known, line.none];
            for (column, [offset, spread]) in [(self.size, known), (self.size + 1, none)] {
                table[mean + column] = offset as f32;
                table[log_std + column] = spread as f32;
            }
        }
        table
    }
}

impl Gaussian {
    /// The factors that a prior's table is multiplied by: u of each previous number, and two flags.
    fn known<'a>(&'a self, previous: Option<&'a [f32]>) -> impl Iterator<Item = f32> + 'a {
        let of = move |i: usize| {
            let number = previous.and_then(|previous| previous.get(i));
            number.map_or(0.0, |number| self.pre(*number) as f32)
        };
        let there = f32::from(u8::from(previous.is_some()));
        (0..self.size).map(of).chain([there, 1.0 - there])
    }
}

/// The gradient of a log standard deviation. Beyond the bounds, only gradients that lead back inside are kept.
fn held(slope: f64, log_std: f32) -> f64 {
    let [least, most] = LOG_STD;
    match f64::from(log_std) {
        log_std if log_std < least => slope.min(0.0),
        log_std if log_std > most => slope.max(0.0),
        _ => slope,
    }
}
