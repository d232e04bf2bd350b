//! A player whose environments, choices and advantages stay on a card. Its random numbers are those of a player on the
//! host, so it plays the same games up to rounding errors.

use std::ops::Range;

use sconce_cuda::kernels::PLACES;
use sconce_env::{
    CardEnvs, CardStep, EnvOptions, EnvSnapshot, EnvSpec, Episode, Numbers, TERMINATED,
};
use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::{CardHeads, Chosen, NONE};
use sconce_ops::rows::copy;
use sconce_ops::{Ids, gather_of};
use sconce_tensor::device::launch::{Launch, overwrite};
use sconce_tensor::device::{Held, Owner};
use sconce_tensor::rng::Rng;
use sconce_tensor::{DType, Device, Error, Result, Tensor, tensor};

use super::shards;
use crate::heads::Choosing;
use crate::returns::Discounts;
use crate::returns::card::{CardSteps, advantages, explained, place_values};
use crate::segment::CardSegment;

/// Threads of the only block of a search.
const THREADS: usize = 256;
/// Episodes of a rollout that are copied to the host: the last ones of all, by environment, then by time. A run reads no
/// more than the last 100.
const EPISODES: usize = 100;
/// Words of an episode: its place, its length, its return.
const WORDS: usize = 3;
/// A step that a limit cut, in the column of ends.
const CUT: usize = 2;

/// Environments on a card, and the columns of a rollout in them.
pub(crate) struct CardPlayer {
    envs: CardEnvs,
    heads: CardHeads,
    /// Index of the value among the logits.
    value: usize,
    /// The memories of a policy that has none.
    memory: State,
    _held: Held,
    columns: Columns,
    /// Environments that each shard of a player on the host would have.
    shards: Vec<Range<usize>>,
    episodes: Vec<Episode>,
    /// Episodes since the last call that are not among [`episodes`](Self::episodes).
    others: u64,
}

/// The columns of a rollout, each `[steps, rows, ..]`.
struct Columns {
    /// With one more step, after the last one.
    observations: Tensor,
    labels: Tensor,
    log_likelihoods: Tensor,
    /// With one more step, after the last one.
    values: Tensor,
    /// Values after the steps that a limit cut.
    after: Tensor,
    finals: Tensor,
    rewards: Tensor,
    ends: Tensor,
    advantages: Tensor,
    targets: Tensor,
    /// Lengths and returns of the episodes that ended, `[environments, steps]`.
    lengths: Tensor,
    returns: Tensor,
    /// Places of the steps that a limit cut, and of episodes that ended; u32.
    cuts: Tensor,
    ended: Tensor,
    /// Numbers of both, u32 `[2]`.
    counts: Tensor,
    /// A logit, a reward and a value that is not finite, or 0; `[3]`.
    faults: Tensor,
    /// Sums of the explained variance, f64 `[4]`.
    sums: Tensor,
}

impl Columns {
    fn new(envs: &CardEnvs, labels: usize, steps: usize, device: &Device) -> Result<Self> {
        let (rows, count, width) = (envs.rows(), envs.count(), envs.spec().observation_size);
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, device);
        let column = |steps: usize| zeros(&[steps, rows], DType::F32);
        Ok(Columns {
            observations: zeros(&[steps + 1, rows, width], DType::F32)?,
            labels: zeros(&[steps, rows, labels], DType::F32)?,
            log_likelihoods: column(steps)?,
            values: column(steps + 1)?,
            after: column(steps)?,
            finals: zeros(&[steps, rows, width], DType::F32)?,
            rewards: column(steps)?,
            ends: zeros(&[steps, rows], DType::U32)?,
            advantages: column(steps)?,
            targets: column(steps)?,
            lengths: zeros(&[count, steps], DType::U32)?,
            returns: zeros(&[count, steps], DType::F32)?,
            cuts: zeros(&[steps * rows], DType::U32)?,
            ended: zeros(&[EPISODES * WORDS], DType::U32)?,
            counts: zeros(&[2], DType::U32)?,
            faults: zeros(&[3], DType::F32)?,
            sums: zeros(&[4], DType::F64)?,
        })
    }

    fn tensors(&self) -> [&Tensor; 13] {
        let Columns { observations, labels, log_likelihoods, values, after, finals, .. } = self;
        let Columns { rewards, ends, advantages, targets, lengths, returns, cuts, .. } = self;
        [
            observations,
            labels,
            log_likelihoods,
            values,
            after,
            finals,
            rewards,
            ends,
            advantages,
            targets,
            lengths,
            returns,
            cuts,
        ]
    }
}

