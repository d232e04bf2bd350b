//! Populations: many policies of one small Spec, whose numbers stay in native memory.

mod card;
mod episodes;
mod image;
mod kernel;
mod network;
mod stored;

use std::sync::OnceLock;

use card::Resident;
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::simd::LANES;
use sconce_tensor::{Device, Error, Result, Tensor, device, memory, pool, tensor};
use serde::Deserialize;

pub use episodes::{Episodes, Evaluated, Measure};
pub use image::{CardImage, CardWeights};
pub use network::Network;
pub use stored::Storage;
use stored::{SHARD, Stored};

use crate::archive::Archive;
use crate::noise::Normals;
use crate::variation::{Pairs, Variation};

/// Individuals of a block from which on it is faster to read all of it.
const TOGETHER: usize = 3;
/// Numbers of an individual up to which this is so: each thread has memory for a block.
const MOST_TOGETHER: usize = 1 << 16;
/// Most individuals.
const MOST: usize = 1 << 24;
/// Largest magnitude of a number of an individual. A larger one would be infinite in 16 bits.
const LARGEST: f32 = 1e30;

/// Options of a [`Population`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct PopulationOptions {
    /// Number of individuals.
    pub count: usize,
    /// Type of stored weights.
    pub storage: Storage,
    /// Standard deviation of the numbers of the first individuals.
    pub sigma: f32,
    /// Seed of these numbers.
    pub seed: u64,
}

/// Policies of one Spec, each with numbers of its own. One vector lane is one individual.
///
/// A solution, the numbers of an individual as f32, is in the order of [`Network`].
#[derive(Debug, Clone)]
pub struct Population {
    network: Network,
    count: usize,
    stored: Stored,
    /// The card that computes, if it is not the CPU.
    card: Option<Device>,
    /// The copy on that card. A change of the individuals drops it, and the next computation makes it again.
    resident: OnceLock<Resident>,
}

impl Population {
    /// Individuals with normal random numbers around `mean [size]`, or around 0.
    ///
    /// # Errors
    /// Those of [`Network::of`]; `OutOfRange` for options; `Mismatch` and `NonFinite` for the mean; `OutOfMemory`.
    pub fn new(spec: &Spec, options: &PopulationOptions, mean: Option<&[f32]>) -> Result<Self> {
        let &PopulationOptions { count, storage, sigma, seed } = options;
        let network = Network::of(spec)?;
        if !(1..=MOST).contains(&count) {
            return Err(Error::out_of_range("count", count as f64, 1.0, MOST as f64));
        }
        if !(0.0..=LARGEST).contains(&sigma) {
            return Err(Error::out_of_range("sigma", sigma.into(), 0.0, LARGEST.into()));
        }
        if let Some(mean) = mean {
            check(&network, mean, 1)?;
        }
        let stored = Stored::new(storage, &network, count.div_ceil(LANES))?;
        let (card, resident) = (None, OnceLock::new());
        let mut population = Population { network, count, stored, card, resident };
        population.fill(sigma, mean.unwrap_or_default(), (seed, 0));
        Ok(population)
    }

    /// Replaces all individuals by normal random numbers around 0, which depend on the seed and the generation.
    ///
    /// # Errors
    /// `OutOfRange` for sigma.
    pub fn renew(&mut self, sigma: f32, stream: (u64, u64)) -> Result<()> {
        if !(0.0..=LARGEST).contains(&sigma) {
            return Err(Error::out_of_range("sigma", sigma.into(), 0.0, LARGEST.into()));
        }
        self.fill(sigma, &[], stream);
        Ok(())
    }

    /// The same individuals, whose forward passes and episodes are computed by a device. A card gets a copy of all numbers
    /// after each change; variation stays on the CPU.
    pub fn on(mut self, device: &Device) -> Self {
        self.forget();
        self.card = (!device.is_cpu()).then(|| device.clone());
        self
    }

    /// The device that computes.
    pub fn device(&self) -> Device {
        self.card.clone().unwrap_or(Device::Cpu)
    }

    /// Drops the copy on the card, before a change of the individuals.
    fn forget(&mut self) {
        if let Some(card) = &self.card {
            device::attach(card);
        }
        self.resident = OnceLock::new();
    }

