//! Evaluation of a policy by play: many episodes side by side, or one episode recorded step by step.
//!
//! Environment `i` depends on the seed and on `i` alone, and so does the policy's choice in it: the first 4 of 100
//! episodes are those of a call with 4.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce_env::{Autoreset, EnvOptions, Episode, Stepped};
use sconce_nn::Policy;
use sconce_nn::backbone::Context;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, pool};
use serde::{Deserialize, Serialize};

use crate::rollout::{Outcome, Player, Shard, embedded};
use crate::side_by_side::side_by_side;

/// Maximum episodes of one call.
const MAX_EPISODES: usize = 65_536;
/// Longest episode of a trace, which keeps every state.
const MAX_TRACE: u32 = 65_536;

/// How a policy is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evaluation {
    /// Number of episodes, 1..=65,536. They run side by side, each in an environment of its own.
    pub episodes: usize,
    /// Seed of the start states and of sampled actions.
    pub seed: u64,
    /// Whether to take the most likely action instead of a sampled one.
    pub deterministic: bool,
}

impl Default for Evaluation {
    fn default() -> Self {
        Evaluation { episodes: 100, seed: 0, deterministic: true }
    }
}

/// Results of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluated {
    /// The sum of rewards of each episode: that of seat 0 where the policy plays both seats.
    pub returns: Vec<f32>,
    /// The number of steps of each episode.
    pub lengths: Vec<u32>,
    /// The number of episodes that the rules of the environment ended.
    pub terminated: usize,
    /// Decisions of the policy, including those of episodes beyond the first of an environment.
    pub decisions: u64,
    /// Time of the policy per decision on one thread, in microseconds.
    pub decision_us: f64,
}

/// An episode of one environment, step by step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    /// The full state of the environment, before the first step and after each step.
    pub states: Vec<Vec<f32>>,
    /// The inputs of the policy's rows in each step.
    pub inputs: Vec<Vec<f32>>,
    /// The reward of seat 0 in each step.
    pub rewards: Vec<f32>,
    /// Whether the rules of the environment ended the episode.
    pub terminated: bool,
}

/// Plays the first episode of each of `play.episodes` environments.
///
/// # Errors
/// `Mismatch` for a policy that does not fit the environment, `OutOfRange` for the number of episodes, `NonFinite` for a
/// logit or a memory that is not finite, `Cancelled`.
pub fn evaluate(
    policy: &Policy,
    env: &EnvOptions,
    play: Evaluation,
    cancelled: &AtomicBool,
) -> Result<Evaluated> {
    if !(1..=MAX_EPISODES).contains(&play.episodes) {
        let max = MAX_EPISODES as f64;
        return Err(Error::out_of_range("episodes", play.episodes as f64, 1.0, max));
    }
    let mut player = player(policy, env, play, play.episodes)?;
    let parts = side_by_side("a part of the episodes", &mut player.shards, |shard| {
        pool::serial(|| Part::play(shard, policy, play, cancelled))
    })?;
    Ok(joined(parts))
}

/// Records the episode that [`evaluate`] plays in environment 0.
///
/// # Errors
/// Those of [`evaluate`]; `OutOfRange` for a time limit above 65,536 steps.
pub fn trace(
    policy: &Policy,
    env: &EnvOptions,
    play: Evaluation,
    cancelled: &AtomicBool,
) -> Result<Trace> {
    let limit = sconce_env::spec(env)?.time_limit;
    if limit > MAX_TRACE {
        return Err(Error::out_of_range("time_limit", limit.into(), 1.0, MAX_TRACE.into()));
    }
    let mut player = player(policy, env, play, 1)?;
    let shard = player.shards.first_mut().ok_or_else(|| Error::not_found("an environment"))?;
    let first = shard.envs.state(0);
    let mut trace =
        Trace { states: vec![first], inputs: vec![], rewards: vec![], terminated: false };
    pool::serial(|| {
        for t in 0.. {
            stopped(cancelled)?;
            let step = step(shard, policy, play, t)?;
            trace.inputs.push(shard.previous.clone());
            trace.states.push(shard.envs.state(0));
            trace.rewards.push(step.rewards[0]);
            if !shard.outcome.ended.is_empty() {
                trace.terminated = step.terminated;
                break;
            }
        }
        Ok(trace)
    })
}