impl CardPlayer {
    /// Environments on the card of a policy, for rollouts of `steps` steps.
    ///
    /// # Errors
    /// `Unavailable` for environments, heads or a policy without a form on a card.
    pub(crate) fn new(options: &EnvOptions, policy: &Policy, steps: usize) -> Result<Self> {
        let (device, spec) = (policy.device(), policy.spec());
        let envs = CardEnvs::new(options, device)?;
        let columns = Columns::new(&envs, spec.heads.num_labels(), steps, device)?;
        let (count, number) = (options.count, shards(options.count));
        let shard = |i: usize| i * count / number..(i + 1) * count / number;
        let player = CardPlayer {
            heads: CardHeads::new(&spec.heads, device)?,
            value: Choosing::of(&spec.heads)?.value,
            memory: policy.zero_state(envs.rows())?,
            _held: Held::of(Owner::Loader, columns.tensors()),
            columns,
            shards: (0..number).map(shard).collect(),
            episodes: vec![],
            others: 0,
            envs,
        };
        player.show(&player.envs.first_observations())?;
        Ok(player)
    }

    pub(crate) fn spec(&self) -> &EnvSpec {
        self.envs.spec()
    }

    pub(crate) fn rows(&self) -> usize {
        self.envs.rows()
    }

    fn steps(&self) -> Result<usize> {
        Ok(self.columns.rewards.dim(0)?)
    }

    /// Writes the present observations.
    fn show(&self, observations: &[f32]) -> Result<()> {
        let present = self.columns.observations.get(self.steps()?)?;
        Ok(overwrite(&present, observations)?)
    }

    /// Plays a rollout and computes its advantages. Every row has made `before` steps already.
    ///
    /// # Errors
    /// `NonFinite` for a logit, a reward or a value that is not finite.
    pub(crate) fn play(
        &mut self,
        policy: &Policy,
        rng: Rng,
        before: u64,
        discounts: Discounts,
    ) -> Result<CardSegment> {
        let (steps, rows) = (self.steps()?, self.rows());
        let seen = &self.columns.observations;
        copy(&seen.get(steps)?, &seen.get(0)?)?;
        overwrite(&self.columns.faults, &[0f32; 3])?;
        for t in 0..steps {
            self.step(policy, rng, before, t)?;
        }
        let last = self.logits(policy, &self.columns.observations.get(steps)?)?;
        let values = last.narrow(1, self.value, 1)?.squeeze(1)?;
        copy(&values, &self.columns.values.get(steps)?)?;
        self.find_ends(policy)?;
        self.estimate(discounts)?;
        let of = &self.columns;
        let (frames, width) = (steps * rows, self.spec().observation_size);
        let values = of.values.narrow(0, 0, steps)?.reshape(frames)?;
        let targets = of.targets.reshape(frames)?;
        Ok(CardSegment {
            rows,
            steps,
            observations: of.observations.narrow(0, 0, steps)?.reshape((frames, width))?,
            labels: of.labels.reshape((frames, self.heads.widths[1]))?,
            log_likelihoods: of.log_likelihoods.reshape(frames)?,
            advantages: of.advantages.reshape(frames)?,
            explained_variance: explained(&targets, &values, &of.sums)?,
            values,
            targets,
            shards: self.rows_of_shards(),
        })
    }

    /// Launches a step: the policy chooses, and the environments answer.
    fn step(&mut self, policy: &Policy, rng: Rng, before: u64, t: usize) -> Result<()> {
        let of = &self.columns;
        let (seen, labels) = (of.observations.get(t)?, of.labels.get(t)?);
        let logits = self.logits(policy, &seen)?;
        let first = (before + t as u64) * self.rows() as u64;
        let to = Chosen {
            labels: &labels,
            log_likelihoods: &of.log_likelihoods.get(t)?,
            values: &of.values.get(t)?,
            fault: &of.faults.narrow(0, 0, 1)?,
        };
        self.heads.choose(&logits, rng, first, &to)?;
        self.envs.step(&CardStep {
            inputs: &labels,
            before: &seen,
            after: &of.observations.get(t + 1)?,
            finals: &of.finals.get(t)?,
            rewards: &of.rewards.get(t)?,
            ends: &of.ends.get(t)?,
            lengths: &of.lengths,
            returns: &of.returns,
            at: t,
        })
    }

    /// Logits `[n, num_logits]` of observations `[n, observation_size]`.
    fn logits(&self, policy: &Policy, seen: &Tensor) -> Result<Tensor> {
        let context = Context::default().forgetting();
        let placed = policy.placed(seen)?;
        Ok(policy.forward_placed(&placed, None, &self.memory, &context)?.0.contiguous()?)
    }