    /// The copy on the card, if a card computes. The card is then the current one of this thread.
    fn resident(&self) -> Result<Option<&Resident>> {
        let Some(card) = &self.card else { return Ok(None) };
        device::attach(card);
        if self.resident.get().is_none() {
            // Another thread may have made the same copy meanwhile.
            drop(self.resident.set(Resident::of(self, card)?));
        }
        Ok(self.resident.get())
    }

    fn fill(&mut self, sigma: f32, mean: &[f32], (seed, generation): (u64, u64)) {
        let size = self.network.size();
        let rng = Rng::new(seed, "evolve.population", generation);
        self.forget();
        self.stored.fill(&self.network, self.count, |first, rows| {
            Normals::new(&rng, (first / LANES) as u64).fill(rows);
            for row in rows.chunks_exact_mut(size) {
                row.iter_mut().for_each(|v| *v *= sigma);
                row.iter_mut().zip(mean).for_each(|(v, mean)| *v += mean);
            }
        });
    }

    /// The layers.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Number of individuals.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Type of stored weights.
    pub fn storage(&self) -> Storage {
        self.stored.storage()
    }

    /// Bytes of all individuals.
    pub fn bytes(&self) -> usize {
        self.storage().bytes(&self.network) * self.count.div_ceil(LANES) * LANES
    }

    /// The solutions of some individuals, `[at, size]`.
    ///
    /// # Errors
    /// `OutOfRange` for an unknown individual.
    pub fn read(&self, at: &[usize]) -> Result<Vec<f32>> {
        let size = self.network.size();
        if let Some(other) = at.iter().find(|at| **at >= self.count) {
            let last = self.count as f64 - 1.0;
            return Err(Error::out_of_range("individual", *other as f64, 0.0, last));
        }
        memory::room("solutions", at.len().saturating_mul(size).saturating_mul(4) as u64)?;
        let mut solutions = memory::caught(|| Ok(memory::zeros(at.len() * size)))?;
        pool::for_each_rows(&mut solutions, size, SHARD, |first, rows| {
            self.read_some(&at[first..][..rows.len() / size], rows);
        });
        Ok(solutions)
    }

    /// Writes the solutions of some individuals to rows. Neighbours of one block are read together.
    fn read_some(&self, at: &[usize], mut rows: &mut [f32]) {
        let size = self.network.size();
        let mut block = vec![];
        for part in at.chunk_by(|a, b| a / LANES == b / LANES) {
            let (own, rest) = std::mem::take(&mut rows).split_at_mut(part.len() * size);
            rows = rest;
            let own = own.chunks_exact_mut(size).zip(part);
            if part.len() < TOGETHER || size > MOST_TOGETHER {
                own.for_each(|(row, at)| self.stored.read(&self.network, *at, row));
                continue;
            }
            block.resize(LANES * size, 0.0);
            self.stored.read_block(&self.network, part[0] / LANES, &mut block);
            own.for_each(|(row, at)| row.copy_from_slice(&block[at % LANES * size..][..size]));
        }
    }

