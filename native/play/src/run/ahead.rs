//! Rollouts, and those that are played while the policy learns from the one before.
//!
//! With `overlap` update `n` learns from a rollout of the weights that had `n - 1` updates, and the weights before the
//! update play the next rollout meanwhile. That rollout is a part of the saved state.

use std::time::Instant;

use sconce_env::{Episode, Normaliser, Numbers};
use sconce_nn::{Policy, Spec};
use sconce_ops::weights::{Coded, Weight, Weights};
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Run;
use crate::learner::Updated;
use crate::rollout::{Match, Player, Rollout};
use crate::segment::Segment;
use crate::side_by_side::beside;

/// A rollout, and what the player noted in it.
pub(crate) struct Played {
    pub segments: Vec<Segment>,
    /// The policy that played.
    pub policy: Policy,
    /// Updates of that policy.
    pub update: u64,
    /// Steps of the run after it.
    pub steps: u64,
    pub episodes: Vec<Episode>,
    /// Number of episodes that only the card knows.
    pub others: u64,
    /// Sums of reward terms.
    pub terms: Vec<f64>,
    pub matches: Vec<Match>,
    /// Statistics of the observations, if they are normalised.
    pub observed: Option<Normaliser>,
}

/// The part of a waiting rollout that is no array of f32.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedRollout {
    /// Spec of the policy that played, which has its own normalisation.
    spec: Spec,
    update: u64,
    steps: u64,
    terms: Vec<f64>,
    observed: Option<Normaliser>,
    segments: usize,
}

impl Played {
    /// Takes the player's notes on a rollout.
    pub(super) fn of(
        player: &mut Player,
        segments: Vec<Segment>,
        policy: Policy,
        update: u64,
    ) -> Result<Self> {
        let observed = player.observes().then(|| player.take_observed()).transpose()?;
        let (episodes, others) = player.episodes();
        Ok(Played {
            segments,
            policy,
            update,
            steps: player.steps(),
            episodes,
            others,
            terms: player.take_terms()?,
            matches: player.take_matches(),
            observed,
        })
    }

    /// Copies the rollout for a saved state.
    pub(super) fn saved(&self) -> Result<(SavedRollout, Numbers)> {
        let mut all = Numbers::default();
        for (name, weight) in self.policy.weights() {
            all.put(&format!("policy.{name}"), to_vec(weight)?);
            if let Some(codes) = weight.codes() {
                all.put(&format!("scales.{name}"), codes.scales().to_vec());
                all.put_words(&format!("codes.{name}"), &[codes.bits(), codes.group() as u32]);
            }
        }
        for (i, segment) in self.segments.iter().enumerate() {
            all.nest(&format!("{i}."), segment.numbers()?);
        }
        let words = |of: fn(&Episode) -> u32| self.episodes.iter().map(of).collect::<Vec<_>>();
        all.put_words("episodes.env", &words(|episode| episode.env));
        all.put_words("episodes.seat", &words(|episode| episode.seat));
        all.put_words("episodes.length", &words(|episode| episode.length));
        all.put_words("episodes.terminated", &words(|episode| episode.terminated.into()));
        all.put("episodes.return", self.episodes.iter().map(|episode| episode.ret).collect());
        let members: Vec<u32> = self.matches.iter().map(|played| played.member).collect();
        all.put_words("matches.member", &members);
        all.put("matches.score", self.matches.iter().map(|m| m.score as f32).collect());
        let saved = SavedRollout {
            spec: self.policy.spec().clone(),
            update: self.update,
            steps: self.steps,
            terms: self.terms.clone(),
            observed: self.observed.clone(),
            segments: self.segments.len(),
        };
        Ok((saved, all))
    }