    /// Finds the episodes that ended, and computes the values after those that a limit cut.
    fn find_ends(&mut self, policy: &Policy) -> Result<()> {
        let of = &self.columns;
        let count = |i: usize| of.counts.narrow(0, i, 1);
        let cuts = of.cuts.elem_count();
        launch_places(&of.ends, None, &of.cuts, &count(0)?, CUT, cuts)?;
        launch_places(&of.lengths, Some(&of.returns), &of.ended, &count(1)?, 0, EPISODES)?;
        let counts: Vec<u32> = of.counts.to_vec1()?;
        let [cut, ended] = [0, 1].map(|i| counts.get(i).map_or(0, |count| *count as usize));
        if cut > 0 {
            let places = of.cuts.narrow(0, 0, cut)?;
            let finals = of.finals.flatten(0, 1)?;
            let logits = self.logits(policy, &gather_of(&finals, &Ids::There(places.clone()))?)?;
            place_values(&logits, self.value, &places, &of.after)?;
        }
        let (steps, seats) = (self.steps()?, self.spec().seats);
        let known = ended.min(EPISODES);
        let words: Vec<u32> = of.ended.narrow(0, 0, known * WORDS)?.to_vec1()?;
        for own in words.as_chunks::<WORDS>().0 {
            let [place, length, ret] = *own;
            let (env, ret) = (place / steps as u32, f32::from_bits(ret));
            let (length, terminated) = (length & !TERMINATED, length & TERMINATED != 0);
            self.episodes.extend((0..seats as u32).map(|seat| {
                let ret = if seat == 0 { ret } else { -ret };
                Episode { env, seat, ret, length, terminated }
            }));
        }
        self.others += ((ended - known) * seats) as u64;
        Ok(())
    }

    /// Computes the advantages, and checks the numbers that they are made of.
    fn estimate(&self, discounts: Discounts) -> Result<()> {
        let of = &self.columns;
        let steps = CardSteps {
            rewards: &of.rewards,
            values: &of.values,
            after: &of.after,
            ends: &of.ends,
            advantages: &of.advantages,
            targets: &of.targets,
            faults: &of.faults.narrow(0, 1, 2)?,
        };
        advantages(&steps, discounts)?;
        let faults: Vec<f32> = of.faults.to_vec1()?;
        for (what, value) in ["logits", "reward", "value"].into_iter().zip(faults) {
            if !value.is_finite() {
                return Err(Error::NonFinite { what: what.into(), value: value.into() });
            }
        }
        Ok(())
    }

    fn rows_of_shards(&self) -> Vec<Range<usize>> {
        let seats = self.spec().seats;
        self.shards.iter().map(|envs| envs.start * seats..envs.end * seats).collect()
    }

    /// Moves the last episodes that ended since the last call to `take`. Returns the number of those that ended before.
    pub(crate) fn episodes(&mut self, take: &mut Vec<Episode>) -> u64 {
        take.append(&mut self.episodes);
        std::mem::take(&mut self.others)
    }

    pub(crate) fn take_terms(&mut self) -> Result<Vec<f64>> {
        self.envs.take_terms()
    }

    /// The state of each shard, as a player on the host has it.
    pub(crate) fn numbers(&self) -> Result<Vec<Numbers>> {
        let present = tensor::to_vec(&self.columns.observations.get(self.steps()?)?)?;
        let snapshot = self.envs.snapshot(&present)?;
        let (width, labels) = (self.spec().observation_size, self.heads.widths[1]);
        let shards = self.shards.iter().zip(self.rows_of_shards()).map(|(envs, rows)| {
            let mut own: Numbers = snapshot.part(envs.clone()).into();
            own.put("observations", present[rows.start * width..rows.end * width].to_vec());
            // A policy without a prior does not read previous actions.
            own.put_words("previous", &vec![NONE.to_bits(); rows.len() * labels]);
            own.put("memory", vec![]);
            own
        });
        Ok(shards.collect())
    }

    /// Goes on from the state of each shard.
    ///
    /// # Errors
    /// Those of [`CardEnvs::restore`].
    pub(crate) fn restore(&mut self, shards: &[Numbers]) -> Result<()> {
        let name = self.spec().name.to_string();
        let parts = shards.iter().map(|own| EnvSnapshot::of(&name, own));
        self.envs.restore(&EnvSnapshot::joined(parts.collect::<Result<_>>()?))?;
        self.show(&self.envs.first_observations())
    }

    /// Number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }
}

/// Launches the search for words that equal `wanted` (0: that are not 0), see places.cu.
fn launch_places(
    words: &Tensor,
    beside: Option<&Tensor>,
    out: &Tensor,
    count: &Tensor,
    wanted: usize,
    most: usize,
) -> Result<()> {
    let launch = Launch::of(PLACES, "wanted_places", words)?.tensor(words)?.option(beside)?;
    let launch = launch.tensor(out)?.tensor(count)?.long(words.elem_count());
    let launch = launch.int(wanted).long(most);
    // SAFETY: one block, and room for `most` places, as places.cu requires.
    Ok(unsafe { launch.run([1; 3], [THREADS, 1, 1], 0) }?)
}