    /// The solutions of all individuals, `[count, size]`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn solutions(&self) -> Result<Vec<f32>> {
        let size = self.network.size();
        memory::room("solutions", (self.count * size * size_of::<f32>()) as u64)?;
        let mut solutions = memory::caught(|| Ok(memory::zeros(self.count * size)))?;
        pool::for_each_rows(&mut solutions, size, SHARD, |first, rows| {
            for (block, rows) in rows.chunks_mut(LANES * size).enumerate() {
                let at = first + block * LANES;
                match rows.len() == LANES * size {
                    true => self.stored.read_block(&self.network, at / LANES, rows),
                    false => self.read_some(&Vec::from_iter(at..self.count), rows),
                }
            }
        });
        Ok(solutions)
    }

    /// Writes solutions `[rows, size]` to the individuals from `first` on.
    ///
    /// # Errors
    /// `OutOfRange` for unknown individuals and for a number that is too large, `Mismatch` for another width,
    /// `NonFinite` for a number that is not finite. Nothing has changed after an error.
    pub fn write(&mut self, first: usize, solutions: &[f32]) -> Result<()> {
        let size = self.network.size();
        let rows = solutions.len() / size;
        check(&self.network, solutions, rows)?;
        if rows > self.count || first > self.count - rows {
            let (last, most) = (first as f64 + rows as f64, self.count as f64);
            return Err(Error::out_of_range("end of the individuals", last, 0.0, most));
        }
        self.forget();
        if first == 0 && rows == self.count {
            self.stored.fill(&self.network, rows, |first, rows| {
                rows.copy_from_slice(&solutions[first * size..][..rows.len()]);
            });
            return Ok(());
        }
        let (mut block, end) = (memory::zeros(LANES * size), first + rows);
        for at in first / LANES..end.div_ceil(LANES) {
            for (lane, row) in block.chunks_exact_mut(size).enumerate() {
                let own = at * LANES + lane;
                match (first..end).contains(&own) {
                    true => row.copy_from_slice(&solutions[(own - first) * size..][..size]),
                    false => self.stored.read(&self.network, own, row),
                }
            }
            self.stored.write(&self.network, at, &block);
        }
        Ok(())
    }

    /// The logits `[count, outputs]` of all individuals: of one observation `[inputs]`, or of one for each
    /// `[count, inputs]`.
    ///
    /// # Errors
    /// `Mismatch` for another width, `NonFinite` for a number that is not finite: of an observation, or of a logit, which
    /// names its individual.
    pub fn forward(&self, observations: &[f32]) -> Result<Vec<f32>> {
        let (inputs, outputs) = (self.network.inputs(), self.network.outputs());
        let is_shared = observations.len() == inputs;
        if !is_shared && observations.len() != inputs * self.count {
            let expected = format!("{inputs}, or {inputs} for each of {}", self.count);
            return Err(Error::mismatch("numbers of observations", expected, observations.len()));
        }
        if let Some(value) = observations.iter().find(|v| !v.is_finite()) {
            return Err(Error::NonFinite { what: "an observation".into(), value: (*value).into() });
        }
        let logits = match self.resident()? {
            Some(resident) => resident.forward(&self.network, observations)?,
            None => self.logits(observations, is_shared)?,
        };
        match logits.iter().position(|v| !v.is_finite()) {
            None => Ok(logits),
            Some(at) => {
                let what = format!("a logit of individual {}", at / outputs);
                Err(Error::NonFinite { what, value: logits[at].into() })
            }
        }
    }

    /// The logits as the CPU computes them.
    fn logits(&self, observations: &[f32], is_shared: bool) -> Result<Vec<f32>> {
        let (inputs, outputs) = (self.network.inputs(), self.network.outputs());
        memory::room("logits", (self.count * outputs * size_of::<f32>()) as u64)?;
        let mut logits = memory::caught(|| Ok(memory::zeros(self.count * outputs)))?;
        pool::for_each_rows(&mut logits, outputs, SHARD, |first, logits| {
            let mut units = memory::repeated([0.0; LANES], self.network.units);
            if is_shared {
                spread(observations, &mut units);
            }
            for (block, rows) in logits.chunks_mut(LANES * outputs).enumerate() {
                let at = first + block * LANES;
                if !is_shared {
                    let own = &observations[at * inputs..][..rows.len() / outputs * inputs];
                    gather(own, inputs, &mut units);
                }
                self.stored.forward(&self.network, at / LANES, &mut units);
                scatter(&units[self.network.logits.clone()], rows);
            }
        });
        Ok(logits)
    }

    /// Replaces all individuals by children of pairs of them: of `pairs [count, 2]`, or of pairs that are drawn
    /// uniformly. Children depend on the population, the seed and the generation.
    ///
    /// # Errors
    /// `Mismatch` for another number of pairs, `OutOfRange` for an unknown parent; those of [`Variation`].
    pub fn vary(
        &mut self,
        variation: &Variation,
        pairs: Option<&[u32]>,
        stream: (u64, u64),
    ) -> Result<()> {
        let (count, size) = (self.count, self.network.size());
        let pairs = self.pairs(pairs, count)?;
        let children = variation.children(size, stream)?;
        let parents = self.solutions()?;
        let parent = |at: usize| &parents[at * size..][..size];
        let fill = |first: usize, rows: &mut [f32]| children.fill(first, &pairs, parent, rows);
        self.forget();
        self.stored.fill(&self.network, count, fill);
        Ok(())
    }

    /// Pairs of `parents` parents, checked.
    fn pairs<'a>(&self, given: Option<&'a [u32]>, parents: usize) -> Result<Pairs<'a>> {
        let Some(pairs) = given else { return Ok(Pairs::Of(parents)) };
        if pairs.len() != 2 * self.count {
            return Err(Error::mismatch("pairs of parents", self.count, pairs.len() / 2));
        }
        match pairs.iter().find(|at| **at as usize >= parents) {
            None => Ok(Pairs::Given(pairs)),
            Some(other) => {
                let last = parents as f64 - 1.0;
                Err(Error::out_of_range("parent", f64::from(*other), 0.0, last))
            }
        }
    }

    /// Replaces all individuals by children of elites: of pairs of positions `[count, 2]`, or of random pairs. The latter
    /// are those of [`Archive::vary`], rounded as they are stored.
    ///
    /// # Errors
    /// `NotFound` for an empty archive, `Mismatch` for solutions of another size; those of [`vary`](Self::vary).
    pub fn vary_from(
        &mut self,
        archive: &Archive,
        variation: &Variation,
        pairs: Option<&[u32]>,
        stream: (u64, u64),
    ) -> Result<()> {
        let size = self.network.size();
        if archive.solution_size() != size {
            let got = archive.solution_size();
            return Err(Error::mismatch("numbers of a solution of the archive", size, got));
        }
        let elites = archive.filled()?;
        let (pairs, solutions) = (self.pairs(pairs, elites)?, &archive.elites().solutions);
        let parent = |at: usize| &solutions[at * size..][..size];
        let children = variation.children(size, stream)?;
        self.forget();
        self.stored.fill(&self.network, self.count, |first, rows| {
            children.fill(first, &pairs, parent, rows);
        });
        Ok(())
    }

    /// The policy of a solution.
    ///
    /// # Errors
    /// `Mismatch` for another size, `NonFinite` for a number that is not finite.
    pub fn policy(network: &Network, solution: &[f32]) -> Result<Policy> {
        check(network, solution, 1)?;
        let made = network.tensors().into_iter().map(|(name, shape, place)| {
            let values = Tensor::from_slice(&solution[place], shape, &Device::Cpu)?;
            Ok((name, values.into()))
        });
        Policy::from_weights(network.spec(), made.collect::<Result<_>>()?)
    }

    /// The solution of a policy.
    ///
    /// # Errors
    /// Those of [`Network::of`], and of a copy from a card.
    pub fn solution(policy: &Policy) -> Result<Vec<f32>> {
        let network = Network::of(policy.spec())?;
        let mut solution = vec![0.0; network.size()];
        for (name, _, place) in network.tensors() {
            let weight = policy.weights().get(&name).ok_or_else(|| Error::not_found(&name))?;
            solution[place].copy_from_slice(&tensor::to_vec(weight)?);
        }
        Ok(solution)
    }
}

