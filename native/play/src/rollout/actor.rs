//! A policy that decides in many rows, step after step.

use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::Decision;
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::Draw;
use sconce_realtime::{Format, Scratch};
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result};

/// A policy, and its weights packed for steps if it has no memory and rounds no inputs.
///
/// The log-likelihood of a packed choice equals that of the policy's sequence form to the rounding error of f32.
pub(crate) struct Actor<'a> {
    policy: &'a Policy,
    plan: Option<Plan>,
}

/// Buffers that an actor reuses from step to step. No contents carry over.
#[derive(Default)]
pub(crate) struct Desk {
    scratch: Scratch,
    decisions: Vec<Decision>,
}

impl<'a> Actor<'a> {
    pub(crate) fn of(policy: &'a Policy) -> Result<Self> {
        // Packed numbers in f32 do not round the inputs of products.
        let rounds = policy.weights().values().any(|weight| weight.rounds());
        let is_packed = policy.device().is_cpu() && policy.zero_state(1)?.0.is_empty() && !rounds;
        let plan = if is_packed { Plan::of(policy, Format::F32)? } else { None };
        Ok(Actor { policy, plan })
    }

    /// One decision for each row of `frames [rows, 1]`, and the memories after it.
    ///
    /// # Errors
    /// Those of [`Policy::act`].
    pub(crate) fn act(
        &self,
        frames: &Frames,
        memory: &State,
        draw: Draw<'_>,
        desk: &mut Desk,
    ) -> Result<(Decision, State)> {
        let _span = trace::span(Kind::Decision, "act");
        match &self.plan {
            Some(plan) => Ok((step(plan, frames, draw, desk)?, memory.clone())),
            None => self.policy.act(frames, memory, draw, &Context::default()),
        }
    }
}

/// One decision for each row, by packed weights.
fn step(plan: &Plan, frames: &Frames, draw: Draw<'_>, desk: &mut Desk) -> Result<Decision> {
    if draw.rngs.len() != frames.batch {
        return Err(Error::mismatch("generators", frames.batch, draw.rngs.len()));
    }
    let Desk { scratch, decisions } = desk;
    decisions.resize_with(frames.batch, || plan.blank());
    let places = decisions.iter_mut().zip(draw.rngs).enumerate();
    let mut games: Vec<Game<'_>> = places
        .map(|(row, (decision, rng))| {
            let game = Game::new(frame(frames, row), &mut [], draw.sampling, *rng, decision);
            let mask = draw.mask.map(|mask| own(mask, frames.batch, row));
            Game { given: draw.given.map(|given| own(given, frames.batch, row)), mask, ..game }
        })
        .collect();
    plan.step(&mut games, scratch);
    games.into_iter().try_for_each(|game| game.outcome)?;
    Ok(joined(decisions))
}

/// Row `row` of a matrix with `rows` rows.
fn own<T>(all: &[T], rows: usize, row: usize) -> &[T] {
    let width = all.len() / rows.max(1);
    &all[row * width..(row + 1) * width]
}

/// The frame of a row.
fn frame(frames: &Frames, row: usize) -> Frame<'_> {
    let Frames { batch, continuous, ids, previous, .. } = frames;
    Frame {
        continuous: own(continuous, *batch, row),
        ids: own(ids, *batch, row),
        previous: own(previous, *batch, row),
    }
}

/// The decisions of all rows, one after the other.
fn joined(rows: &[Decision]) -> Decision {
    let all = |of: fn(&Decision) -> &[f32]| rows.iter().flat_map(of).copied().collect();
    Decision {
        logits: all(|row| &row.logits),
        choices: all(|row| &row.choices),
        confidence: all(|row| &row.confidence),
    }
}

#[cfg(test)]
mod tests {
    use sconce_env::EnvOptions;
    use sconce_nn::Spec;
    use sconce_tensor::tensor::to_vec;
    use serde_json::json;

    use super::*;
    use crate::heads::Choosing;
    use crate::rollout::{Player, Rollout};

    fn policy() -> Policy {
        let backbone = json!({"mlp": {
            "hidden_sizes": [64, 64], "layer_norm": false, "residual": false, "dropout": 0.0,
            "input_dropout": 0.0, "activation": "tanh",
        }});
        let parts = json!([
            {"name": "action", "kind": {"categorical": 2}, "hidden_size": 0},
            {"name": "value", "kind": {"value": 1}, "hidden_size": 0},
        ]);
        let heads =
            json!({"kind": "independent", "stream_size": 8, "prior": false, "parts": parts});
        let spec = json!({"embedding": {"vector": 4}, "backbone": backbone, "critic": backbone,
            "heads": heads});
        Policy::init(&serde_json::from_value::<Spec>(spec).unwrap(), 3).unwrap()
    }

    #[test]
    fn recorded_likelihoods_and_values_are_those_that_the_learner_computes() {
        let policy = policy();
        assert!(Actor::of(&policy).unwrap().plan.is_some());
        let options = EnvOptions { env: "cart_pole".into(), count: 40, ..EnvOptions::default() };
        let mut player = Player::new(&options, &policy).unwrap();
        let rollout = Rollout { steps: 50, stride: 50 };
        let heads = Choosing::of(&policy.spec().heads).unwrap();
        for segment in player.play(&policy, rollout).unwrap() {
            let frames = Frames {
                batch: segment.frames(),
                time: 1,
                continuous: segment.continuous.clone(),
                ids: vec![],
                previous: segment.previous.clone(),
            };
            let state = policy.zero_state(frames.batch).unwrap();
            let (logits, _) = policy.forward(&frames, None, &state, &Context::default()).unwrap();
            let logits = to_vec(&logits).unwrap();
            for (at, logits) in logits.chunks_exact(heads.num_logits).enumerate() {
                let likelihood = -heads.nll(logits, &segment.labels[at..=at]);
                let ratio = (likelihood - f64::from(segment.log_likelihoods[at])).exp();
                assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
                let off = (logits[heads.value] - segment.values[at]).abs();
                assert!(off < 1e-6, "{off}");
            }
        }
    }
}
