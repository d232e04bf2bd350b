//! Options of a run that learns from play: the fields of `options.exs`, by their groups.

use std::path::PathBuf;

use sconce_env::EnvOptions;
use sconce_tensor::error::Difference;
use sconce_tensor::{Error, Result};
use sconce_train::optimiser::{Kind, OptimiserConfig};
use sconce_train::option_group;
use sconce_train::options::{Number, Row, Table, Teachers};
use sconce_train::weights::pruning::{Pattern, Pruning};
use sconce_train::weights::quantisation::{Format, Quantisation, Steps};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::league::Choice;
use crate::objective::{Normalise, Terms};
use crate::returns::Discounts;

/// The table of the options.
static TABLE: Table = Table::new(include_str!("../options.exs"));

/// Options of a run; names and meanings are those of `Sconce.PPO`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct PpoOptions {
    /// Environments.
    pub world: WorldOptions,
    /// Rollouts, and what is made of their rewards.
    pub rollout: RolloutOptions,
    /// Terms of the loss, and passes over a rollout.
    pub ppo: LossOptions,
    /// Update rule of the weights.
    pub optimiser: OptimiserOptions,
    /// Length of the run.
    pub schedule: ScheduleOptions,
    /// First weights, and a teacher.
    pub weights: WeightsOptions,
    /// Opponents.
    pub league: LeagueOptions,
    /// Saves.
    pub saving: SavingOptions,
    /// Threads and seed.
    pub machine: MachineOptions,
}

/// Defines a struct for each group.
macro_rules! options {
    (
        world: [$($world:tt)*],
        rollout: [$($rollout:tt)*],
        ppo: [$($ppo:tt)*],
        optimiser: [$($optimiser:tt)*],
        schedule: [$($schedule:tt)*],
        weights: [$($weights:tt)*],
        league: [$($league:tt)*],
        saving: [$($saving:tt)*],
        machine: [$($machine:tt)*]
    ) => {
        option_group!(TABLE, "Environments of a run.", WorldOptions, $($world)*);
        option_group!(TABLE, "Rollouts, and what is made of their rewards.", RolloutOptions, $($rollout)*);
        option_group!(TABLE, "Terms of the loss, and passes over a rollout.", LossOptions, $($ppo)*);
        option_group!(TABLE, "Update rule of the weights.", OptimiserOptions, $($optimiser)*);
        option_group!(TABLE, "Length of a run.", ScheduleOptions, $($schedule)*);
        option_group!(TABLE, "First weights, and a teacher.", WeightsOptions, $($weights)*);
        option_group!(TABLE, "Opponents of a run.", LeagueOptions, $($league)*);
        option_group!(TABLE, "Saves of a run.", SavingOptions, $($saving)*);
        option_group!(TABLE, "Threads and seed of a run.", MachineOptions, $($machine)*);
    };
}

/// The weight of a reward term.
type RewardWeight = (String, f32);

/// Initial weights of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initialisation {
    /// Orthogonal matrices (Saxe et al. 2014), small for the logits of actions.
    #[default]
    Orthogonal,
    /// As for imitation.
    Default,
}

/// Advantages of live segments, whose weights may be older than those that learn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OffPolicy {
    /// Those of the recorded values; the loss clips its ratios.
    #[default]
    Clip,
    /// V-trace (Espeholt et al. 2018) with the present values.
    VTrace,
}

impl Number for OffPolicy {}
impl Number for Normalise {}
impl Number for Choice {}
impl Number for Initialisation {}

include!("../options.exs");

impl TryFrom<Map<String, Value>> for PpoOptions {
    type Error = String;

    fn try_from(given: Map<String, Value>) -> std::result::Result<Self, String> {
        let groups = PpoOptions::nested(given)?;
        let group = |name: &str| groups.get(name).cloned().unwrap_or_else(|| Map::new().into());
        let said = |e: serde_json::Error| e.to_string();
        Ok(PpoOptions {
            world: serde_json::from_value(group("world")).map_err(said)?,
            rollout: serde_json::from_value(group("rollout")).map_err(said)?,
            ppo: serde_json::from_value(group("ppo")).map_err(said)?,
            optimiser: serde_json::from_value(group("optimiser")).map_err(said)?,
            schedule: serde_json::from_value(group("schedule")).map_err(said)?,
            weights: serde_json::from_value(group("weights")).map_err(said)?,
            league: serde_json::from_value(group("league")).map_err(said)?,
            saving: serde_json::from_value(group("saving")).map_err(said)?,
            machine: serde_json::from_value(group("machine")).map_err(said)?,
        })
    }
}

