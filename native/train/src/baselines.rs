//! Baselines that a policy has to beat: distributions counted on the training labels. The kind of a head defines how
//! its labels are counted and how a baseline is fitted.

pub use sconce_nn::head::BaselineKind;
use sconce_nn::head::known;
use sconce_nn::spec::{Heads, Part};
use sconce_tensor::{Error, Result};

use crate::objective::imitation::check_heads;

/// Maximum number of classes of a head. With more classes, a table of all pairs takes over 128 MiB.
const MAX_CLASSES: usize = 4096;

/// Counts of labels, and of pairs of a label and the previous label.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    heads: Heads,
    /// The counts of each head.
    numbers: Vec<Vec<f64>>,
}

impl Counts {
    /// Makes counts of zero over these heads.
    ///
    /// # Errors
    /// `OutOfRange` for a head of more than 4096 classes.
    pub fn new(heads: &Heads) -> Result<Self> {
        check_heads(heads)?;
        for head in &heads.parts {
            let classes = head.kind.classes();
            if classes > MAX_CLASSES {
                let field = format!("classes of {}", head.name);
                return Err(Error::out_of_range(field, classes as f64, 2.0, MAX_CLASSES as f64));
            }
        }
        let numbers = heads.parts.iter().map(|head| vec![0.0; head.kind.counts()]).collect();
        Ok(Counts { heads: heads.clone(), numbers })
    }

    /// Counts frames. A row of `previous` that begins with [`NONE`](sconce_nn::head::NONE) is not counted as a pair.
    ///
    /// # Shapes
    /// `previous` and `labels` `[n, num_labels]`
    pub fn add(&mut self, previous: &[f32], labels: &[f32]) -> Result<()> {
        let width = self.heads.num_labels().max(1);
        check_rows("labels", labels, width)?;
        if previous.len() != labels.len() {
            return Err(Error::mismatch("previous actions", labels.len(), previous.len()));
        }
        for (previous, labels) in previous.chunks(width).zip(labels.chunks(width)) {
            for (part, counts) in self.heads.iter().zip(&mut self.numbers) {
                let label = own(&part, labels);
                check(&part, "label", label)?;
                let previous = known(own(&part, previous));
                check(&part, "previous action", previous.unwrap_or_default())?;
                part.head.kind.count(previous, label, counts);
            }
        }
        Ok(())
    }

    /// Adds counts of other frames over the same heads.
    pub fn merge(&mut self, other: &Counts) -> Result<()> {
        if self.heads != other.heads {
            return Err(Error::mismatch("heads of counts", "the same heads", "others"));
        }
        for (a, b) in self.numbers.iter_mut().zip(&other.numbers) {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        }
        Ok(())
    }

    /// Share of frames on which each bit is set, for `pos_weight_auto`.
    pub fn press_rates(&self) -> Vec<f64> {
        let heads = self.heads.parts.iter().zip(&self.numbers);
        heads.flat_map(|(head, counts)| head.kind.press_rates(counts)).collect()
    }
}

/// A fitted baseline: a distribution of each head for each previous action.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    kind: BaselineKind,
    heads: Heads,
    tables: Vec<Table>,
}

/// The distributions of one head, in the layout of a prior's table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Name of the head.
    pub head: String,
    /// Number of previous actions, including an unknown one.
    pub rows: usize,
    /// Number of logits of the head.
    pub columns: usize,
    /// Logits, `[rows, columns]` row-major; empty for a head without a prior.
    pub values: Vec<f32>,
}

impl Baseline {
    /// Fits a baseline of this kind to counts.
    pub fn fit(kind: BaselineKind, counts: &Counts) -> Self {
        let tables = counts.heads.parts.iter().zip(&counts.numbers).map(|(head, counts)| {
            let [rows, columns] = head.kind.prior();
            let values = head.kind.fit(kind, counts);
            Table { head: head.name.clone(), rows, columns, values }
        });
        Baseline { kind, heads: counts.heads.clone(), tables: tables.collect() }
    }

    /// The kind of the baseline.
    pub fn kind(&self) -> BaselineKind {
        self.kind
    }

    /// The heads that the baseline predicts.
    pub fn heads(&self) -> &Heads {
        &self.heads
    }

