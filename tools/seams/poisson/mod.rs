//! A count from 0 to a maximum: a Poisson distribution truncated at the maximum. Its logit is the logarithm of its
//! rate.

use super::counter::{self, Counter};
use super::distribution::{BaselineKind, Chance, Direction, Distribution, Pair, PriorRead, Shape};
use crate::Result;
use crate::bounds::within;

/// The head's distribution. Holds the largest count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Poisson(pub(super) usize);

/// The log-probabilities of all counts.
fn log_probabilities(most: usize, x: f32) -> Vec<f64> {
    let (mut log_factorial, mut logs) = (0.0, Vec::with_capacity(most + 1));
    for count in 0..=most {
        log_factorial += (count.max(1) as f64).ln();
        logs.push(count as f64 * f64::from(x) - log_factorial);
    }
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = largest + logs.iter().map(|log| (log - largest).exp()).sum::<f64>().ln();
    logs.iter().map(|log| log - total).collect()
}

fn mean(logs: &[f64]) -> f64 {
    logs.iter().enumerate().map(|(count, log)| count as f64 * log.exp()).sum()
}

/// The derivative with respect to x of the expectation of `of`, with `of` held constant.
fn slope(logs: &[f64], of: impl Fn(usize) -> f64) -> f64 {
    let mean = mean(logs);
    let each = logs.iter().enumerate();
    each.map(|(count, log)| log.exp() * (count as f64 - mean) * of(count)).sum()
}

impl Distribution for Poisson {
    fn logits(&self) -> usize {
        1
    }

    fn labels(&self) -> usize {
        1
    }

    fn classes(&self) -> usize {
        self.0 + 1
    }

    fn bounds(&self) -> [f32; 2] {
        [0.0, self.0 as f32]
    }

    fn validate(&self, field: &str) -> Result<()> {
        within(&format!("{field}.size"), self.0, 1, 1000)
    }

    fn choose(&self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]) {
        let logs = log_probabilities(self.0, logits[0]);
        let likely = || logs.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
        let drawn = || {
            let mut left = f64::from(chance.rng.uniform(chance.index));
            logs.iter().position(|log| {
                left -= log.exp();
                left < 0.0
            })
        };
        let count = if chance.sampling.deterministic { likely() } else { drawn() };
        out[0] = count.unwrap_or(self.0) as f32;
    }

    fn confidence(&self, logits: &[f32]) -> f32 {
        log_probabilities(self.0, logits[0]).iter().map(|log| log.exp()).fold(0.0, f64::max) as f32
    }

    fn is_likely(&self, logits: &[f32], label: &[f32]) -> bool {
        let logs = log_probabilities(self.0, logits[0]);
        logs.iter().all(|log| *log <= logs[label[0] as usize])
    }

    fn features(&self) -> usize {
        1
    }

    fn encode(&self, label: &[f32], out: &mut [f32]) {
        out[0] = label[0] / self.0 as f32;
    }

    fn nll(&self, logits: &[f32], label: &[f32]) -> f64 {
        -log_probabilities(self.0, logits[0])[label[0] as usize]
    }

    fn entropy(&self, logits: &[f32]) -> f64 {
        log_probabilities(self.0, logits[0]).iter().map(|log| -log * log.exp()).sum()
    }

    fn learn(
        &self,
        logits: &[f32],
        label: &[f32],
        shape: &Shape<'_>,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Pair {
        let logs = log_probabilities(self.0, logits[0]);
        let entropy = slope(&logs, |count| -logs[count]) * shape.entropy;
        let loss = mean(&logs) - f64::from(label[0]);
        gradient[0] = (pull.loss * loss - pull.entropy * entropy) as f32;
        Pair { loss: self.nll(logits, label), entropy: self.entropy(logits) * shape.entropy }
    }

    fn divergence(
        &self,
        direction: Direction,
        x: &[f32],
        y: &[f32],
        scale: f64,
        gradient: &mut [f32],
    ) -> f64 {
        let (own, other) = (log_probabilities(self.0, x[0]), log_probabilities(self.0, y[0]));
        let (over, apart, by_x): (_, f64, _) = match direction {
            Direction::Forward => (&own, 1.0, slope(&own, |count| own[count] - other[count])),
            Direction::Reverse => (&other, -1.0, mean(&own) - mean(&other)),
        };
        gradient[0] += (scale * by_x) as f32;
        let each = own.iter().zip(&other).zip(over);
        each.map(|((own, other), over)| over.exp() * apart * (own - other)).sum()
    }

    fn prior(&self) -> [usize; 2] {
        [self.0 + 2, 1]
    }

    fn prior_read(&self) -> PriorRead {
        PriorRead::Rows(1)
    }

    fn prior_key(&self, previous: Option<&[f32]>, out: &mut Vec<u32>) {
        out.push(previous.map_or(self.0 + 1, |count| count[0] as usize) as u32);
    }

    fn add_prior(&self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]) {
        logits[0] += table[previous.map_or(self.0 + 1, |count| count[0] as usize)];
    }

    fn counts(&self) -> usize {
        counter::len(self.0 + 1)
    }

    fn count(&self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]) {
        counter::count(previous.map(|count| count[0]), label[0], self.0 + 1, counts);
    }

    fn fit(&self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32> {
        let table = Counter::new(counts, self.0 + 1).table(baseline);
        let rows = table.chunks(self.0 + 1);
        let rate = |row: &[f64]| row.iter().enumerate().map(|(i, p)| i as f64 * p).sum::<f64>();
        rows.map(|row| rate(row).max(1e-3).ln() as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_agree_with_finite_differences() {
        let (head, x, label) = (Poisson(5), 0.7f32, [3.0]);
        let pull = Pair { loss: 1.5, entropy: 0.4 };
        let at = |x: f32| 1.5 * head.nll(&[x], &label) - 0.4 * head.entropy(&[x]);
        let mut gradient = [0.0];
        head.learn(&[x], &label, &Shape::default(), pull, &mut gradient);
        let slope = (at(x + 1e-3) - at(x - 1e-3)) / 2e-3;
        assert!((f64::from(gradient[0]) - slope).abs() < 1e-3, "{gradient:?} {slope}");
        for direction in [Direction::Forward, Direction::Reverse] {
            let kl = |x: f32| head.divergence(direction, &[x], &[0.2], 0.0, &mut [0.0]);
            let mut gradient = [0.0];
            head.divergence(direction, &[x], &[0.2], 1.0, &mut gradient);
            let slope = (kl(x + 1e-3) - kl(x - 1e-3)) / 2e-3;
            assert!((f64::from(gradient[0]) - slope).abs() < 1e-3, "{gradient:?} {slope}");
        }
    }
}