    /// The rollout of a saved state; `weights` are those of a policy with the same shapes, and `teachers` are
    /// the teachers of the run.
    ///
    /// # Errors
    /// `NotFound`, `Mismatch` or `Corrupt` for the rollout of another run.
    pub(super) fn restored(
        saved: SavedRollout,
        numbers: &Numbers,
        weights: &Weights,
        teachers: &[&Policy],
    ) -> Result<Self> {
        let SavedRollout { spec, update, steps, terms, observed, segments } = saved;
        let weight = |(name, like): (&String, &Weight)| {
            let own = numbers.get(&format!("policy.{name}"))?.to_vec();
            if own.len() != like.elem_count() {
                let what = format!("{name} of the policy that plays");
                return Err(Error::mismatch(what, like.elem_count(), own.len()));
            }
            let weight = match numbers.words(&format!("codes.{name}")) {
                Ok(codes) => on_grid(&codes, &own, like.dims2()?.1, numbers, name)?,
                Err(Error::NotFound { .. }) => Weight::from(tensor(own, like.dims())?),
                Err(error) => return Err(error),
            };
            Ok((name.clone(), weight))
        };
        let policy =
            Policy::from_weights(&spec, weights.iter().map(weight).collect::<Result<_>>()?)?;
        let segment = |i| Segment::restored(&numbers.nested(&format!("{i}.")), &policy, teachers);
        let segments = (0..segments).map(segment).collect::<Result<_>>()?;
        let words = |name: &str| numbers.words(&format!("episodes.{name}"));
        let (env, seat, length) = (words("env")?, words("seat")?, words("length")?);
        let (terminated, returns) = (words("terminated")?, numbers.get("episodes.return")?);
        for other in [seat.len(), length.len(), terminated.len(), returns.len()] {
            if other != env.len() {
                return Err(Error::mismatch("episodes of a rollout", env.len(), other));
            }
        }
        let episode = |i: usize| Episode {
            env: env[i],
            seat: seat[i],
            ret: returns[i],
            length: length[i],
            terminated: terminated[i] != 0,
        };
        let episodes = (0..env.len()).map(episode).collect();
        let (members, scores) = (numbers.words("matches.member")?, numbers.get("matches.score")?);
        let pairs = members.iter().zip(scores);
        let matches = pairs.map(|(m, score)| Match { member: *m, score: (*score).into() });
        let matches = matches.collect();
        let others = 0;
        Ok(Played { segments, policy, update, steps, episodes, others, terms, matches, observed })
    }
}

/// A weight of a saved rollout whose scales are saved too.
fn on_grid(
    codes: &[u32],
    values: &[f32],
    inputs: usize,
    numbers: &Numbers,
    name: &str,
) -> Result<Weight> {
    let [bits, group] = *codes else {
        return Err(Error::corrupt(format!("codes of {name}"), "not two words"));
    };
    let scales = numbers.get(&format!("scales.{name}"))?.to_vec();
    Weight::coded(Coded::on(bits, values, inputs, group as usize, scales)?)
}

impl Run<'_> {
    pub(super) fn rollout(&self) -> Rollout {
        let own = &self.options.rollout;
        Rollout { steps: own.rollout_steps, stride: own.sequence_length }
    }

    /// Learns from a rollout, while the policy before the update plays the next one in `playing` seconds.
    pub(super) fn learn_ahead(
        &mut self,
        segments: &[Segment],
        playing: &mut f64,
    ) -> Result<Updated> {
        let (update, done) = (self.progress.updates, self.done());
        let policy = self.policy()?;
        self.meet(&policy, update + 1)?;
        let (rollout, player, learner) = (self.rollout(), &mut self.player, &mut self.learner);
        let (ahead, updated) = beside(
            || {
                let begun = Instant::now();
                let ahead = player.play(&policy, rollout)?;
                *playing = begun.elapsed().as_secs_f64();
                Ok(ahead)
            },
            || learner.learn(segments, update, done),
        )?;
        ahead.iter().try_for_each(Segment::check_finite)?;
        self.ahead = Some(Played::of(&mut self.player, ahead, policy, update)?);
        Ok(updated)
    }
}
