//! The checkpoints of a run: the best policy, and the state to resume from.

use std::path::Path;

use sconce_data::Sink;
use sconce_env::Numbers;
use sconce_nn::checkpoint::{self, Checkpoint, Optimiser, Snapshot};
use sconce_nn::{Policy, Spec};
use sconce_tensor::error::Difference;
use sconce_tensor::{Error, Result};
use sconce_train::run::{Folder, Kind};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ahead::{Played, SavedRollout};
use super::progress::Progress;
use super::report::Event;
use super::{Run, Task};
use crate::league::{League, LeagueState};
use crate::learner::Learner;
use crate::live::Episodes;
use crate::options::PpoOptions;
use crate::rollout::Player;
use crate::statistics::Statistics;

/// Name of the player's arrays beside those of the optimiser.
const PLAYER: &str = "player.";
/// Name of the arrays of live episodes.
const LIVE: &str = "live.";
/// Name of the arrays of a rollout that waits for its update.
const AHEAD: &str = "ahead.";

/// The state of a run, in the metadata of its last checkpoint.
#[derive(Serialize, Deserialize)]
struct State {
    env: String,
    options: PpoOptions,
    progress: Progress,
    statistics: Statistics,
    /// Digests of the teachers' files.
    #[serde(default)]
    teacher: Option<String>,
    #[serde(default)]
    league: Option<LeagueState>,
    /// A rollout that waits for its update.
    #[serde(default)]
    ahead: Option<SavedRollout>,
    /// Names of the reward terms of live games.
    #[serde(default)]
    terms: Option<Vec<String>>,
}

/// The best policy so far, until it is written.
pub(super) struct Best {
    snapshot: Snapshot,
}

/// A saved state of an earlier run.
pub(super) struct Earlier {
    checkpoint: Checkpoint,
    progress: Progress,
    statistics: Statistics,
    league: Option<LeagueState>,
    ahead: Option<SavedRollout>,
}

/// The state from which a run goes on.
pub(super) struct Restored {
    pub progress: Progress,
    pub statistics: Statistics,
    /// Live episodes that go on.
    pub episodes: Episodes,
    /// A rollout that waits for its update.
    pub ahead: Option<Played>,
}

/// The saved state in the folder of a run that is resumed.
///
/// # Errors
/// `Fixed` for options that a resumed run cannot change, `Mismatch` for a folder that already has a run.
pub(super) fn resumable(
    folder: &Folder,
    task: Task<'_>,
    options: &PpoOptions,
    teacher: Option<&str>,
) -> Result<Option<Earlier>> {
    let path = folder.file(Kind::Last);
    match (task.resume, path.exists()) {
        (false, false) => Ok(None),
        // The run has begun, and was killed before its first save.
        (true, false) => Ok(None),
        (false, true) => {
            let what = format!("folder {}", folder.path().display());
            let expected = "an empty folder, or resume: true";
            Err(Error::mismatch(what, expected, "one with a run"))
        }
        (true, true) => earlier(&path, task, options, teacher).map(Some),
    }
}

fn earlier(
    path: &Path,
    task: Task<'_>,
    options: &PpoOptions,
    teacher: Option<&str>,
) -> Result<Earlier> {
    let checkpoint = checkpoint::load(path)?;
    let corrupt = |e| Error::corrupt(path.display().to_string(), format!("no state of a run: {e}"));
    let state: State = serde_json::from_value(checkpoint.manifest.run.clone()).map_err(corrupt)?;
    let mut differences = options.changed(&state.options)?;
    if state.env != task.env {
        let (recorded, given) = (state.env, task.env.to_string());
        differences.push(Difference { option: "env".into(), recorded, given });
    }
    let spec = &checkpoint.manifest.spec;
    let embedding = match state.statistics.observes() {
        true => spec.embedding.plain(),
        false => spec.embedding.clone(),
    };
    if (Spec { embedding, ..spec.clone() }) != *task.spec {
        let (recorded, given) = ("that of the run".into(), "another".into());
        differences.push(Difference { option: "spec".into(), recorded, given });
    }
    if state.teacher.as_deref() != teacher
        && options.weights.teacher == state.options.weights.teacher
    {
        let (recorded, given) = ("the file of the run".into(), "another file".into());
        differences.push(Difference { option: "teacher".into(), recorded, given });
    }
    if let (Some(recorded), Some(inbox)) = (&state.terms, task.inbox)
        && recorded[..] != *inbox.terms()
    {
        let (recorded, given) = (recorded.join(", "), inbox.terms().join(", "));
        differences.push(Difference { option: "reward_terms".into(), recorded, given });
    }
    let State { progress, statistics, league, ahead, .. } = state;
    match differences.is_empty() {
        true => Ok(Earlier { checkpoint, progress, statistics, league, ahead }),
        false => Err(Error::Fixed { what: path.display().to_string(), differences }),
    }
}