/// A thread that may wait for the card frees the copy there.
impl Drop for Population {
    fn drop(&mut self) {
        if let (Some(card), Some(resident)) = (self.card.take(), self.resident.take()) {
            device::leave(card, resident);
        }
    }
}

fn check(network: &Network, solutions: &[f32], rows: usize) -> Result<()> {
    let size = network.size();
    if rows == 0 || solutions.len() != rows * size {
        let expected = format!("rows of {size}");
        return Err(Error::mismatch("numbers of solutions", expected, solutions.len()));
    }
    let too_large = |v: &f32| v.is_nan() || v.abs() > LARGEST;
    match solutions.iter().position(too_large) {
        None => Ok(()),
        Some(at) => {
            let (what, value) = (format!("solution {}", at / size), f64::from(solutions[at]));
            Err(match value.is_finite() {
                true => Error::out_of_range(what, value, -f64::from(LARGEST), LARGEST.into()),
                false => Error::NonFinite { what, value },
            })
        }
    }
}

/// Writes the same observation to all lanes.
fn spread(observation: &[f32], units: &mut [kernel::Lanes]) {
    units.iter_mut().zip(observation).for_each(|(unit, v)| *unit = [*v; LANES]);
}

/// Writes an observation of `width` numbers to each lane; fewer than [`LANES`] leave the other lanes.
fn gather(rows: &[f32], width: usize, units: &mut [kernel::Lanes]) {
    for (lane, row) in rows.chunks_exact(width).enumerate().take(LANES) {
        units.iter_mut().zip(row).for_each(|(unit, v)| unit[lane] = *v);
    }
}

/// Writes the units of each lane to a row.
fn scatter(units: &[kernel::Lanes], rows: &mut [f32]) {
    for (lane, row) in rows.chunks_exact_mut(units.len().max(1)).enumerate().take(LANES) {
        row.iter_mut().zip(units).for_each(|(v, unit)| *v = unit[lane]);
    }
}
