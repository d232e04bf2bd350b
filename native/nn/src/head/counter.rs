//! Counts of classes, and of pairs of a class and the previous one.
//!
//! One is added to the count of every class, so that pressing a button never pressed in training has a large but finite
//! loss.

use super::distribution::BaselineKind;

/// Counts of one label: `[classes]`, then pairs `[previous, class]`.
pub(super) struct Counter<'a> {
    labels: &'a [f64],
    pairs: &'a [f64],
}

/// Length of the counts of a [`Counter`].
pub(super) fn len(classes: usize) -> usize {
    classes.saturating_add(classes.saturating_mul(classes))
}

/// Counts a class, and its pair with the previous class.
pub(super) fn count(previous: Option<f32>, class: f32, classes: usize, counts: &mut [f64]) {
    let class = class as usize;
    counts[class] += 1.0;
    if let Some(previous) = previous {
        counts[classes + previous as usize * classes + class] += 1.0;
    }
}

impl<'a> Counter<'a> {
    pub(super) fn new(counts: &'a [f64], classes: usize) -> Self {
        let (labels, pairs) = counts.split_at(classes);
        Counter { labels, pairs }
    }

    /// Share of the labels that have this class.
    pub(super) fn rate(&self, class: usize) -> f64 {
        self.labels[class] / self.total().max(1.0)
    }

    fn total(&self) -> f64 {
        self.labels.iter().sum()
    }

    fn marginal(&self) -> Vec<f64> {
        let total = self.total() + self.labels.len() as f64;
        self.labels.iter().map(|n| (n + 1.0) / total).collect()
    }

    /// Probabilities `[classes + 1, classes]`, one row for each previous class. The last row applies without a previous
    /// class.
    pub(super) fn table(&self, kind: BaselineKind) -> Vec<f64> {
        let (classes, marginal) = (self.labels.len(), self.marginal());
        let repeat = if kind == BaselineKind::Repeat { self.repeat(&marginal) } else { 0.0 };
        let mut table = Vec::with_capacity((classes + 1) * classes);
        for (before, pairs) in self.pairs.chunks(classes).enumerate() {
            let seen = pairs.iter().sum::<f64>();
            let row = pairs.iter().zip(&marginal).enumerate().map(|(now, (n, m))| match kind {
                BaselineKind::Marginal => *m,
                BaselineKind::Repeat => repeat * f64::from(now == before) + (1.0 - repeat) * m,
                BaselineKind::Pairs => (n + m) / (seen + 1.0),
            });
            table.extend(row);
        }
        table.extend(&marginal);
        table
    }

    /// Maximum-likelihood probability of repeating the previous class, by EM (Dempster, Laird & Rubin 1977). The
    /// probability is kept one count below 1, because at 1 a change would have probability 0.
    fn repeat(&self, marginal: &[f64]) -> f64 {
        let total = self.pairs.iter().sum::<f64>();
        if total == 0.0 {
            return 0.0;
        }
        let same: Vec<_> = self.pairs.iter().step_by(self.labels.len() + 1).zip(marginal).collect();
        let mut p = 0.5;
        for _ in 0..200 {
            let copied = same.iter().map(|(n, m)| *n * p / (p + (1.0 - p) * *m));
            p = copied.sum::<f64>() / total;
        }
        p.min(total / (total + 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeat_maximises_the_likelihood() {
        // A stick at 0 0 0 1 1 has the four pairs (0, 0), (0, 0), (0, 1), (1, 1).
        let mut counts = vec![0.0; len(3)];
        for (i, class) in [0.0, 0.0, 0.0, 1.0, 1.0].into_iter().enumerate() {
            let before = [None, Some(0.0), Some(0.0), Some(0.0), Some(1.0)][i];
            count(before, class, 3, &mut counts);
        }
        let stick = Counter::new(&counts, 3);
        let p = stick.repeat(&stick.marginal());
        let likelihood = |p: f64| {
            let copy = |m: f64| (p + (1.0 - p) * m).ln();
            2.0 * copy(0.5) + ((1.0 - p) * 0.375).ln() + copy(0.375)
        };
        let best = (0..10_000).map(|i| f64::from(i) / 10_000.0);
        let best = best.max_by(|a, b| likelihood(*a).total_cmp(&likelihood(*b))).unwrap();
        assert!((p - best).abs() < 2e-4, "{p} {best}");
        let table = stick.table(BaselineKind::Repeat);
        let want = [(1.0 - p) * 0.5, p + (1.0 - p) * 0.375, (1.0 - p) * 0.125];
        assert!(table[3..6].iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-12));
    }
}
