//! What a policy has to beat: distributions counted on the training labels.
//!
//! One table a number of the label, `P(value | previous value)`. One count is added to every value,
//! so that a button never pressed in training costs much when it is, but not infinitely much.

use sconce_nn::heads::NONE;
use sconce_nn::spec::{HeadKind, Heads};
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::objective::imitation::check_heads;

/// Pairs of more classes than this are not counted: a table would take more than 128 MiB.
const MAX_CLASSES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineKind {
    /// How often each value occurs.
    Marginal,
    /// The previous value with a fitted probability, otherwise the marginal.
    Repeat,
    /// How often each value follows each other one.
    Pairs,
}

impl BaselineKind {
    pub const ALL: [BaselineKind; 3] =
        [BaselineKind::Marginal, BaselineKind::Repeat, BaselineKind::Pairs];

    pub fn name(self) -> &'static str {
        match self {
            BaselineKind::Marginal => "marginal",
            BaselineKind::Repeat => "repeat",
            BaselineKind::Pairs => "pairs",
        }
    }
}

/// Labels, and pairs of a label and the one before, counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    heads: Heads,
    numbers: Vec<Counter>,
}

/// Counts of one number of the label.
#[derive(Debug, Clone, PartialEq)]
struct Counter {
    /// The head that the number belongs to.
    head: usize,
    classes: usize,
    labels: Vec<u64>,
    /// `[previous, value]`
    pairs: Vec<u64>,
}

impl Counts {
    /// # Errors
    /// `OutOfRange` for a head of more than 4096 classes.
    pub fn new(heads: &Heads) -> Result<Self> {
        check_heads(heads)?;
        let mut numbers = Vec::with_capacity(heads.num_labels());
        for (head, part) in heads.iter().enumerate() {
            let classes = part.head.kind.classes();
            if classes > MAX_CLASSES {
                let field = format!("classes of {}", part.head.name);
                return Err(Error::out_of_range(field, classes as f64, 2.0, MAX_CLASSES as f64));
            }
            let (labels, pairs) = (vec![0; classes], vec![0; classes * classes]);
            let counter = Counter { head, classes, labels, pairs };
            numbers.extend(std::iter::repeat_n(counter, part.head.kind.labels()));
        }
        Ok(Counts { heads: heads.clone(), numbers })
    }

    /// Counts frames. A row of `previous` that begins with [`NONE`] is not a pair.
    ///
    /// # Shapes
    /// `previous` and `labels` `[n, num_labels]`
    pub fn add(&mut self, previous: &[u16], labels: &[u16]) -> Result<()> {
        let width = self.heads.num_labels().max(1);
        check_rows("labels", labels, width)?;
        if previous.len() != labels.len() {
            return Err(Error::mismatch("previous actions", labels.len(), previous.len()));
        }
        for (previous, labels) in previous.chunks(width).zip(labels.chunks(width)) {
            let paired = previous.first() != Some(&NONE);
            for ((counter, &before), &now) in self.numbers.iter_mut().zip(previous).zip(labels) {
                let now = index(&self.heads, counter.head, "label", now)?;
                counter.labels[now] += 1;
                if paired {
                    let before = index(&self.heads, counter.head, "previous action", before)?;
                    counter.pairs[before * counter.classes + now] += 1;
                }
            }
        }
        Ok(())
    }

    /// Adds what was counted elsewhere over the same heads.
    pub fn merge(&mut self, other: &Counts) -> Result<()> {
        if self.heads != other.heads {
            return Err(Error::mismatch("heads of counts", "the same heads", "others"));
        }
        for (a, b) in self.numbers.iter_mut().zip(&other.numbers) {
            a.labels.iter_mut().zip(&b.labels).for_each(|(a, b)| *a += b);
            a.pairs.iter_mut().zip(&b.pairs).for_each(|(a, b)| *a += b);
        }
        Ok(())
    }

