//! Evaluation of a policy by play in an environment: its returns and its latency.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::HeadKind;
use sconce_nn::{Policy, heads};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::environment::Environment;

/// Maximum episodes of one call: more would take too long.
const MAX_EPISODES: usize = 1000;

/// Options of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Play {
    /// Number of episodes, 1..1000.
    pub episodes: usize,
    /// Seed of the start states and of sampled actions.
    pub seed: u64,
    /// Whether to choose the most likely action instead of a sampled one.
    pub deterministic: bool,
}

impl Default for Play {
    fn default() -> Self {
        Play { episodes: 20, seed: 0, deterministic: true }
    }
}

/// The results of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Played {
    /// The sum of rewards of each episode.
    pub returns: Vec<f64>,
    /// The mean of the returns.
    pub mean: f64,
    /// The number of decisions in all episodes.
    pub decisions: usize,
    /// Median time of a decision, from observation to action, in microseconds.
    pub median_us: f64,
    /// The 99th percentile of that time, in microseconds.
    pub p99_us: f64,
}

impl Play {
    /// Plays the episodes one after the other. Each episode begins with a zero state, like the windows of training.
    /// Stops before the next episode if `cancelled`.
    ///
    /// # Errors
    /// `Mismatch` for a policy that does not fit the observations or the actions of the environment, `OutOfRange` for
    /// `episodes`, `Cancelled`.
    pub fn run(
        &self,
        policy: &Policy,
        env: &mut impl Environment,
        cancelled: &AtomicBool,
    ) -> Result<Played> {
        if self.episodes == 0 || self.episodes > MAX_EPISODES {
            let max = MAX_EPISODES as f64;
            return Err(Error::out_of_range("episodes", self.episodes as f64, 1.0, max));
        }
        fits(policy, env)?;
        let mut times = Vec::new();
        let mut returns = Vec::with_capacity(self.episodes);
        for episode in 0..self.episodes as u64 {
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            returns.push(self.episode(policy, env, episode, &mut times)?);
        }
        times.sort_unstable();
        Ok(Played {
            mean: returns.iter().sum::<f64>() / returns.len() as f64,
            returns,
            decisions: times.len(),
            median_us: quantile(&times, 0.5),
            p99_us: quantile(&times, 0.99),
        })
    }

    fn episode(
        &self,
        policy: &Policy,
        env: &mut impl Environment,
        episode: u64,
        times: &mut Vec<u64>,
    ) -> Result<f64> {
        let start = Rng::new(self.seed, "play.reset", episode);
        env.reset(u64::from(start.u32(0)) << 32 | u64::from(start.u32(1)));
        let sampling = Sampling { deterministic: self.deterministic, ..Sampling::default() };
        let mut observation = vec![0.0; env.observation_size()];
        let mut previous = vec![heads::NONE];
        let mut state = policy.zero_state(1)?;
        let mut total = 0.0;
        loop {
            env.observe(&mut observation)?;
            let rng = Rng::new(self.seed, "play.sample", times.len() as u64);
            let begun = Instant::now();
            let frames = frames(policy, &observation, &previous)?;
            let draw = Draw { sampling: &sampling, rngs: &[rng], given: None, mask: None };
            let (decision, next) = policy.act(&frames, &state, draw, &Context::default())?;
            times.push(begun.elapsed().as_nanos() as u64);
            (state, previous) = (next, decision.choices);
            let step = env.step(previous.first().map_or(0, |class| *class as usize))?;
            total += step.reward;
            if step.is_last() {
                return Ok(total);
            }
        }
    }
}

/// Wraps one observation as a batch of one window of one frame.
fn frames(policy: &Policy, observation: &[f32], previous: &[f32]) -> Result<Frames> {
    let embedding = &policy.spec().embedding;
    let mut frames = Frames {
        batch: 1,
        time: 1,
        continuous: vec![0.0; embedding.continuous_width()],
        ids: vec![0; embedding.num_ids()],
        previous: previous.to_vec(),
    };
    embedding.embed(observation, true, &mut frames.continuous, &mut frames.ids)?;
    Ok(frames)
}

fn fits(policy: &Policy, env: &impl Environment) -> Result<()> {
    let spec = policy.spec();
    let (reads, shows) = (spec.embedding.raw_width(), env.observation_size());
    if reads != shows {
        return Err(Error::mismatch("observation of the policy", shows, reads));
    }
    let wanted = HeadKind::Categorical(env.actions());
    let got: Vec<_> = spec.heads.choosing().map(|head| head.kind).collect();
    match got == [wanted] {
        true => Ok(()),
        false => {
            Err(Error::mismatch("heads of the policy", format!("{wanted:?}"), format!("{got:?}")))
        }
    }
}

