//! Learning from a segment that stays on a card. The batches are those of a learner on the host, and the card is asked
//! for figures alone.

use sconce_ops::rows::copy;
use sconce_ops::{Ids, gather_of};
use sconce_tensor::rng::Rng;
use sconce_tensor::{DType, Error, Result, Tensor};
use sconce_train::objective::{Denominators, Figures, Objective, Sums};

use super::{Learner, Updated, cut, is_far, shuffled};
use crate::segment::CardSegment;

/// Values of the state of an update: updates, norm, refused updates.
const STATE: usize = 3;

impl Learner {
    /// [`learn`](Self::learn) from a segment on the card of the policy.
    ///
    /// # Errors
    /// `NonFinite` for a loss or a gradient that is not finite, `NotFound` for a policy on a CPU.
    pub fn learn_on_card(
        &mut self,
        segment: &CardSegment,
        update: u64,
        done: f64,
    ) -> Result<Updated> {
        let Learner { steppers, clipped, card, options, .. } = self;
        let (Some(loss), Some(stepper)) = (card, steppers.first_mut()) else {
            return Err(Error::not_found("a learner on a card"));
        };
        clipped.set(options.terms(done));
        loss.set(options.terms(done))?;
        let (rate, seed) = (options.learning_rate(done), options.machine.seed);
        let (epochs, parts) = (options.ppo.epochs as u64, options.ppo.minibatches);
        let (all, device) = (segment.frames(), stepper.policy().device().clone());
        let sums = loss.totals().elem_count();
        let most = epochs as usize * parts;
        let results = Tensor::zeros((most, sums + STATE), DType::F64, &device)?;
        let explained_variance = segment.explained_variance;
        let mut updated = Updated { explained_variance, ..Updated::default() };
        let mut sizes = vec![];
        'update: for epoch in 0..epochs {
            let order = shuffled(&all, Rng::new(seed, "play.shuffle", update * epochs + epoch));
            let there = Tensor::from_slice(&order, order.len(), &device)?;
            let mut first = 0;
            for (i, part) in cut(&order, parts).enumerate() {
                let frames = there.narrow(0, first, part.len())?;
                first += part.len();
                let draw = (update * epochs + epoch) * parts as u64 + i as u64;
                let seen = gather_of(&segment.observations, &Ids::There(frames.clone()))?;
                let placed = stepper.policy().placed(&seen)?;
                let state = stepper.policy().zero_state(part.len())?;
                let gradient = |logits: &Tensor| loss.gradient(logits, segment, &frames);
                stepper.learn_placed(&placed, &state, draw, gradient)?;
                if options.ppo.target_kl.is_some() {
                    let totals = Sums(loss.totals().to_vec1()?);
                    if is_far(options, &figures(&*clipped, totals, part.len())?) {
                        stepper.forget();
                        updated.stopped = true;
                        break 'update;
                    }
                }
                stepper.launch_update(rate)?;
                let row = results.get(sizes.len())?;
                copy(loss.totals(), &row.narrow(0, 0, sums)?)?;
                copy(stepper.update_there()?, &row.narrow(0, sums, STATE)?)?;
                sizes.push(part.len());
            }
        }
        let rows: Vec<Vec<f64>> = results.narrow(0, 0, sizes.len())?.to_vec2()?;
        for (row, size) in rows.iter().zip(&sizes) {
            let (totals, state) = row.split_at(sums);
            updated.figures.add(&figures(&*clipped, Sums(totals.to_vec()), *size)?, 1.0);
            if !state[1].is_finite() {
                return Err(Error::NonFinite { what: "gradient".into(), value: state[1] });
            }
            updated.grad_norm += state[1];
            stepper.updated(state[0] as u64)?;
        }
        updated.batches = sizes.len();
        let batches = updated.batches.max(1) as f64;
        updated.grad_norm /= batches;
        updated.figures = updated.figures.over(batches);
        Ok(updated)
    }
}

/// The figures of a batch of `rows` rows.
fn figures(objective: &dyn Objective, sums: Sums, rows: usize) -> Result<Figures> {
    objective.finish(&sums, &Denominators::of_rows(rows, rows as f64)?)
}