    /// Share of frames on which each bernoulli bit is set, for `pos_weight_auto`.
    pub fn press_rates(&self) -> Vec<f64> {
        let is_bit = |c: &&Counter| {
            matches!(self.heads.parts.get(c.head).map(|h| h.kind), Some(HeadKind::Bernoulli(_)))
        };
        let rate = |c: &Counter| c.labels[1] as f64 / c.total().max(1) as f64;
        self.numbers.iter().filter(is_bit).map(rate).collect()
    }
}

impl Counter {
    fn total(&self) -> u64 {
        self.labels.iter().sum()
    }

    fn marginal(&self) -> Vec<f64> {
        let total = (self.total() + self.classes as u64) as f64;
        self.labels.iter().map(|&n| (n + 1) as f64 / total).collect()
    }

    /// Probabilities `[classes + 1, classes]`; the last row is for no previous value.
    fn table(&self, kind: BaselineKind) -> Vec<f64> {
        let marginal = self.marginal();
        let repeat = if kind == BaselineKind::Repeat { self.repeat(&marginal) } else { 0.0 };
        let mut table = Vec::with_capacity((self.classes + 1) * self.classes);
        for (before, pairs) in self.pairs.chunks(self.classes).enumerate() {
            let seen = pairs.iter().sum::<u64>() as f64;
            let row = pairs.iter().zip(&marginal).enumerate().map(|(now, (&n, m))| match kind {
                BaselineKind::Marginal => *m,
                BaselineKind::Repeat => repeat * f64::from(now == before) + (1.0 - repeat) * m,
                BaselineKind::Pairs => (n as f64 + m) / (seen + 1.0),
            });
            table.extend(row);
        }
        table.extend(&marginal);
        table
    }

    /// Maximum likelihood by EM (Dempster, Laird & Rubin 1977): the share of frames which copying
    /// explains. Kept one count away from 1, where a change would be impossible.
    fn repeat(&self, marginal: &[f64]) -> f64 {
        let total = self.pairs.iter().sum::<u64>() as f64;
        if total == 0.0 {
            return 0.0;
        }
        let same: Vec<_> =
            self.pairs.iter().step_by(self.classes + 1).map(|&n| n as f64).zip(marginal).collect();
        let mut p = 0.5;
        for _ in 0..200 {
            let copied = same.iter().map(|(n, m)| n * p / (p + (1.0 - p) * *m));
            p = copied.sum::<f64>() / total;
        }
        p.min(total / (total + 1.0))
    }
}

/// A fitted baseline: for every previous action a distribution of each head.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    kind: BaselineKind,
    heads: Heads,
    tables: Vec<Table>,
}

/// Logits of one head for each previous value, and in the last row for none.
///
/// A categorical head of C classes has `[C + 1, C]` log-probabilities. A bernoulli head of n bits
/// has `[3, n]` logits: of each bit after a 0, after a 1, and after nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub head: String,
    pub rows: usize,
    pub columns: usize,
    pub values: Vec<f32>,
}

impl Baseline {
    pub fn fit(kind: BaselineKind, counts: &Counts) -> Self {
        let tables = counts.heads.iter().map(|part| {
            let numbers = &counts.numbers[part.labels..][..part.head.kind.labels()];
            let probabilities: Vec<_> = numbers.iter().map(|c| c.table(kind)).collect();
            let rows = part.head.kind.classes() + 1;
            let columns = part.head.kind.logits();
            let values = match part.head.kind {
                HeadKind::Bernoulli(_) => (0..rows)
                    .flat_map(|r| probabilities.iter().map(move |p| logit(&p[2 * r..])))
                    .collect(),
                HeadKind::Categorical(_) => {
                    probabilities.iter().flatten().map(|p| p.ln() as f32).collect()
                }
            };
            Table { head: part.head.name.clone(), rows, columns, values }
        });
        Baseline { kind, heads: counts.heads.clone(), tables: tables.collect() }
    }

    pub fn kind(&self) -> BaselineKind {
        self.kind
    }

    pub fn heads(&self) -> &Heads {
        &self.heads
    }