impl PpoOptions {
    /// Checks that every number is in its range, and that the run has at least one update.
    ///
    /// # Errors
    /// `OutOfRange`, `Mismatch`.
    pub fn validate(&self) -> Result<()> {
        self.world.check()?;
        self.rollout.check()?;
        self.ppo.check()?;
        self.optimiser.check()?;
        self.schedule.check()?;
        self.weights.check()?;
        self.league.check()?;
        self.saving.check()?;
        self.machine.check()?;
        let values = serde_json::to_value(self).map_err(|e| Error::corrupt("options", e))?;
        TABLE.check_meant(&values)?;
        self.quantisation().map_or(Ok(()), |own| own.check())?;
        self.pruning().map_or(Ok(()), |own| own.check())?;
        if self.pruning().is_some() && self.quantisation().is_some() {
            return Err(Error::mismatch("prune", "a run without quantise", "one with it"));
        }
        self.check_league()?;
        let rollout = self.rollout_frames();
        if self.ppo.minibatches as u64 > rollout {
            let most = rollout as f64;
            return Err(Error::out_of_range("minibatches", self.ppo.minibatches as f64, 1.0, most));
        }
        if rollout > MAX_FRAMES {
            let bytes = rollout.saturating_mul(32 << 10);
            return Err(Error::out_of_memory("a rollout (environments x rollout_steps)", bytes));
        }
        Ok(())
    }

    /// Whether the run has a league of opponents.
    pub fn has_league(&self) -> bool {
        !self.league.opponents.is_empty() || self.league.past_selves > 0
    }

    /// Refuses options of a league without opponents, and a league beside a scripted second seat.
    fn check_league(&self) -> Result<()> {
        let (own, plain) = (&self.league, LeagueOptions::default());
        if self.has_league() {
            return match &self.world.opponent {
                Some(name) => Err(Error::mismatch("opponent", "none beside a league", name)),
                None => Ok(()),
            };
        }
        for (name, given) in [
            ("opponent_choice", own.opponent_choice != plain.opponent_choice),
            ("self_play_share", own.self_play_share != plain.self_play_share),
        ] {
            if given {
                let expected = "opponents, or past_selves above 0";
                return Err(Error::mismatch(name, expected, "no opponents, and past_selves 0"));
            }
        }
        Ok(())
    }

    /// Refuses a run that is shorter than one update of `rows` rows.
    ///
    /// # Errors
    /// `Mismatch` with both numbers.
    pub fn check_length(&self, rows: usize) -> Result<()> {
        let (steps, update) = (self.schedule.steps, self.update_steps(rows));
        if steps >= update {
            return Ok(());
        }
        let expected = format!("at least the {update} steps of one update");
        Err(Error::mismatch("steps", expected, steps))
    }

    /// Steps of one update of `rows` rows.
    pub fn update_steps(&self, rows: usize) -> u64 {
        (rows as u64).saturating_mul(self.rollout.rollout_steps as u64)
    }

    /// Refuses more batches than sequences of `rows` rows: for a policy with memory a batch has whole sequences.
    ///
    /// # Errors
    /// `OutOfRange` with the most batches.
    pub fn check_batches(&self, rows: usize, remembers: bool) -> Result<()> {
        let (batches, most) = (self.ppo.minibatches, self.sequences(rows, remembers));
        match batches <= most {
            true => Ok(()),
            false => Err(Error::out_of_range("minibatches", batches as f64, 1.0, most as f64)),
        }
    }