    /// The tables of the heads that have one. Tables of [`BaselineKind::Pairs`] initialise a policy's prior.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(|table| !table.values.is_empty())
    }

    /// Logits after each previous action, for `Metrics::add`.
    ///
    /// # Shapes
    /// `previous [n, num_labels]` -> `[n, num_logits]`
    pub fn logits(&self, previous: &[f32]) -> Result<Vec<f32>> {
        let (width, logits) = (self.heads.num_labels().max(1), self.heads.num_logits());
        check_rows("previous actions", previous, width)?;
        let mut out = vec![0.0; previous.len() / width * logits];
        for (row, out) in previous.chunks(width).zip(out.chunks_mut(logits.max(1))) {
            for (part, table) in self.heads.iter().zip(&self.tables) {
                let (kind, before) = (part.head.kind, known(own(&part, row)));
                check(&part, "previous action", before.unwrap_or_default())?;
                kind.add_prior(&table.values, before, &mut out[part.logits..][..kind.logits()]);
            }
        }
        Ok(out)
    }
}

/// Selects a head's labels in a row of labels.
fn own<'a>(part: &Part<'_>, labels: &'a [f32]) -> &'a [f32] {
    &labels[part.labels..][..part.head.kind.labels()]
}

fn check(part: &Part<'_>, what: &str, labels: &[f32]) -> Result<()> {
    let name = || format!("{what} of {}", part.head.name);
    labels.iter().try_for_each(|label| part.head.kind.check(*label, name))
}

fn check_rows(what: &str, rows: &[f32], width: usize) -> Result<()> {
    match rows.len() % width {
        0 => Ok(()),
        _ => Err(Error::mismatch(what, format!("rows of {width}"), rows.len())),
    }
}

#[cfg(test)]
mod tests {
    use sconce_nn::head::NONE;
    use sconce_nn::spec::{Head, HeadKind, HeadsKind};

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
    const LABELS: [f32; 10] = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0];

    fn previous() -> Vec<f32> {
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
    fn the_marginal_has_one_more_count_of_each_value() {
        let baseline = Baseline::fit(BaselineKind::Marginal, &counts());
        // The button has three zeros and two ones; the stick has three 0, two 1 and no 2.
        let want = [(3f64 / 4.0).ln(), (4f64 / 8.0).ln(), (3f64 / 8.0).ln(), (1f64 / 8.0).ln()];
        close(&baseline.logits(&[1.0, 2.0]).unwrap(), &want);
        close(&baseline.logits(&[NONE; 2]).unwrap(), &want);
    }

    #[test]
    fn pairs_are_counted_within_games_and_smoothed_by_the_marginal() {
        let baseline = Baseline::fit(BaselineKind::Pairs, &counts());
        let tables: Vec<_> = baseline.tables().collect();
        let [button, stick] = tables[..] else { panic!("two heads") };
        // The button's marginal of a press is 3/7. After 0: one 0, one 1; after 1: one 0, one 1.
        let after = ((1.0 + 3.0 / 7.0) / 3.0f64, (1.0 + 4.0 / 7.0) / 3.0f64);
        let press = (after.0 / after.1).ln();
        assert_eq!((button.rows, button.columns, stick.rows, stick.columns), (3, 1, 4, 3));
        close(&button.values, &[press, press, (3f64 / 4.0).ln()]);
        // The stick's marginals are 4/8, 3/8, 1/8. After 0: two 0, one 1; after 1: one 1; after 2: nothing.
        let want = [2.5 / 4.0, 1.375 / 4.0, 0.125 / 4.0, 0.5 / 2.0, 1.375 / 2.0, 0.125 / 2.0];
        let want: Vec<f64> = want.iter().chain(&[0.5, 0.375, 0.125].repeat(2)).cloned().collect();
        close(&stick.values, &want.iter().map(|p: &f64| p.ln()).collect::<Vec<_>>());
    }

    #[test]
    fn an_action_that_never_changed_can_still_change() {
        let mut counts = Counts::new(&heads()).unwrap();
        counts.add(&[0.0; 2000], &[0.0; 2000]).unwrap();
        for kind in BaselineKind::ALL {
            let logits = Baseline::fit(kind, &counts).logits(&[0.0, 0.0]).unwrap();
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
        let error = counts.add(&[0.0, 0.0], &[0.0, 3.0]).unwrap_err();
        assert_eq!(error.to_string(), "label of stick: 3 is outside 0..2");
        let error = counts.add(&[2.0, 0.0], &[0.0, 0.0]).unwrap_err();
        assert_eq!(error.to_string(), "previous action of button: 2 is outside 0..1");
        assert!(counts.add(&[0.0; 3], &[0.0; 3]).is_err());
    }
}