    /// The tables by head; those of [`BaselineKind::Pairs`] are where a policy's prior starts.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// What the baseline says after each previous action, as logits for `Metrics::add`.
    ///
    /// # Shapes
    /// `previous [n, num_labels]` -> `[n, num_logits]`
    pub fn logits(&self, previous: &[u16]) -> Result<Vec<f32>> {
        let width = self.heads.num_labels().max(1);
        check_rows("previous actions", previous, width)?;
        let mut out = Vec::with_capacity(previous.len() / width * self.heads.num_logits());
        for row in previous.chunks(width) {
            let exists = row.first() != Some(&NONE);
            for (h, (part, table)) in self.heads.iter().zip(&self.tables).enumerate() {
                let numbers = &row[part.labels..][..part.head.kind.labels()];
                let place = |value: u16| match exists {
                    true => index(&self.heads, h, "previous action", value),
                    false => Ok(table.rows - 1),
                };
                match part.head.kind {
                    HeadKind::Bernoulli(n) => {
                        for (bit, &value) in numbers.iter().enumerate() {
                            out.push(table.values[place(value)? * n + bit]);
                        }
                    }
                    HeadKind::Categorical(n) => {
                        let at = place(numbers.first().copied().unwrap_or(NONE))? * n;
                        out.extend_from_slice(&table.values[at..at + n]);
                    }
                }
            }
        }
        Ok(out)
    }
}

/// Of the second of two probabilities.
fn logit(p: &[f64]) -> f32 {
    (p[1].ln() - p[0].ln()) as f32
}

fn check_rows(what: &str, rows: &[u16], width: usize) -> Result<()> {
    match rows.len() % width {
        0 => Ok(()),
        _ => Err(Error::mismatch(what, format!("rows of {width}"), rows.len())),
    }
}

fn index(heads: &Heads, head: usize, what: &str, value: u16) -> Result<usize> {
    let head = &heads.parts[head];
    let max = head.kind.classes() - 1;
    match usize::from(value) {
        i if i <= max => Ok(i),
        _ => {
            let field = format!("{what} of {}", head.name);
            Err(Error::out_of_range(field, value.into(), 0.0, max as f64))
        }
    }
}

#[cfg(test)]
mod tests {
    use sconce_nn::spec::{Head, HeadsKind};

    use super::*;
    use crate::metrics::Metrics;

    fn heads() -> Heads {
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
        Heads {
            kind: HeadsKind::Independent,
            parts: vec![
                head("button", HeadKind::Bernoulli(1)),
                head("stick", HeadKind::Categorical(3)),
            ],
            stream_size: 4,
            prior: false,
        }
    }

    /// Five frames of one game: the button 0 0 1 1 0, the stick 0 0 0 1 1.
    const LABELS: [u16; 10] = [0, 0, 0, 0, 1, 0, 1, 1, 0, 1];

    fn previous() -> Vec<u16> {
        [&[NONE, NONE], &LABELS[..8]].concat()
    }

    fn counts() -> Counts {
        let mut counts = Counts::new(&heads()).unwrap();
        counts.add(&previous(), &LABELS).unwrap();
        counts
    }

