//! A frozen player at some rows of environments.

use std::sync::Arc;

use sconce_env::{EnvSpec, Player as Script};
use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::NONE;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use super::frames::embedded;

/// A player that does not learn.
#[derive(Clone)]
pub enum Frozen {
    /// A scripted player of the environment.
    Scripted(Script),
    /// A policy.
    Learned(Arc<Policy>),
}

/// Observations and random numbers of a step, which all players share.
pub(crate) struct Seen<'a> {
    /// `[rows, observation_size]`.
    pub(crate) observations: &'a [f32],
    /// Action masks `[rows, mask_size]`; empty where the environments have none.
    pub(crate) masks: &'a [u8],
    /// Numbers in an observation, all stacked ones together.
    pub(crate) width: usize,
    /// Numbers in a single observation, which scripted players read.
    pub(crate) single: usize,
    /// Numbers in an input.
    pub(crate) labels: usize,
    /// Entries in a mask.
    pub(crate) mask_size: usize,
    pub(crate) sampling: &'a Sampling,
    /// Random numbers of row 0 in this step; those of the next rows follow.
    pub(crate) rng: Rng,
    /// Number of `rng`'s step.
    pub(crate) step: u64,
}

impl<'a> Seen<'a> {
    /// The observations, and the masks, of environments that stack `frame_stack` observations.
    pub(crate) fn of(
        spec: &EnvSpec,
        frame_stack: usize,
        (observations, masks): (&'a [f32], &'a [u8]),
        sampling: &'a Sampling,
        (rng, step): (Rng, u64),
    ) -> Self {
        let width = spec.observation_size;
        let (single, labels) = (width / frame_stack.max(1), spec.labels());
        let mask_size = spec.mask_size;
        Seen { observations, masks, width, single, labels, mask_size, sampling, rng, step }
    }

    fn row(&self, row: u32) -> &'a [f32] {
        &self.observations[row as usize * self.width..][..self.width]
    }

    fn mask(&self, row: u32) -> &'a [u8] {
        &self.masks[row as usize * self.mask_size..][..self.mask_size]
    }

    fn rng(&self, row: u32) -> Rng {
        self.rng.at(self.step + u64::from(row))
    }
}

/// A frozen player, the rows that it plays, and its memory there.
pub(crate) struct Seated {
    player: Frozen,
    /// Ascending.
    rows: Vec<u32>,
    /// Previous actions, `[rows, num_labels]`; empty for a script.
    previous: Vec<f32>,
    memory: State,
}

impl Seated {
    /// The player at no row.
    pub(crate) fn new(player: &Frozen) -> Self {
        Seated { player: player.clone(), rows: vec![], previous: vec![], memory: State(vec![]) }
    }

    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Writes the player's inputs into `inputs [rows of all players, labels]`.
    pub(crate) fn act(&mut self, seen: &Seen<'_>, inputs: &mut [f32]) -> Result<()> {
        let policy = match &self.player {
            Frozen::Scripted(script) => {
                for &row in &self.rows {
                    let (newest, words) = (seen.width - seen.single, seen.rng(row).block(0));
                    let input = &mut inputs[row as usize * seen.labels..][..seen.labels];
                    script(&seen.row(row)[newest..], words, input);
                }
                return Ok(());
            }
            Frozen::Learned(policy) => policy,
        };
        let observations: Vec<f32> =
            self.rows.iter().flat_map(|row| seen.row(*row)).copied().collect();
        let rngs: Vec<Rng> = self.rows.iter().map(|row| seen.rng(*row)).collect();
        let masks: Vec<u8> = self.rows.iter().flat_map(|row| seen.mask(*row)).copied().collect();
        let mask = (!masks.is_empty()).then_some(&masks[..]);
        let draw = Draw { sampling: seen.sampling, rngs: &rngs, given: None, mask };
        let frames = embedded(policy, &observations, &self.previous)?;
        let (decision, memory) = policy.act(&frames, &self.memory, draw, &Context::default())?;
        for (row, choice) in self.rows.iter().zip(decision.choices.chunks_exact(seen.labels)) {
            inputs[*row as usize * seen.labels..][..seen.labels].copy_from_slice(choice);
        }
        (self.memory, self.previous) = (memory, decision.choices);
        Ok(())
    }

    /// Takes the player from the rows that `leaves` names, and seats it at `joins` without a memory. A row may do both.
    pub(crate) fn reseat(&mut self, leaves: impl Fn(u32) -> bool, joins: &[u32]) -> Result<()> {
        let kept: Vec<u32> =
            (0..self.rows.len() as u32).filter(|i| !leaves(self.rows[*i as usize])).collect();
        if joins.is_empty() && kept.len() == self.rows.len() {
            return Ok(());
        }
        let stays = kept.iter().map(|i| (self.rows[*i as usize], *i));
        let old = self.rows.len() as u32;
        let joined = joins.iter().zip(old..).map(|(row, i)| (*row, i));
        let mut order: Vec<(u32, u32)> = stays.chain(joined).collect();
        order.sort_unstable();
        let picks: Vec<u32> = order.iter().map(|(_, i)| *i).collect();
        if let Frozen::Learned(policy) = &self.player {
            let labels = policy.spec().heads.num_labels();
            self.previous.resize((old as usize + joins.len()) * labels, NONE);
            let previous =
                picks.iter().flat_map(|i| &self.previous[*i as usize * labels..][..labels]);
            self.previous = previous.copied().collect();
            self.memory = with_zeros(policy, &self.memory, old, joins.len())?.picked(&picks)?;
        }
        self.rows = order.into_iter().map(|(row, _)| row).collect();
        Ok(())
    }

