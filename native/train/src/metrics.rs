//! Scores of logits against recorded actions, for policies and baselines alike.

use sconce_nn::head::NONE;
use sconce_nn::spec::Heads;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::objective::imitation::{check_heads, nll};

/// Plain NLL in nats a frame, accuracy, precision and recall. A ratio whose denominator is 0 is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Number of scored frames.
    pub frames: u64,
    /// NLL in nats a frame, summed over heads, bits and numbers.
    pub nll: f64,
    /// NLL on frames whose action differs from the previous action, where copying fails.
    pub nll_changed: Option<f64>,
    /// Number of frames whose action differs from the previous action.
    pub changed_frames: u64,
    /// Scores of each head that has labels.
    pub heads: Vec<HeadReport>,
    /// Scores of each bit.
    pub buttons: Vec<ButtonReport>,
}

/// Scores of one head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadReport {
    /// Name of the head.
    pub name: String,
    /// NLL in nats a frame.
    pub nll: f64,
    /// Share of frames whose most likely value is the recorded one, in every bit; for a number, close to the recorded
    /// value.
    pub accuracy: f64,
    /// `nll` on frames whose action changed.
    pub nll_changed: Option<f64>,
    /// `accuracy` on frames whose action changed.
    pub accuracy_changed: Option<f64>,
}

/// Scores of one bit, which is predicted as set if its probability exceeds one half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ButtonReport {
    /// Name of the bit.
    pub name: String,
    /// Share of predicted presses that are recorded.
    pub precision: Option<f64>,
    /// Share of recorded presses that are predicted.
    pub recall: Option<f64>,
    /// `precision` on frames whose action changed.
    pub precision_changed: Option<f64>,
    /// `recall` on frames whose action changed.
    pub recall_changed: Option<f64>,
    /// Number of frames on which the bit is set.
    pub presses: u64,
}

/// Sums over frames, from which a [`Report`] is made.
#[derive(Debug, Clone)]
pub struct Metrics {
    heads: Heads,
    bit_names: Vec<String>,
    all: Tally,
    changed: Tally,
}

#[derive(Debug, Clone, PartialEq)]
struct Tally {
    frames: u64,
    nll: Vec<f64>,
    right: Vec<u64>,
    bits: Vec<Bit>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bit {
    pressed: u64,
    guessed: u64,
    hit: u64,
}

impl Metrics {
    /// Makes metrics without frames. `bit_names` are the names of all bits in order; by default a bit is named
    /// `head_index`.
    pub fn new(heads: &Heads, bit_names: Option<Vec<String>>) -> Result<Self> {
        check_heads(heads)?;
        let own = bit_names_of(heads);
        let bits = own.len();
        let bit_names = bit_names.unwrap_or(own);
        if bit_names.len() != bits {
            return Err(Error::mismatch("names of bits", bits, bit_names.len()));
        }
        let tally = Tally {
            frames: 0,
            nll: vec![0.0; heads.parts.len()],
            right: vec![0; heads.parts.len()],
            bits: vec![Bit::default(); bits],
        };
        Ok(Metrics { heads: heads.clone(), bit_names, all: tally.clone(), changed: tally })
    }

