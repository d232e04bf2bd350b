//! A league: the opponents of a run in an environment of two seats, and matches between players.
//!
//! The opponents are scripted players, policies from files, and past selves: policies that the run had earlier. An
//! opponent is chosen uniformly or by priority, as in the prioritised fictitious self-play of AlphaStar (Vinyals et al.
//! 2019).

mod choice;
pub mod elo;
pub mod matches;
mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sconce_env::EnvSpec;
use sconce_nn::Policy;
use sconce_nn::checkpoint::Optimiser;
use sconce_tensor::digest::of_file;
use sconce_tensor::rng::{Rng, unit};
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use choice::Choice;
pub use standing::{Faced, Standing};

use crate::options::LeagueOptions;
use crate::rollout::{Frozen, Match, MemberId};
use standing::START;

/// Begin of the names of past selves' files.
const PREFIX: &str = "self-";

/// The opponents of a run, and how well the learner does against each.
pub struct League {
    options: LeagueOptions,
    /// Folder of the past selves; `None` keeps them in memory alone.
    folder: Option<PathBuf>,
    players: BTreeMap<MemberId, Frozen>,
    state: LeagueState,
    choices: Rng,
}

/// The part of a saved state that describes a league.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeagueState {
    /// The members, also those that only finish their episodes.
    pub members: BTreeMap<MemberId, Standing>,
    /// Elo of the learner.
    pub elo: f64,
    next: MemberId,
}

impl League {
    /// The league of a run in `env`, with the given opponents alone, or with the members of a saved state.
    ///
    /// # Errors
    /// `Mismatch` for an environment of one seat and for a policy that does not fit it, `NotFound` for an unknown
    /// player or a missing file.
    pub fn new(
        options: &LeagueOptions,
        env: &EnvSpec,
        folder: Option<&Path>,
        seed: u64,
        saved: Option<LeagueState>,
    ) -> Result<Self> {
        if env.seats != 2 {
            return Err(Error::mismatch("opponents", "an environment with two seats", &env.name));
        }
        let mut league = League {
            options: options.clone(),
            folder: folder.map(|folder| folder.join("league")),
            players: BTreeMap::new(),
            state: LeagueState { members: BTreeMap::new(), elo: START, next: 0 },
            choices: Rng::new(seed, "league.choice", 0),
        };
        for name in &options.opponents {
            let (player, digest) = given(name, env)?;
            league.add(Standing { digest, ..Standing::new(name) }, player);
        }
        match saved {
            Some(saved) => league.restore(env, saved)?,
            // An earlier run may have ended before its first save.
            None => league.prune()?,
        }
        Ok(league)
    }

    fn add(&mut self, standing: Standing, player: Frozen) {
        let id = self.state.next;
        self.players.insert(id, player);
        self.state.members.insert(id, standing);
        self.state.next += 1;
    }

    /// Takes over a saved state, and reads its past selves.
    fn restore(&mut self, env: &EnvSpec, saved: LeagueState) -> Result<()> {
        for (id, own) in &self.state.members {
            if saved.members.get(id).is_none_or(|its| its.digest != own.digest) {
                return Err(changed(format!("opponent {}", own.name)));
            }
        }
        for (id, own) in &saved.members {
            if *id >= saved.next {
                let reason = format!("the next member is {}, but there is {id}", saved.next);
                return Err(Error::corrupt("the league of the state", reason));
            }
            if let Some(update) = own.update {
                let player = self.past_self(update, own, env)?;
                self.players.insert(*id, player);
            } else if !self.players.contains_key(id) {
                let reason = format!("no player for member {id}, {}", own.name);
                return Err(Error::corrupt("the league of the state", reason));
            }
        }
        self.state = saved;
        Ok(())
    }

    /// Reads a past self of a saved state.
    fn past_self(&self, update: u64, own: &Standing, env: &EnvSpec) -> Result<Frozen> {
        let path = self.file(update).ok_or_else(|| Error::not_found(named(update)))?;
        if own.digest.as_ref() != Some(&of_file(&path)?) {
            return Err(changed(format!("past self {}", path.display())));
        }
        let policy = Policy::load(&path)?;
        env.check_policy(policy.spec())?;
        Ok(Frozen::Learned(Arc::new(policy)))
    }

    /// Whether the policy after `update` updates becomes a past self, and is none yet.
    pub fn is_due(&self, update: u64) -> bool {
        self.options.past_selves > 0
            && update.is_multiple_of(self.options.snapshot_every)
            && self.state.members.values().all(|own| own.update != Some(update))
    }

    /// Makes the policy a past self: writes its file if the league has a folder, and lets another one go if there are
    /// too many.
    ///
    /// # Errors
    /// `Io`.
    pub fn keep(&mut self, policy: &Policy, update: u64, notes: Value) -> Result<()> {
        let (policy, digest) = match (&self.folder, self.file(update)) {
            (Some(folder), Some(path)) => {
                std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
                policy.save(&path, notes)?;
                (Policy::load(&path)?, Some(of_file(&path)?))
            }
            _ => {
                let (manifest, weights) =
                    policy.snapshot(notes, Optimiser::new())?.into_weights()?;
                (Policy::from_checkpoint(manifest, weights)?, None)
            }
        };
        let elo = self.state.elo;
        let new = Standing::new(&named(update));
        let standing = Standing { update: Some(update), digest, elo, ..new };
        self.add(standing, Frozen::Learned(Arc::new(policy)));
        self.thin();
        Ok(())
    }