/// Returns a quantile in microseconds of sorted times in nanoseconds.
fn quantile(sorted: &[u64], q: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * q).round() as usize;
    sorted.get(at).map_or(0.0, |&ns| ns as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use sconce_nn::spec::{
        Backbone, Embedding, Head, Heads, HeadsKind, MlpConfig, RecurrentConfig, Spec,
    };

    use super::*;
    use crate::CartPole;

    static GO: AtomicBool = AtomicBool::new(false);

    fn policy(inputs: usize, actions: usize, backbone: Backbone) -> Policy {
        let kind = HeadKind::Categorical(actions);
        let heads = Heads {
            kind: HeadsKind::Independent,
            parts: vec![Head { name: "action".into(), kind, hidden_size: 8 }],
            stream_size: 8,
            prior: false,
        };
        let spec = Spec { embedding: Embedding::vector(inputs), backbone, heads, critic: None };
        Policy::init(&spec, 3).unwrap()
    }

    fn mlp() -> Backbone {
        Backbone::Mlp(MlpConfig {
            hidden_sizes: vec![8],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        })
    }

    fn gru() -> Backbone {
        Backbone::Gru(RecurrentConfig {
            hidden_size: 8,
            num_layers: 1,
            layer_norm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
            ..Default::default()
        })
    }

    #[test]
    fn every_episode_has_a_return_and_every_decision_a_time() {
        let play = Play { episodes: 4, seed: 1, deterministic: false };
        let played = play.run(&policy(2, 2, gru()), &mut CartPole::new(false), &GO).unwrap();
        assert_eq!(played.returns.len(), 4);
        assert!(played.returns.iter().all(|r| (8.0..=500.0).contains(r)));
        assert_eq!(played.decisions as f64, played.returns.iter().sum::<f64>());
        assert_eq!(played.mean * 4.0, played.decisions as f64);
        assert!(played.median_us > 0.0 && played.p99_us >= played.median_us);
    }

    #[test]
    fn equal_seeds_play_equal_episodes_and_another_seed_differs() {
        let (policy, mut env) = (policy(4, 2, mlp()), CartPole::new(true));
        let mut returns = |seed| {
            let play = Play { episodes: 5, seed, deterministic: false };
            play.run(&policy, &mut env, &GO).unwrap().returns
        };
        assert_eq!(returns(1), returns(1));
        assert_ne!(returns(1), returns(2));
    }

    #[test]
    fn state_is_carried_within_an_episode_and_zero_at_its_beginning() {
        /// A world that shows 1 on its first step and 0 after it, and ends after three steps.
        struct Flash(usize);
        impl Environment for Flash {
            fn observation_size(&self) -> usize {
                1
            }
            fn actions(&self) -> usize {
                2
            }
            fn reset(&mut self, _seed: u64) {
                self.0 = 0;
            }
            fn observe(&self, out: &mut [f32]) -> Result<()> {
                out.fill(if self.0 == 0 { 1.0 } else { 0.0 });
                Ok(())
            }
            fn step(&mut self, action: usize) -> Result<crate::Step> {
                self.0 += 1;
                Ok(crate::Step { reward: action as f64, terminated: self.0 == 3, truncated: false })
            }
        }
        // With argmax and one world, episodes differ only if policy state leaks between episodes.
        let play = Play { episodes: 6, ..Play::default() };
        let played = play.run(&policy(1, 2, gru()), &mut Flash(0), &GO).unwrap();
        assert!(played.returns.iter().all(|r| r == &played.returns[0]));
        // The steps agree with the sequence form over the whole episode.
        let policy = policy(1, 2, gru());
        let frames = Frames {
            batch: 1,
            time: 3,
            continuous: vec![1.0, 0.0, 0.0],
            ids: vec![],
            previous: vec![heads::NONE, 0.0, 0.0],
        };
        let state = policy.zero_state(1).unwrap();
        let (logits, _) = policy.forward(&frames, None, &state, &Default::default()).unwrap();
        let logits: Vec<Vec<f32>> = logits.to_vec2().unwrap();
        let ones = logits.iter().filter(|l| l[1] > l[0]).count();
        assert_eq!(played.returns[0], ones as f64);
    }

    #[test]
    fn a_policy_for_another_world_is_refused() {
        let mut env = CartPole::new(false);
        let error = Play::default().run(&policy(4, 2, mlp()), &mut env, &GO).unwrap_err();
        assert_eq!(error.to_string(), "observation of the policy: expected 2, got 4");
        let error = Play::default().run(&policy(2, 3, mlp()), &mut env, &GO).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        for episodes in [0, 1001] {
            let play = Play { episodes, ..Play::default() };
            let error = play.run(&policy(2, 2, mlp()), &mut env, &GO).unwrap_err();
            assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
        }
    }

    #[test]
    fn a_cancelled_evaluation_has_no_result() {
        let policy = policy(2, 2, mlp());
        let result =
            Play::default().run(&policy, &mut CartPole::new(false), &AtomicBool::new(true));
        assert!(matches!(result, Err(Error::Cancelled)));
    }
}