    fn close(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((f64::from(*g) - w).abs() < 1e-6, "{got:?} {want:?}");
        }
    }

    #[test]
    fn the_marginal_has_one_count_more_of_everything() {
        let baseline = Baseline::fit(BaselineKind::Marginal, &counts());
        // Three zeros and two ones; three 0, two 1, no 2.
        let want = [(3f64 / 4.0).ln(), (4f64 / 8.0).ln(), (3f64 / 8.0).ln(), (1f64 / 8.0).ln()];
        close(&baseline.logits(&[1, 2]).unwrap(), &want);
        close(&baseline.logits(&[NONE; 2]).unwrap(), &want);
    }

    #[test]
    fn pairs_are_counted_within_games_and_smoothed_by_the_marginal() {
        let baseline = Baseline::fit(BaselineKind::Pairs, &counts());
        let [button, stick] = baseline.tables() else { panic!("two heads") };
        // Marginal of a press 3/7. After 0: one 0, one 1; after 1: one 0, one 1.
        let after = ((1.0 + 3.0 / 7.0) / 3.0f64, (1.0 + 4.0 / 7.0) / 3.0f64);
        let press = (after.0 / after.1).ln();
        assert_eq!((button.rows, button.columns, stick.rows, stick.columns), (3, 1, 4, 3));
        close(&button.values, &[press, press, (3f64 / 4.0).ln()]);
        // Marginal 4/8, 3/8, 1/8. After 0: two 0, one 1; after 1: one 1; after 2: nothing.
        let want = [2.5 / 4.0, 1.375 / 4.0, 0.125 / 4.0, 0.5 / 2.0, 1.375 / 2.0, 0.125 / 2.0];
        let want: Vec<f64> = want.iter().chain(&[0.5, 0.375, 0.125].repeat(2)).cloned().collect();
        close(&stick.values, &want.iter().map(|p: &f64| p.ln()).collect::<Vec<_>>());
    }

    #[test]
    fn repeat_has_the_probability_of_the_greatest_likelihood() {
        let counts = counts();
        let stick = &counts.numbers[1];
        let marginal = stick.marginal();
        let p = stick.repeat(&marginal);
        // Of four pairs 0 0, 0 0, 0 1, 1 1.
        let likelihood = |p: f64| {
            let copy = |m: f64| (p + (1.0 - p) * m).ln();
            2.0 * copy(0.5) + ((1.0 - p) * 0.375).ln() + copy(0.375)
        };
        let best = (0..10_000).map(|i| f64::from(i) / 10_000.0);
        let best = best.max_by(|a, b| likelihood(*a).total_cmp(&likelihood(*b))).unwrap();
        assert!((p - best).abs() < 2e-4, "{p} {best}");
        let baseline = Baseline::fit(BaselineKind::Repeat, &counts);
        let want = [(1.0 - p) * 0.5, p + (1.0 - p) * 0.375, (1.0 - p) * 0.125];
        close(&baseline.logits(&[0, 1]).unwrap()[1..], &want.map(f64::ln));
    }

    #[test]
    fn an_action_that_never_changed_can_still_change() {
        let mut counts = Counts::new(&heads()).unwrap();
        counts.add(&[0; 2000], &[0; 2000]).unwrap();
        for kind in BaselineKind::ALL {
            let logits = Baseline::fit(kind, &counts).logits(&[0, 0]).unwrap();
            assert!(logits.iter().all(|v| v.is_finite()), "{kind:?}");
        }
    }

    #[test]
    fn metrics_score_a_baseline_like_a_policy() {
        let baseline = Baseline::fit(BaselineKind::Marginal, &counts());
        let mut metrics = Metrics::new(&heads(), None).unwrap();
        metrics.add(&baseline.logits(&previous()).unwrap(), &LABELS, &previous()).unwrap();
        let report = metrics.report().unwrap();
        let button = -(3.0 * (4f64 / 7.0).ln() + 2.0 * (3f64 / 7.0).ln()) / 5.0;
        let stick = -(3.0 * 0.5f64.ln() + 2.0 * 0.375f64.ln()) / 5.0;
        assert!((report.nll - button - stick).abs() < 1e-6);
        assert_eq!((report.frames, report.changed_frames), (5, 3));
    }

    #[test]
    fn merged_counts_equal_counts_of_everything() {
        let (mut a, mut b) = (counts(), counts());
        a.merge(&counts()).unwrap();
        b.add(&previous(), &LABELS).unwrap();
        assert_eq!(a, b);
        assert_eq!(a.press_rates(), [0.4]);
    }

    #[test]
    fn an_action_out_of_range_is_named() {
        let mut counts = counts();
        let error = counts.add(&[0, 0], &[0, 3]).unwrap_err();
        assert_eq!(error.to_string(), "label of stick: 3 is outside 0..2");
        let error = counts.add(&[2, 0], &[0, 0]).unwrap_err();
        assert_eq!(error.to_string(), "previous action of button: 2 is outside 0..1");
        assert!(counts.add(&[0, 0, 0], &[0, 0, 0]).is_err());
    }
}