    /// Lets a past self go if there are too many, so that those that stay are spread over the whole run.
    fn thin(&mut self) {
        let members = self.state.members.iter();
        let past: Vec<(MemberId, u64)> = members
            .filter(|(_, own)| !own.retired)
            .filter_map(|(id, own)| Some((*id, own.update?)))
            .collect();
        let updates: Vec<u64> = past.iter().map(|(_, update)| *update).collect();
        let gone = surplus(&updates, self.options.past_selves).and_then(|at| past.get(at));
        if let Some(own) = gone.and_then(|(id, _)| self.state.members.get_mut(id)) {
            own.retired = true;
        }
    }

    /// Probabilities of the members as the opponent of an episode; they add up to 1.
    pub fn probabilities(&self) -> Vec<(MemberId, f64)> {
        let present = || self.state.members.iter().filter(|(_, own)| !own.retired);
        let rates: Vec<f64> = present().map(|(_, own)| own.win_rate()).collect();
        let chances = self.options.opponent_choice.probabilities(&rates, self.options.priority);
        present().map(|(id, _)| *id).zip(chances).collect()
    }

    /// The opponents of `shards` shards in a rollout, drawn by seed, number of the rollout and shard.
    pub fn draw(&self, rollout: u64, shards: usize) -> Vec<(MemberId, &Frozen)> {
        let chances = self.probabilities();
        let words = |shard: u64| self.choices.at(rollout).block(shard)[0];
        let drawn = (0..shards as u64).map(|shard| choice::pick(&chances, unit(words(shard))));
        drawn.flatten().filter_map(|id| Some((id, self.players.get(&id)?))).collect()
    }

    /// Counts the results of matches, in their order.
    pub fn count(&mut self, matches: &[Match]) {
        let LeagueState { members, elo, .. } = &mut self.state;
        for played in matches {
            if let Some(member) = members.get_mut(&played.member) {
                member.count(played.score, elo);
            }
        }
    }

    /// Forgets members that were let go, once they are not among those that play.
    pub fn forget(&mut self, playing: &BTreeSet<MemberId>) {
        self.state.members.retain(|id, own| !own.retired || playing.contains(id));
        let members = &self.state.members;
        self.players.retain(|id, _| members.contains_key(id));
    }

    /// The players by member.
    pub fn players(&self) -> &BTreeMap<MemberId, Frozen> {
        &self.players
    }

    /// The state for a save.
    pub fn state(&self) -> &LeagueState {
        &self.state
    }

    /// The learner's record against each member that has not been let go.
    pub fn faced(&self) -> Vec<Faced> {
        let chances: BTreeMap<MemberId, f64> = self.probabilities().into_iter().collect();
        let members = self.state.members.iter();
        members.filter_map(|(id, own)| Some(own.faced(*chances.get(id)?))).collect()
    }

    /// Removes the files of past selves that no saved state needs any longer.
    ///
    /// # Errors
    /// `Io`.
    pub fn prune(&self) -> Result<()> {
        let past = self.state.members.values().filter_map(|own| own.update);
        let needed: BTreeSet<PathBuf> = past.filter_map(|update| self.file(update)).collect();
        let entries = self.folder.as_ref().map(std::fs::read_dir);
        let Some(Ok(entries)) = entries else { return Ok(()) };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(PREFIX) && !needed.contains(&path) {
                std::fs::remove_file(&path).map_err(Error::io(&path))?;
            }
        }
        Ok(())
    }

    fn file(&self, update: u64) -> Option<PathBuf> {
        let name = format!("{PREFIX}{update:08}.safetensors");
        self.folder.as_ref().map(|folder| folder.join(name))
    }
}

/// Index of the past self that goes if there are more than `most`, by their updates in ascending order.
///
/// The first and the last stay if two may. The last but one goes until the gap before it is an even share of the run;
/// then it stays, and of the earlier ones the one goes whose removal adds least to the sum of squared gaps. A choice by
/// the squares alone would always take the last but one, because the gap behind it is the smallest of all: the others
/// would stay at the start of the run.
fn surplus(updates: &[u64], most: usize) -> Option<usize> {
    let n = updates.len();
    if n <= most {
        return None;
    }
    if most < 2 {
        return Some(0);
    }
    let gap = |i: usize| updates[i + 1].saturating_sub(updates[i]);
    let run = updates[n - 1].saturating_sub(updates[0]);
    if gap(n - 3).saturating_mul(most as u64 - 1) < run {
        return Some(n - 2);
    }
    // A sum of two gaps has a square that exceeds the sum of both squares by twice their product.
    (1..n - 2).min_by_key(|i| gap(i - 1).saturating_mul(gap(*i)))
}

fn changed(what: String) -> Error {
    Error::mismatch(what, "the file of the run", "another file")
}

fn named(update: u64) -> String {
    format!("self {update}")
}

/// A given opponent, and the digest of its file.
fn given(name: &str, env: &EnvSpec) -> Result<(Frozen, Option<String>)> {
    if !name.contains(['.', '/', '\\']) {
        return Ok((Frozen::Scripted(sconce_env::player(&env.name, name)?), None));
    }
    let path = Path::new(name);
    let policy = Policy::load(path)?;
    env.check_policy(policy.spec())?;
    Ok((Frozen::Learned(Arc::new(policy)), Some(of_file(path)?)))
}

#[cfg(test)]
mod tests;
