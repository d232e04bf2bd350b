//! The state of a player as arrays by name.

use std::collections::BTreeMap;

use sconce_env::EnvSnapshot;
use sconce_tensor::{Error, Result};

use super::arena::Opponents;
use super::{Frozen, MemberId, Player, Shard};

/// The state of a player as arrays by name, from which it goes on with the same bits. A whole number is stored as its
/// two halves of 16 bits, which f32 represents exactly.
pub type PlayerNumbers = BTreeMap<String, Vec<f32>>;

impl Player {
    /// Copies the state of the player.
    pub fn numbers(&self) -> Result<PlayerNumbers> {
        let mut all = PlayerNumbers::from([("steps".into(), halves(&words(self.steps)))]);
        for (i, shard) in self.shards.iter().enumerate() {
            let own = shard.numbers()?.into_iter();
            let opponents = shard.opponent_numbers()?.into_iter();
            let named = |(name, numbers): (String, _)| (format!("{i}.{name}"), numbers);
            all.extend(own.chain(opponents).map(named));
        }
        Ok(all)
    }

    /// Goes on from the state of a player with the same options.
    ///
    /// # Errors
    /// `NotFound` or `Mismatch` for the state of other environments.
    pub fn restore(&mut self, numbers: &PlayerNumbers) -> Result<()> {
        for (i, shard) in self.shards.iter_mut().enumerate() {
            shard.restore(|name| taken(numbers, &format!("{i}.{name}")))?;
        }
        match wholes(taken(numbers, "steps")?)?[..] {
            [low, high] => self.steps = u64::from(high) << 32 | u64::from(low),
            _ => return Err(Error::corrupt("steps of a player", "not two words")),
        }
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
        numbers: &PlayerNumbers,
        members: &BTreeMap<MemberId, Frozen>,
    ) -> Result<()> {
        for (i, shard) in self.shards.iter_mut().enumerate() {
            let saved = |name: &str| taken(numbers, &format!("{i}.opponents.{name}"));
            let [low, high] = wholes(saved("steps")?)?[..] else {
                return Err(Error::corrupt("steps of the opponents", "not two words"));
            };
            let opponents = Opponents {
                steps: u64::from(high) << 32 | u64::from(low),
                met: wholes(saved("met")?)?,
                previous: wholes(saved("previous")?)?,
                memory: saved("memory")?.to_vec(),
            };
            shard.envs.restore_opponents(&opponents, members)?;
        }
        Ok(())
    }
}

impl Shard {
    /// The state of the opponents, if there are any.
    fn opponent_numbers(&self) -> Result<PlayerNumbers> {
        let Some(own) = self.envs.opponents()? else { return Ok(PlayerNumbers::new()) };
        let all = [
            ("opponents.steps", halves(&words(own.steps))),
            ("opponents.met", halves(&own.met)),
            ("opponents.previous", halves(&own.previous)),
            ("opponents.memory", own.memory),
        ];
        Ok(all.into_iter().map(|(name, numbers)| (name.to_string(), numbers)).collect())
    }

    fn numbers(&self) -> Result<PlayerNumbers> {
        let EnvSnapshot { env: _, seed, states, steps, episodes, ended, returns, stack } =
            self.envs.snapshot();
        let all = [
            ("seed", halves(&words(seed))),
            ("states", states),
            ("steps", halves(&steps)),
            ("episodes", halves(&episodes)),
            ("ended", halves(&ended)),
            ("returns", returns),
            ("stack", stack),
            ("observations", self.observations.clone()),
            // A missing action is no finite number.
            ("previous", halves(&self.previous.iter().map(|v| v.to_bits()).collect::<Vec<_>>())),
            ("memory", self.memory.to_vec()?),
            ("teacher", self.teacher.as_ref().map_or(Ok(vec![]), |own| own.memory.to_vec())?),
        ];
        Ok(all.into_iter().map(|(name, numbers)| (name.to_string(), numbers)).collect())
    }

    fn restore<'n>(&mut self, saved: impl Fn(&str) -> Result<&'n [f32]>) -> Result<()> {
        let [low, high] = wholes(saved("seed")?)?[..] else {
            return Err(Error::corrupt("seed of a player", "not two words"));
        };
        let observations = saved("observations")?;
        let previous: Vec<f32> =
            wholes(saved("previous")?)?.into_iter().map(f32::from_bits).collect();
        for (what, own, other) in [
            ("observations", self.observations.len(), observations.len()),
            ("previous actions", self.previous.len(), previous.len()),
        ] {
            if own != other {
                return Err(Error::mismatch(what, own, other));
            }
        }
        self.envs.restore(&EnvSnapshot {
            env: self.envs.spec().name.into(),
            seed: u64::from(high) << 32 | u64::from(low),
            states: saved("states")?.to_vec(),
            steps: wholes(saved("steps")?)?,
            episodes: wholes(saved("episodes")?)?,
            ended: wholes(saved("ended")?)?,
            returns: saved("returns")?.to_vec(),
            stack: saved("stack")?.to_vec(),
        })?;
        self.memory = self.memory.with_values(saved("memory")?)?;
        if let Some(teacher) = &mut self.teacher {
            teacher.memory = teacher.memory.with_values(saved("teacher")?)?;
        }
        self.observations.copy_from_slice(observations);
        self.previous = previous;
        Ok(())
    }
}

fn taken<'a>(numbers: &'a PlayerNumbers, name: &str) -> Result<&'a [f32]> {
    let own = numbers.get(name).map(Vec::as_slice);
    own.ok_or_else(|| Error::not_found(format!("{name} of a player")))
}

fn words(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// Both halves of each number.
fn halves(numbers: &[u32]) -> Vec<f32> {
    numbers.iter().flat_map(|n| [(n & 0xFFFF) as f32, (n >> 16) as f32]).collect()
}

/// The inverse of [`halves`].
fn wholes(halves: &[f32]) -> Result<Vec<u32>> {
    let (pairs, rest) = halves.as_chunks::<2>();
    let whole = |half: &f32| (0.0..65_536.0).contains(half) && half.fract() == 0.0;
    if !rest.is_empty() || !halves.iter().all(whole) {
        return Err(Error::corrupt("numbers of a player", "not halves of whole numbers"));
    }
    Ok(pairs.iter().map(|[low, high]| *low as u32 | (*high as u32) << 16).collect())
}