/// A player whose environments stop at the end of an episode: the next step begins the next one.
fn player(policy: &Policy, env: &EnvOptions, play: Evaluation, count: usize) -> Result<Player> {
    let (autoreset, seed) = (Autoreset::NextStep, play.seed);
    Player::new(&EnvOptions { count, seed, autoreset, ..env.clone() }, policy)
}

/// Results of one shard.
struct Part {
    /// The first episode of each environment of the shard.
    episodes: Vec<Episode>,
    decisions: u64,
    /// Seconds of the policy.
    seconds: f64,
}

impl Part {
    fn play(
        shard: &mut Shard,
        policy: &Policy,
        play: Evaluation,
        cancelled: &AtomicBool,
    ) -> Result<Self> {
        let count = shard.envs.count();
        let (mut first, mut left, mut finished) = (vec![None; count], count, vec![]);
        let mut part = Part { episodes: vec![], decisions: 0, seconds: 0.0 };
        for t in 0.. {
            stopped(cancelled)?;
            part.seconds += step(shard, policy, play, t)?.seconds;
            part.decisions += shard.envs.rows() as u64;
            shard.begin_episodes(policy)?;
            shard.envs.episodes(&mut finished);
            for episode in finished.drain(..).filter(|episode| episode.seat == 0) {
                let slot: &mut Option<Episode> = &mut first[episode.env as usize];
                left -= usize::from(slot.is_none());
                slot.get_or_insert(episode);
            }
            if left == 0 {
                break;
            }
        }
        part.episodes = first.into_iter().flatten().collect();
        Ok(part)
    }
}

/// The result of a step beside the state of its shard.
struct Outlook {
    rewards: Vec<f32>,
    /// Whether any episode has ended by the rules of the environment.
    terminated: bool,
    /// Seconds of the policy.
    seconds: f64,
}

/// Decides in all rows of a shard, and steps its environments. `previous` then holds the inputs of the step.
fn step(shard: &mut Shard, policy: &Policy, play: Evaluation, t: u64) -> Result<Outlook> {
    let rows = shard.envs.rows();
    let sampling = Sampling { deterministic: play.deterministic, ..Sampling::default() };
    let rng = Rng::new(play.seed, "evaluate.sample", 0);
    let row = |row: usize| rng.at(t << 32 | (shard.first + row) as u64);
    let rngs: Vec<Rng> = (0..rows).map(row).collect();
    let masks = shard.envs.masks();
    let mask = (!masks.is_empty()).then_some(&*masks);
    let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask };
    let begun = Instant::now();
    let frames = embedded(policy, &shard.observations, &shard.previous)?;
    let (decision, memory) = policy.act(&frames, &shard.memory, draw, &Context::default())?;
    let seconds = begun.elapsed().as_secs_f64();
    (shard.memory, shard.previous) = (memory, decision.choices);
    let (mut rewards, mut terminated) = (vec![0.0; rows], vec![0; rows]);
    let Outcome { ended, final_observations } = &mut shard.outcome;
    shard.envs.step(
        &shard.previous,
        &mut Stepped {
            observations: &mut shard.observations,
            rewards: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut vec![0; rows],
            ended,
            final_observations,
        },
    )?;
    Ok(Outlook { rewards, terminated: terminated.contains(&1), seconds })
}

fn stopped(cancelled: &AtomicBool) -> Result<()> {
    match cancelled.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}