    /// Previous actions as bits, because a missing one is no finite number.
    pub(crate) fn previous(&self) -> impl Iterator<Item = u32> {
        self.previous.iter().map(|v| v.to_bits())
    }

    pub(crate) fn memory(&self) -> Result<Vec<f32>> {
        self.memory.to_vec()
    }

    /// Takes previous actions and memories off the front of `previous` and `memory`.
    ///
    /// # Errors
    /// `Mismatch` for too few numbers.
    pub(crate) fn restore(&mut self, previous: &mut &[u32], memory: &mut &[f32]) -> Result<()> {
        let own = taken(previous, self.previous.len())?;
        self.previous = own.iter().map(|bits| f32::from_bits(*bits)).collect();
        let numbers = self.memory.0.iter().map(sconce_tensor::Tensor::elem_count).sum();
        self.memory = self.memory.with_values(taken(memory, numbers)?)?;
        Ok(())
    }
}

/// Memories of `old` rows followed by `new` empty ones.
fn with_zeros(policy: &Policy, memory: &State, old: u32, new: usize) -> Result<State> {
    match (old, new) {
        (0, _) => policy.zero_state(new),
        (_, 0) => Ok(memory.clone()),
        _ => State::joined(&[memory.clone(), policy.zero_state(new)?]),
    }
}

fn taken<'a, T>(rest: &mut &'a [T], n: usize) -> Result<&'a [T]> {
    let Some((head, tail)) = rest.split_at_checked(n) else {
        return Err(Error::mismatch("numbers of the opponents", n, rest.len()));
    };
    *rest = tail;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use sconce_nn::Spec;
    use serde_json::json;

    use super::*;

    fn policy() -> Frozen {
        let spec: Spec = serde_json::from_value(json!({
            "embedding": {"vector": 2},
            "backbone": {"gru": {"hidden_size": 4, "num_layers": 1, "layer_norm": false,
                "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}},
            "heads": {
                "kind": "independent", "stream_size": 8, "prior": false,
                "parts": [{"name": "action", "kind": {"categorical": 4}, "hidden_size": 0}],
            },
        }))
        .unwrap();
        Frozen::Learned(Arc::new(Policy::init(&spec, 3).unwrap()))
    }

    fn act(own: &mut Seated, step: u64) -> Vec<f32> {
        let observations: Vec<f32> = (0..8).map(|i| (i as f32 + step as f32).sin()).collect();
        let sampling = Sampling::default();
        let rng = Rng::new(1, "test", 0);
        let seen = Seen {
            observations: &observations,
            masks: &[],
            width: 2,
            single: 2,
            labels: 1,
            mask_size: 0,
            sampling: &sampling,
            rng,
            step: step << 32,
        };
        let mut inputs = vec![-1.0; 4];
        own.act(&seen, &mut inputs).unwrap();
        inputs
    }

    #[test]
    fn a_memory_stays_with_its_row_and_begins_empty_where_a_player_joins() {
        let mut all = Seated::new(&policy());
        all.reseat(|_| false, &[0, 2, 3]).unwrap();
        let mut alone = Seated::new(&policy());
        alone.reseat(|_| false, &[3]).unwrap();
        (0..5).for_each(|step| assert_eq!(act(&mut all, step)[3], act(&mut alone, step)[3]));
        // Row 2 leaves, row 1 joins, and row 0 begins again.
        all.reseat(|row| row == 2 || row == 0, &[0, 1]).unwrap();
        assert_eq!(all.rows(), [0, 1, 3]);
        let mut fresh = Seated::new(&policy());
        fresh.reseat(|_| false, &[0, 1]).unwrap();
        let memory = |own: &Seated| own.memory().unwrap();
        assert_eq!(memory(&all)[..8], [0.0; 8]);
        assert_eq!(memory(&all)[8..], memory(&alone)[..]);
        for step in 5..9 {
            let (all, fresh, alone) =
                (act(&mut all, step), act(&mut fresh, step), act(&mut alone, step));
            assert_eq!((&all[..2], all[2], all[3]), (&fresh[..2], -1.0, alone[3]));
        }
    }

    #[test]
    fn a_restored_player_has_the_memories_of_the_saved_one() {
        let mut own = Seated::new(&policy());
        own.reseat(|_| false, &[1, 2]).unwrap();
        (0..3).for_each(|step| drop(act(&mut own, step)));
        let (previous, memory): (Vec<u32>, _) = (own.previous().collect(), own.memory().unwrap());
        let mut other = Seated::new(&policy());
        other.reseat(|_| false, &[1, 2]).unwrap();
        other.restore(&mut &previous[..], &mut &memory[..]).unwrap();
        assert_eq!(act(&mut own, 3), act(&mut other, 3));
        let short = other.restore(&mut &previous[..1], &mut &memory[..]).unwrap_err();
        assert!(matches!(short, Error::Mismatch { .. }), "{short}");
    }
}
