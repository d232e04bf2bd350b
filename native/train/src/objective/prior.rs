//! Closeness to P(a_t given a_{t-1}), counted in the training games.
//!
//! With few games, a policy memorises when a button is released and is overconfident in games that continue
//! differently. KL(prior || policy) times a weight w is, up to a constant, the cross-entropy of labels in which the
//! prior has the share w / (1 + w): label smoothing (Szegedy et al. 2016, section 7) towards likely actions instead of
//! all classes alike.

use sconce_nn::head::Direction;
use sconce_tensor::{Device, Error, Result};

use super::teacher::{Pull, Spans};
use super::{Denominators, Figures, Objective, Rows, Setup, Sums};
use crate::baselines::Baseline;

/// A distribution to stay close to, which depends only on the previous action.
#[derive(Clone)]
struct Prior {
    table: Baseline,
    /// Factor on the divergence, which is added to the loss.
    weight: f64,
}

const NAME: &str = "prior";

/// The prior of a run, if its options give it a weight.
pub(super) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn Objective>>> {
    let weight = setup.options.objective.prior_weight;
    if weight == 0.0 {
        return Ok(None);
    }
    let table = setup.prior.ok_or_else(|| Error::not_found("counts of a prior"))?.clone();
    Ok(Some(Box::new(Prior { table, weight })))
}

impl Objective for Prior {
    fn name(&self) -> &'static str {
        NAME
    }

    fn copy_on(&self, _device: &Device) -> Result<Box<dyn Objective>> {
        Ok(Box::new(self.clone()))
    }

    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> Result<Sums> {
        let table = self.table.logits(rows.previous())?;
        let spans = Spans::new(self.table.heads(), &[self.table.heads()]);
        let (direction, weight) = (Direction::Reverse, self.weight);
        let pull = Pull { spans: &spans, direction, temperature: 1.0, weight };
        Ok(Sums(vec![pull.rows(rows, &[&table], whole, gradient)]))
    }

    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures> {
        let kl = whole.mean() * sums.0.first().copied().unwrap_or(0.0);
        let named = [("prior_kl".to_string(), kl)].into_iter().collect();
        Ok(Figures { total: self.weight * kl, named, ..Figures::default() })
    }
}

#[cfg(test)]
mod tests {
    use sconce_data::Batch;
    use sconce_nn::heads::NONE;
    use sconce_nn::policy::Frames;
    use sconce_nn::spec::{Head, HeadKind, Heads, HeadsKind};

    use super::*;
    use crate::baselines::{BaselineKind, Counts};

    /// Five frames of one game: a button 0 0 1 1 0, a stick 0 0 0 1 1.
    const LABELS: [f32; 10] = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0];

    fn prior() -> (Prior, Batch) {
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
        let parts =
            vec![head("button", HeadKind::Bernoulli(1)), head("stick", HeadKind::Categorical(3))];
        let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 4, prior: false };
        let previous = [&[NONE, NONE], &LABELS[..8]].concat();
        let mut counts = Counts::new(&heads).unwrap();
        counts.add(&previous, &LABELS).unwrap();
        let frames = Frames { batch: 1, time: 5, previous, ..Frames::default() };
        let (labels, weights) = (LABELS.to_vec(), vec![1.0, 0.0, 2.0, 1.0, 1.0]);
        let batch = Batch { frames, labels, weights, ..Batch::default() };
        let table = Baseline::fit(BaselineKind::Pairs, &counts);
        (Prior { table, weight: 0.5 }, batch)
    }

    /// Divergence, loss and gradient of the last four frames, which have a previous action.
    fn drawn(logits: &[f32]) -> (f64, f64, Vec<f32>) {
        let (prior, batch) = prior();
        let whole = prior.denominators(&batch, None).unwrap();
        let rows = Rows { logits, companions: vec![], batch: &batch, range: 1..5 };
        let mut gradient = vec![7.0; logits.len()];
        let sums = prior.rows(&rows, &whole, Some(&mut gradient)).unwrap();
        let Figures { total, named, .. } = prior.finish(&sums, &whole).unwrap();
        (named["prior_kl"], total, gradient)
    }

    /// Logits of the prior's table for the last four frames.
    fn table() -> Vec<f32> {
        let (prior, batch) = prior();
        prior.table.logits(&batch.frames.previous[2..]).unwrap()
    }

    #[test]
    fn a_policy_equal_to_the_prior_has_no_gradient() {
        let (kl, total, gradient) = drawn(&table());
        assert!(kl.abs() < 1e-7 && total.abs() < 1e-7, "{kl} {total}");
        assert!(gradient.iter().all(|g| g.abs() < 1e-7), "{gradient:?}");
    }

    #[test]
    fn labels_are_smoothed_by_what_the_previous_action_makes_likely() {
        let (kl, total, gradient) = drawn(&[0.0; 16]);
        assert!(kl > 0.1, "{kl}");
        assert_eq!(total, 0.5 * kl);
        // The weights 0, 2, 1 and 1 are shares of a total weight of 5; the policy is uniform over bits and classes.
        let shares = [0.0, 2.0 / 5.0, 1.0 / 5.0, 1.0 / 5.0];
        for ((row, drawn), share) in table().chunks(4).zip(gradient.chunks(4)).zip(shares) {
            let bit = 0.5 - 1.0 / (1.0 + (-row[0]).exp());
            let want =
                [bit].into_iter().chain(row[1..].iter().map(|logit| 1.0 / 3.0 - logit.exp()));
            for (want, got) in want.zip(drawn) {
                assert!((0.5 * share * want - got).abs() < 1e-6, "{drawn:?}");
            }
        }
    }
}