    /// Least number of sequences of `rows` rows in an update; ends of episodes add some.
    fn sequences(&self, rows: usize, remembers: bool) -> usize {
        let rollout = &self.rollout;
        rows * match remembers {
            true => rollout.rollout_steps.div_ceil(rollout.sequence_length),
            false => rollout.rollout_steps,
        }
    }

    /// Frames of a batch that can be cut, which for a policy with memory are those of at least two sequences.
    pub(crate) fn batch_frames(&self, remembers: bool) -> usize {
        match self.sequences(self.world.environments, remembers) / self.ppo.minibatches {
            0 | 1 => 0,
            _ => self.rollout_frames() as usize / self.ppo.minibatches,
        }
    }

    /// Most environments of `seats` rows with which a run still has an update.
    pub(crate) fn most_environments(&self, seats: usize) -> usize {
        let steps = (self.rollout.rollout_steps * seats.max(1)) as u64;
        (MAX_FRAMES.min(self.schedule.steps) / steps.max(1)) as usize
    }

    fn rollout_frames(&self) -> u64 {
        self.update_steps(self.world.environments)
    }

    /// Options of the environments named `env`.
    pub fn env(&self, env: &str) -> EnvOptions {
        EnvOptions {
            env: env.into(),
            count: self.world.environments,
            seed: self.machine.seed,
            time_limit: self.world.time_limit,
            action_repeat: self.world.action_repeat,
            frame_stack: self.world.frame_stack,
            opponent: self.world.opponent.clone(),
            reward_weights: self.world.reward_weights.clone(),
            ..EnvOptions::default()
        }
    }

    /// Discounts of rewards and advantages.
    pub fn discounts(&self) -> Discounts {
        let (gamma, lambda) = (self.rollout.discount as f32, self.rollout.lambda as f32);
        Discounts { gamma, lambda }
    }

    /// The optimiser: Adam.
    pub(crate) fn adam(&self) -> OptimiserConfig {
        OptimiserConfig { eps: Some(self.optimiser.eps), ..OptimiserConfig::new(Kind::Adam) }
    }

    /// The quantisation of the weights, if the run has one.
    pub(crate) fn quantisation(&self) -> Option<Quantisation> {
        let OptimiserOptions { quantise_group: group, quantise_after: after, .. } = self.optimiser;
        let ramp = self.optimiser.quantise_ramp;
        let steps = self.optimiser.quantise_steps;
        let activations = self.optimiser.quantise_activations;
        self.optimiser.quantise.map(|format| Quantisation {
            format,
            group,
            after,
            ramp,
            steps,
            activations,
        })
    }

    /// The pruning of the weights, if the run has one.
    pub(crate) fn pruning(&self) -> Option<Pruning> {
        let OptimiserOptions { prune_sparsity: sparsity, prune_after: after, .. } = self.optimiser;
        let ramp = self.optimiser.prune_ramp;
        self.optimiser.prune.map(|pattern| Pruning { pattern, sparsity, after, ramp })
    }

    /// How far the weights are on the way to their grid, or to their sparsity, when the share `done` of the run has
    /// passed: from 0 to 1. `None` for a run without either.
    pub(crate) fn annealed(&self, done: f64) -> Option<f64> {
        let quantised = self.quantisation().map(|own| own.annealed(done));
        quantised.or_else(|| self.pruning().map(|own| own.annealed(done)))
    }

    /// Weights and bounds of the loss when the share `done` of the run has passed.
    pub fn terms(&self, done: f64) -> Terms {
        Terms {
            clip: linear(self.ppo.clip, self.ppo.clip_to, done),
            policy_weight: self.ppo.policy_weight,
            value_clip: self.ppo.value_clip,
            value_weight: self.ppo.value_weight,
            entropy_weight: linear(self.ppo.entropy_weight, self.ppo.entropy_to, done),
            normalise: self.ppo.normalise_advantages,
        }
    }

    /// The learning rate when the share `done` of the run has passed.
    pub fn learning_rate(&self, done: f64) -> f64 {
        linear(self.optimiser.learning_rate, self.optimiser.learning_rate_to, done)
    }

    /// Factor on the divergence from the teacher when the share `done` of the run has passed.
    pub fn teacher_weight(&self, done: f64) -> f64 {
        linear(self.weights.teacher_weight, self.weights.teacher_to, done)
    }