    /// Adds frames. A frame whose row of `previous` begins with [`NONE`] does not count as changed.
    ///
    /// # Shapes
    /// `logits [n, num_logits]`, `labels` and `previous` `[n, num_labels]`
    ///
    /// # Errors
    /// `Mismatch` for lengths, `OutOfRange` for a label, `NonFinite` for a logit.
    pub fn add(&mut self, logits: &[f32], labels: &[f32], previous: &[f32]) -> Result<()> {
        let (wide, narrow) = (self.heads.num_logits().max(1), self.heads.num_labels().max(1));
        let n = labels.len() / narrow;
        for (what, expected, got) in [
            ("labels", n * narrow, labels.len()),
            ("previous actions", n * narrow, previous.len()),
            ("logits", n * wide, logits.len()),
        ] {
            if expected != got {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        let rows = logits.chunks(wide).zip(labels.chunks(narrow)).zip(previous.chunks(narrow));
        for ((x, label), previous) in rows {
            let changed = label != previous && previous.first() != Some(&NONE);
            self.row(x, label, changed)?;
        }
        Ok(())
    }

    fn row(&mut self, x: &[f32], label: &[f32], changed: bool) -> Result<()> {
        let (all, mut changed) = (&mut self.all, changed.then_some(&mut self.changed));
        let mut bit = 0;
        for (h, part) in self.heads.iter().enumerate() {
            let kind = part.head.kind;
            let x = &x[part.logits..][..kind.logits()];
            let label = &label[part.labels..][..kind.labels()];
            let nats = nll(&part, x, label)?;
            if !nats.is_finite() {
                let what = format!("NLL of {}", part.head.name);
                return Err(Error::NonFinite { what, value: nats });
            }
            let right = kind.is_likely(x, label);
            for tally in std::iter::once(&mut *all).chain(changed.as_deref_mut()) {
                tally.nll[h] += nats;
                tally.right[h] += u64::from(right);
                count_bits(&mut tally.bits[bit..bit + kind.bits()], x, label);
            }
            bit += kind.bits();
        }
        all.frames += 1;
        changed.into_iter().for_each(|t| t.frames += 1);
        Ok(())
    }

    /// Adds the frames of other metrics over the same heads.
    pub fn merge(&mut self, other: &Metrics) -> Result<()> {
        if self.heads != other.heads {
            return Err(Error::mismatch("heads of metrics", "the same heads", "others"));
        }
        self.all.merge(&other.all);
        self.changed.merge(&other.changed);
        Ok(())
    }

    /// The scores of all frames so far.
    ///
    /// # Errors
    /// `NotFound` before the first frame.
    pub fn report(&self) -> Result<Report> {
        let (all, changed) = (&self.all, &self.changed);
        if all.frames == 0 {
            return Err(Error::not_found("a frame to score"));
        }
        let mean = |sum: f64| sum / all.frames as f64;
        let mean_changed = |sum: f64| share(sum, changed.frames);
        // A head without labels is not scored.
        let heads = self.heads.parts.iter().enumerate().filter(|(_, head)| head.kind.labels() > 0);
        let heads = heads.map(|(h, head)| HeadReport {
            name: head.name.clone(),
            nll: mean(all.nll[h]),
            accuracy: mean(all.right[h] as f64),
            nll_changed: mean_changed(changed.nll[h]),
            accuracy_changed: mean_changed(changed.right[h] as f64),
        });
        let bits = self.bit_names.iter().zip(all.bits.iter().zip(&changed.bits));
        let buttons = bits.map(|(name, (all, changed))| ButtonReport {
            name: name.clone(),
            precision: all.precision(),
            recall: all.recall(),
            precision_changed: changed.precision(),
            recall_changed: changed.recall(),
            presses: all.pressed,
        });
        Ok(Report {
            frames: all.frames,
            nll: mean(all.nll.iter().sum()),
            nll_changed: mean_changed(changed.nll.iter().sum()),
            changed_frames: changed.frames,
            heads: heads.collect(),
            buttons: buttons.collect(),
        })
    }
}

impl Tally {
    fn merge(&mut self, other: &Tally) {
        self.frames += other.frames;
        self.nll.iter_mut().zip(&other.nll).for_each(|(a, b)| *a += b);
        self.right.iter_mut().zip(&other.right).for_each(|(a, b)| *a += b);
        for (a, b) in self.bits.iter_mut().zip(&other.bits) {
            a.pressed += b.pressed;
            a.guessed += b.guessed;
            a.hit += b.hit;
        }
    }
}

impl Bit {
    fn precision(&self) -> Option<f64> {
        share(self.hit as f64, self.guessed)
    }

    fn recall(&self) -> Option<f64> {
        share(self.hit as f64, self.pressed)
    }
}

fn share(part: f64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

fn bit_names_of(heads: &Heads) -> Vec<String> {
    let bits = heads
        .parts
        .iter()
        .flat_map(|head| (0..head.kind.bits()).map(move |i| format!("{}_{i}", head.name)));
    bits.collect()
}

/// Counts predicted and recorded bits. A bit is predicted as set if its probability exceeds one half.
fn count_bits(bits: &mut [Bit], x: &[f32], label: &[f32]) {
    for ((bit, x), label) in bits.iter_mut().zip(x).zip(label) {
        let (guessed, pressed) = (*x > 0.0, *label == 1.0);
        bit.guessed += u64::from(guessed);
        bit.pressed += u64::from(pressed);
        bit.hit += u64::from(guessed && pressed);
    }
}

#[cfg(test)]
mod tests {
    use sconce_nn::spec::{Head, HeadKind, HeadsKind};

    use super::*;

    /// A head of two bits and a head of three classes.
    fn heads() -> Heads {
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
        Heads {
            kind: HeadsKind::Independent,
            parts: vec![
                head("buttons", HeadKind::Bernoulli(2)),
                head("stick", HeadKind::Categorical(3)),
            ],
            stream_size: 4,
            prior: false,
        }
    }

    /// Probabilities 3/4 and 1/4 for the bits, 1/2, 1/4, 1/4 for the classes.
    fn logits() -> [f32; 5] {
        [3f32.ln(), -(3f32.ln()), 2f32.ln(), 0.0, 0.0]
    }

    fn scored() -> Metrics {
        let names = vec!["A".to_string(), "B".to_string()];
        let mut metrics = Metrics::new(&heads(), Some(names)).unwrap();
        let x = [logits(), logits(), logits()].concat();
        // The first frame is predicted correctly; B and the stick are wrong after a change; A is wrong without a
        // previous action.
        let labels = [1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0];
        let previous = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, NONE, 0.0, 0.0];
        metrics.add(&x, &labels, &previous).unwrap();
        metrics
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn a_report_holds_the_numbers_worked_out_by_hand() {
        let report = scored().report().unwrap();
        let (hit, miss) = (-(0.75f64.ln()), -(0.25f64.ln()));
        let buttons = [2.0 * hit, hit + miss, miss + hit];
        let stick = [2f64.ln(), 4f64.ln(), 2f64.ln()];
        assert_eq!((report.frames, report.changed_frames), (3, 1));
        assert!(close(report.heads[0].nll, buttons.iter().sum::<f64>() / 3.0));
        assert!(close(report.heads[1].nll, stick.iter().sum::<f64>() / 3.0));
        assert!(close(report.nll, report.heads[0].nll + report.heads[1].nll));
        assert!(close(report.nll_changed.unwrap(), buttons[1] + stick[1]));
        assert!(close(report.heads[0].accuracy, 1.0 / 3.0));
        assert!(close(report.heads[1].accuracy, 2.0 / 3.0));
        assert_eq!(report.heads[1].accuracy_changed, Some(0.0));
    }

    #[test]
    fn precision_and_recall_without_a_denominator_are_none() {
        let report = scored().report().unwrap();
        let [a, b] = report.buttons.as_slice() else { panic!("two bits") };
        assert_eq!((a.name.as_str(), a.presses), ("A", 2));
        assert_eq!((a.precision, a.recall), (Some(2.0 / 3.0), Some(1.0)));
        assert_eq!((b.precision, b.recall, b.presses), (None, Some(0.0), 1));
        assert_eq!((b.precision_changed, b.recall_changed), (None, Some(0.0)));
    }

    #[test]
    fn merged_metrics_report_the_same_as_the_whole() {
        let (mut twice, mut whole) = (scored(), scored());
        twice.merge(&scored()).unwrap();
        let x = [logits(), logits(), logits()].concat();
        let previous = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, NONE, 0.0, 0.0];
        whole.add(&x, &[1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0], &previous).unwrap();
        let (a, b) = (twice.report().unwrap(), whole.report().unwrap());
        assert_eq!((a.frames, &a.buttons), (b.frames, &b.buttons));
        assert!(close(a.nll, b.nll));
    }

    #[test]
    fn bad_input_is_named() {
        let mut metrics = Metrics::new(&heads(), None).unwrap();
        assert_eq!(metrics.report().unwrap_err().to_string(), "a frame to score not found");
        let error = metrics.add(&logits(), &[0.0, 0.0, 3.0], &[0.0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "label of stick: 3 is outside 0..2");
        let error = metrics.add(&[0.0; 4], &[0.0, 0.0, 1.0], &[0.0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "logits: expected 5, got 4");
        let mut x = logits();
        x[1] = f32::NAN;
        let error = metrics.add(&x, &[0.0, 0.0, 1.0], &[0.0; 3]).unwrap_err();
        assert!(matches!(error, Error::NonFinite { .. }));
        assert!(Metrics::new(&heads(), Some(vec!["A".into()])).is_err());
    }
}