impl Earlier {
    /// The policy of the state, without normalisation.
    pub(super) fn policy(&self, spec: &Spec) -> Result<Policy> {
        Policy::from_weights(spec, self.checkpoint.weights.clone())
    }

    /// The members of the run's league, if it has one.
    pub(super) fn league(&self) -> Option<LeagueState> {
        self.league.clone()
    }

    /// Restores optimiser, player and opponents, and returns the rest.
    pub(super) fn restore(
        self,
        learner: &mut Learner,
        player: &mut Player,
        league: Option<&League>,
    ) -> Result<Restored> {
        let Earlier { checkpoint, progress, statistics, league: _, ahead } = self;
        let of_play = |name: &str| [PLAYER, LIVE, AHEAD].iter().any(|own| name.starts_with(own));
        let (of_play, moments): (Optimiser, Optimiser) =
            checkpoint.optimiser.into_iter().partition(|(name, _)| of_play(name));
        learner.load_moments(progress.optimiser_updates, &moments)?;
        let of_play = Numbers(of_play);
        let numbers = of_play.nested(PLAYER);
        player.restore(&numbers, learner.stepper().policy())?;
        if let Some(league) = league {
            player.restore_opponents(&numbers, league.players())?;
        }
        let episodes = Episodes::of_numbers(&of_play.nested(LIVE))?;
        let rollout = of_play.nested(AHEAD);
        let (weights, teachers) = (learner.stepper().policy().weights(), learner.teachers());
        let restored = |saved| Played::restored(saved, &rollout, weights, &teachers);
        let ahead = ahead.map(restored).transpose()?;
        Ok(Restored { progress, statistics, episodes, ahead })
    }
}

impl Run<'_> {
    /// Keeps the policy that played the last rollout, after `updates` updates, if its mean return is the best so far.
    pub(super) fn keep_best(&mut self, policy: &Policy, updates: u64) -> Result<()> {
        let Some(mean) = self.progress.mean_return() else { return Ok(()) };
        // Against itself a policy loses as often as it wins, and the opponents of a league change.
        if self.player.spec().seats > 1 || !self.progress.is_better(mean) {
            return Ok(());
        }
        self.progress.best = Some((mean, updates));
        self.progress.best_is_full = self.progress.is_full();
        let (notes, moments) = (self.notes(updates), Optimiser::new());
        let snapshot = match self.progress.quantised {
            true => self.learner.stepper().with_codes(policy)?.snapshot(notes, moments)?,
            false => policy.snapshot(notes, moments)?,
        };
        self.best = Some(Best { snapshot });
        Ok(())
    }

    /// Notes on the policy after `updates` updates, for later play.
    pub(super) fn notes(&self, updates: u64) -> serde_json::Value {
        let env = self.options.env(self.env);
        let mean = self.progress.mean_return();
        json!({"env": env, "update": updates, "step": self.progress.steps, "mean_return": mean})
    }

    /// Writes the best policy, if there is a new one.
    pub(super) fn write_best(&mut self) -> Result<()> {
        match (&self.folder, self.best.take()) {
            (Some(folder), Some(best)) => best.snapshot.save(&folder.file(Kind::Best)),
            _ => Ok(()),
        }
    }

    /// Writes the best policy and the state.
    pub(super) fn save(&mut self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let path = folder.file(Kind::Last);
        self.write_best()?;
        self.snapshot()?.save(&path)?;
        self.saved = Some(self.progress.updates);
        if let Some(league) = &self.league {
            league.prune()?;
        }
        (self.events)(Event::Saved { update: self.progress.updates, path });
        Ok(())
    }

    /// The state of the run, from which it resumes.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot> {
        let stepper = self.learner.stepper();
        self.progress.optimiser_updates = stepper.optimiser().updates();
        let (ahead, rollout) = self.ahead.as_ref().map(Played::saved).transpose()?.unzip();
        let state = State {
            env: self.env.into(),
            options: self.options.clone(),
            progress: self.progress.clone(),
            statistics: self.statistics.clone(),
            teacher: self.teacher.clone(),
            league: self.league.as_ref().map(|league| league.state().clone()),
            ahead,
            terms: self.live.as_ref().map(|live| live.names().to_vec()),
        };
        let state = serde_json::to_value(state).map_err(|e| Error::corrupt("progress", e))?;
        let mut numbers = Numbers(stepper.moments()?);
        numbers.nest(PLAYER, self.player.numbers()?);
        if let Some(live) = &self.live {
            numbers.nest(LIVE, live.episodes().numbers());
        }
        numbers.nest(AHEAD, rollout.unwrap_or_default());
        let spec = self.statistics.spec(stepper.policy().spec());
        let policy = Policy::from_weights(&spec, stepper.learned_weights())?;
        Ok(policy.snapshot(self.notes(self.progress.updates), numbers.0)?.of_run(state))
    }
}