    /// Sorts options into their groups.
    pub(crate) fn nested(
        given: Map<String, Value>,
    ) -> std::result::Result<Map<String, Value>, String> {
        TABLE.nested(given)
    }

    /// The options that differ from `recorded` although a resumed run cannot change them.
    ///
    /// # Errors
    /// `Corrupt` if the options cannot be compared.
    pub(crate) fn changed(&self, recorded: &PpoOptions) -> Result<Vec<Difference>> {
        let value = |options: &PpoOptions| {
            serde_json::to_value(options).map_err(|e| Error::corrupt("options", e))
        };
        let (own, before) = (value(self)?, value(recorded)?);
        let mut all = vec![];
        for Row { group, name, .. } in TABLE.rows()?.iter().filter(|row| !row.is_free()) {
            let of = |all: &Value| all.get(group).and_then(|group| group.get(name)).cloned();
            let (own, before) = (of(&own), of(&before));
            if own != before {
                let said = |value: Option<Value>| value.unwrap_or_default().to_string();
                let (recorded, given) = (said(before), said(own));
                all.push(Difference { option: name.clone(), recorded, given });
            }
        }
        Ok(all)
    }
}

/// Maximum number of frames of a rollout. More would not fit into the memory of the machines that Sconce is for.
const MAX_FRAMES: u64 = 1 << 24;

/// A line from `from` to `to`, which is `from` if there is none.
fn linear(from: f64, to: Option<f64>, done: f64) -> f64 {
    to.map_or(from, |to| from + (to - from) * done.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_defaults_of_the_table_and_of_the_fields_are_the_same() {
        let own = serde_json::to_value(PpoOptions::default()).unwrap();
        for row in TABLE.rows().unwrap() {
            assert_eq!(own[&row.group][&row.name], row.default(), "{}", row.name);
        }
        PpoOptions::default().validate().unwrap();
    }

    #[test]
    fn options_are_given_with_or_without_their_group_and_checked() {
        let of = |value| serde_json::from_value::<PpoOptions>(value);
        let options = of(json!({"clip": 0.1, "world": {"environments": 8}})).unwrap();
        assert_eq!((options.ppo.clip, options.world.environments), (0.1, 8));
        assert!(of(json!({"clop": 0.1})).unwrap_err().to_string().contains("clop"));
        for (option, value) in
            [("clip", json!(0.0)), ("environments", json!(0)), ("minibatches", json!(4096))]
        {
            let error = of(json!({option: value})).unwrap().validate().unwrap_err();
            assert!(error.to_string().contains(option), "{error}");
        }
    }

    #[test]
    fn a_run_shorter_than_one_update_is_refused_with_both_numbers() {
        let options: PpoOptions = serde_json::from_value(json!({"steps": 2047})).unwrap();
        let error = options.check_length(32).unwrap_err().to_string();
        assert!(error.contains("2048") && error.contains("2047"), "{error}");
        options.check_length(31).unwrap();
    }

    #[test]
    fn a_policy_with_memory_has_no_more_batches_than_sequences() {
        let given = json!({"environments": 4, "rollout_steps": 64, "minibatches": 17});
        let options: PpoOptions = serde_json::from_value(given).unwrap();
        let most = 4 * 64usize.div_ceil(options.rollout.sequence_length);
        assert!(most < 17, "{most}");
        let error = options.check_batches(4, true).unwrap_err().to_string();
        assert!(error.contains("minibatches") && error.contains(&most.to_string()), "{error}");
        options.check_batches(4, false).unwrap();
    }

    #[test]
    fn schedules_are_lines_from_the_first_number_to_the_last() {
        let given = json!({"clip": 0.2, "clip_to": 0.1, "learning_rate": 1e-3});
        let options: PpoOptions = serde_json::from_value(given).unwrap();
        assert!((options.terms(0.5).clip - 0.15).abs() < 1e-12);
        assert!((options.terms(2.0).clip - 0.1).abs() < 1e-12);
        assert_eq!(options.learning_rate(0.7), 1e-3);
    }
}