fn joined(parts: Vec<Part>) -> Evaluated {
    let decisions: u64 = parts.iter().map(|part| part.decisions).sum();
    let seconds: f64 = parts.iter().map(|part| part.seconds).sum();
    let episodes: Vec<Episode> = parts.into_iter().flat_map(|part| part.episodes).collect();
    Evaluated {
        returns: episodes.iter().map(|episode| episode.ret).collect(),
        lengths: episodes.iter().map(|episode| episode.length).collect(),
        terminated: episodes.iter().filter(|episode| episode.terminated).count(),
        decisions,
        decision_us: seconds * 1e6 / decisions.max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use sconce_nn::Spec;
    use serde_json::json;

    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);

    fn policy(backbone: serde_json::Value, inputs: usize) -> Policy {
        let spec: Spec = serde_json::from_value(json!({
            "embedding": {"vector": inputs},
            "backbone": backbone,
            "heads": {
                "kind": "independent", "stream_size": 8, "prior": false,
                "parts": [{"name": "action", "kind": {"categorical": 2}, "hidden_size": 0}],
            },
        }))
        .unwrap();
        Policy::init(&spec, 3).unwrap()
    }

    fn mlp() -> Policy {
        let mlp = json!({"hidden_sizes": [8], "layer_norm": false, "residual": false,
            "dropout": 0.0, "input_dropout": 0.0});
        policy(json!({"mlp": mlp}), 4)
    }

    fn gru() -> Policy {
        let gru = json!({"hidden_size": 8, "num_layers": 1, "layer_norm": false,
            "input_norm": false, "dropout": 0.0, "input_dropout": 0.0});
        policy(json!({"gru": gru}), 2)
    }

    fn env(name: &str) -> EnvOptions {
        EnvOptions { env: name.into(), ..EnvOptions::default() }
    }

    fn sampled(episodes: usize) -> Evaluation {
        Evaluation { episodes, seed: 5, deterministic: false }
    }

    #[test]
    fn an_episode_does_not_depend_on_the_number_of_episodes() {
        for (policy, env) in [(mlp(), env("cart_pole")), (gru(), env("cart_pole_velocity_less"))] {
            let all = evaluate(&policy, &env, sampled(40), &GO).unwrap();
            let few = evaluate(&policy, &env, sampled(4), &GO).unwrap();
            assert_eq!((all.returns.len(), few.returns.len()), (40, 4));
            assert_eq!(all.returns[..4], few.returns[..]);
            assert!(all.lengths.iter().zip(&all.returns).all(|(n, sum)| *n as f32 == *sum));
            assert!(all.decisions >= all.lengths.iter().map(|n| u64::from(*n)).sum());
        }
    }

    #[test]
    fn a_trace_is_the_episode_of_environment_0() {
        let (policy, env) = (gru(), env("cart_pole_velocity_less"));
        let played = evaluate(&policy, &env, sampled(3), &GO).unwrap();
        let trace = trace(&policy, &env, sampled(3), &GO).unwrap();
        let steps = played.lengths[0] as usize;
        assert_eq!((trace.rewards.len(), trace.inputs.len()), (steps, steps));
        assert_eq!(trace.states.len(), steps + 1);
        assert_eq!(trace.rewards.iter().sum::<f32>(), played.returns[0]);
        let options = EnvOptions { seed: 5, ..env.clone() };
        assert_eq!(trace.states[0], sconce_env::Envs::new(&options).unwrap().state(0));
        assert!(trace.terminated);
        let last = trace.states.last().unwrap();
        assert!(last[0].abs() > 2.4 || last[2].abs() > 0.2, "{last:?} is an end of an episode");
    }

    #[test]
    fn memory_is_carried_within_an_episode() {
        let (policy, env) = (gru(), env("cart_pole_velocity_less"));
        let play = Evaluation { episodes: 1, ..Evaluation::default() };
        let trace = trace(&policy, &env, play, &GO).unwrap();
        // The sequence form over the whole episode gives the same choices.
        let labels: Vec<f32> = trace.inputs.concat();
        let mut previous = vec![sconce_nn::heads::NONE];
        previous.extend(&labels[..labels.len() - 1]);
        let observed = |state: &Vec<f32>| [state[0], state[2]];
        let frames = sconce_nn::policy::Frames {
            batch: 1,
            time: labels.len(),
            continuous: trace.states[..labels.len()].iter().flat_map(observed).collect(),
            ids: vec![],
            previous,
        };
        let state = policy.zero_state(1).unwrap();
        let (logits, _) = policy.forward(&frames, None, &state, &Default::default()).unwrap();
        let logits: Vec<Vec<f32>> = logits.to_vec2().unwrap();
        for (logits, label) in logits.iter().zip(labels) {
            assert!((logits[1] > logits[0]) == (label == 1.0) || logits[0] == logits[1]);
        }
    }

    #[test]
    fn wrong_arguments_and_a_stop_are_errors() {
        let none = Evaluation { episodes: 0, ..Evaluation::default() };
        let error = evaluate(&mlp(), &env("cart_pole"), none, &GO).unwrap_err();
        assert!(error.to_string().contains("episodes"), "{error}");
        let error = evaluate(&mlp(), &env("pendulum"), sampled(1), &GO).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        let long = EnvOptions { time_limit: Some(MAX_TRACE + 1), ..env("cart_pole") };
        let error = trace(&mlp(), &long, sampled(1), &GO).unwrap_err();
        assert!(error.to_string().contains("time_limit"), "{error}");
        let stop = AtomicBool::new(true);
        let error = evaluate(&mlp(), &env("cart_pole"), sampled(1), &stop).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
}
