//! The state of a player as arrays by name.

use std::collections::BTreeMap;

use sconce_env::Numbers;
use sconce_nn::Policy;
use sconce_tensor::{Error, Result};

use super::arena::Opponents;
use super::{Frozen, MemberId, Player, Shard};
use crate::segment::numbered;

impl Player {
    /// Copies the state of the player.
    ///
    /// # Errors
    /// Those of the environments.
    pub fn numbers(&self) -> Result<Numbers> {
        let mut all = Numbers::default();
        all.put_word("steps", self.steps);
        if let Some(card) = &self.card {
            let shards = card.numbers()?.into_iter().enumerate();
            shards.for_each(|(i, own)| all.nest(&format!("{i}."), own));
        }
        for (i, shard) in self.shards.iter().enumerate() {
            all.nest(&format!("{i}."), shard.numbers()?);
        }
        Ok(all)
    }

    /// Goes on from the state of a player with the same options.
    ///
    /// # Errors
    /// `NotFound`, `Mismatch` or `Corrupt` for the state of other environments.
    pub fn restore(&mut self, numbers: &Numbers, policy: &Policy) -> Result<()> {
        for (i, shard) in self.shards.iter_mut().enumerate() {
            shard.restore(&numbers.nested(&format!("{i}.")), policy)?;
        }
        if let Some(card) = &mut self.card {
            let shards = (0..card.shards()).map(|i| numbers.nested(&format!("{i}.")));
            card.restore(&shards.collect::<Vec<_>>())?;
        }
        self.steps = numbers.word("steps")?;
        Ok(())
    }
}

impl Player {
    /// Seats the opponents of the state again.
    ///
    /// # Errors
    /// `NotFound` for an opponent that is not among `members`, and those of [`restore`](Self::restore).
    pub fn restore_opponents(
        &mut self,
        numbers: &Numbers,
        members: &BTreeMap<MemberId, Frozen>,
    ) -> Result<()> {
        for (i, shard) in self.shards.iter_mut().enumerate() {
            let saved = numbers.nested(&format!("{i}.opponents."));
            let opponents = Opponents {
                steps: saved.word("steps")?,
                met: saved.words("met")?,
                previous: saved.words("previous")?,
                memory: saved.get("memory")?.to_vec(),
            };
            shard.envs.restore_opponents(&opponents, members)?;
        }
        Ok(())
    }
}

impl Shard {
    fn numbers(&self) -> Result<Numbers> {
        let mut all = self.envs.numbers()?;
        all.put("observations", self.observations.clone());
        // A missing action is no finite number.
        let previous: Vec<u32> = self.previous.iter().map(|number| number.to_bits()).collect();
        all.put_words("previous", &previous);
        all.put("memory", self.memory.to_vec()?);
        for (i, teacher) in self.teachers.iter().enumerate() {
            all.put(&numbered("teacher", i), teacher.memory.to_vec()?);
        }
        if let Some(own) = self.envs.opponents()? {
            all.put_word("opponents.steps", own.steps);
            all.put_words("opponents.met", &own.met);
            all.put_words("opponents.previous", &own.previous);
            all.put("opponents.memory", own.memory);
        }
        Ok(all)
    }

    fn restore(&mut self, saved: &Numbers, policy: &Policy) -> Result<()> {
        let observations = saved.get("observations")?;
        let previous = saved.words("previous")?;
        for (what, own, other) in [
            ("observations", self.observations.len(), observations.len()),
            ("previous actions", self.previous.len(), previous.len()),
        ] {
            if own != other {
                return Err(Error::mismatch(what, own, other));
            }
        }
        self.memory = self.memory.with_values(saved.get("memory")?)?;
        for (i, teacher) in self.teachers.iter_mut().enumerate() {
            let own = saved.get(&numbered("teacher", i))?;
            teacher.memory = teacher.memory.with_values(own)?;
        }
        self.observations.copy_from_slice(observations);
        self.previous = previous.into_iter().map(f32::from_bits).collect();
        self.outcome.ended = self.envs.restore(saved)?;
        if !self.outcome.ended.is_empty() {
            self.envs.observe(&mut self.observations);
        }
        self.begin_episodes(policy)
    }
}
