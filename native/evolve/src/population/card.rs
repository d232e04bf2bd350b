//! Populations on a card, by `population.cu`.

use sconce_cuda::kernels::POPULATION;
use sconce_env::{Autoreset, EnvOptions, rules_for_a_card};
use sconce_tensor::device::launch::{Launch, unwritten};
use sconce_tensor::device::{Held, Owner};
use sconce_tensor::{DType, Device, Result, Tensor, memory};

use super::image::{CardImage, CardWeights};
use super::{Episodes, Evaluated, Network, Population};

/// Threads of a block.
const THREADS: usize = 32;
/// Units of an individual in shared memory.
const SHARED_UNITS: usize = 128;

/// A copy of a population on a card.
#[derive(Debug, Clone)]
pub(super) struct Resident {
    weights: Tensor,
    biases: Tensor,
    scales: Option<Tensor>,
    layers: Tensor,
    /// Units of all individuals, if those of a block are too many for shared memory.
    scratch: Option<Tensor>,
    storage: usize,
    num_layers: usize,
    units: usize,
    logits: usize,
    stride: usize,
    count: usize,
    _held: Held,
}

/// A tensor of words. It has one word at least.
fn words(mut words: Vec<i64>, device: &Device) -> Result<Tensor> {
    if words.is_empty() {
        words.push(0);
    }
    let count = words.len();
    Ok(Tensor::from_vec(words, count, device)?)
}

impl Resident {
    pub(super) fn of(population: &Population, device: &Device) -> Result<Self> {
        let CardImage { weights, biases, scales, stride, layers, num_layers, units, logits } =
            population.image()?;
        let rows = |values: Vec<f32>| {
            let shape = (values.len() / stride, stride);
            Tensor::from_vec(values, shape, device)
        };
        let storage = weights.storage();
        let shape = (population.network.weights(), stride);
        let weights = match weights {
            CardWeights::F32(values) => Tensor::from_vec(values, shape, device),
            CardWeights::Bf16(values) => Tensor::from_vec(values, shape, device),
            CardWeights::Int8(values) => Tensor::from_vec(values, shape, device),
        }?;
        let scales = (!scales.is_empty()).then(|| rows(scales)).transpose()?;
        let all = units + population.network.spec().heads.num_labels();
        let scratch = (all > SHARED_UNITS)
            .then(|| unwritten((all, stride), DType::F32, &weights))
            .transpose()?;
        let biases = rows(biases)?;
        let tensors = [&weights, &biases].into_iter().chain(&scales).chain(&scratch);
        Ok(Resident {
            _held: Held::of(Owner::Weights, tensors),
            layers: words(layers, device)?,
            weights,
            biases,
            scales,
            scratch,
            storage,
            num_layers,
            units,
            logits,
            stride,
            count: population.count,
        })
    }

    /// A launch with the arguments that all kernels begin with.
    fn launch(&self, kernel: &str) -> Result<Launch> {
        let launch = Launch::of(POPULATION, kernel, &self.weights)?.tensor(&self.weights)?;
        let launch = launch.tensor(&self.biases)?.option(self.scales.as_ref())?;
        Ok(launch.tensor(&self.layers)?.option(self.scratch.as_ref())?)
    }

    fn run(&self, launch: Launch) -> Result<()> {
        let blocks = self.count.div_ceil(THREADS);
        // SAFETY: a thread for each individual, and tensors of the sizes that population.cu requires.
        Ok(unsafe { launch.run([blocks, 1, 1], [THREADS, 1, 1], 0) }?)
    }

    /// Copies rows of one number of each individual to `[count, rows]`.
    fn by_individual<T: Copy>(&self, rows: &[Vec<T>]) -> Vec<T> {
        (0..self.count)
            .flat_map(|at| rows.iter().filter_map(move |row| row.get(at).copied()))
            .collect()
    }

    /// The logits `[count, outputs]` of checked observations: of one, or of one for each.
    pub(super) fn forward(&self, network: &Network, observations: &[f32]) -> Result<Vec<f32>> {
        let (inputs, outputs) = (network.inputs(), network.outputs());
        let device = self.weights.device();
        let each = observations.len() != inputs;
        let mut rows = observations.to_vec();
        if each {
            rows = memory::zeros(inputs * self.stride);
            for (at, own) in observations.chunks_exact(inputs).enumerate() {
                let places = rows.iter_mut().skip(at).step_by(self.stride);
                places.zip(own).for_each(|(place, v)| *place = *v);
            }
        }
        let count = rows.len();
        let seen = Tensor::from_vec(rows, count, device)?;
        let logits = unwritten((outputs, self.stride), DType::F32, &self.weights)?;
        let launch = self.launch("population_forward")?.tensor(&seen)?.tensor(&logits)?;
        let launch = launch.long(self.count).long(self.stride);
        let launch = launch.int(self.storage).int(self.num_layers).int(inputs);
        self.run(launch.int(usize::from(each)).int(self.logits).int(outputs))?;
        Ok(self.by_individual(&logits.to_vec2()?))
    }

    /// The results of episodes whose options are checked.
    pub(super) fn episodes(
        &self,
        network: &Network,
        options: &Episodes,
        world: &str,
    ) -> Result<Evaluated> {
        let device = self.weights.device();
        let env = EnvOptions { autoreset: Autoreset::SameStep, ..options.env.clone() };
        let rules = words(rules_for_a_card(&env)?, device)?;
        let heads = network.heads_for_a_card()?;
        let num_heads = network.spec().heads.parts.len();
        let (heads, measured) = (words(heads, device)?, words(options.words_for_a_card(), device)?);
        let width = options.measures.len();
        let column = |dtype| unwritten(self.count, dtype, &self.weights);
        let (returns, decisions) = (column(DType::F64)?, column(DType::U32)?);
        let measures = unwritten((width.max(1), self.stride), DType::F64, &self.weights)?;
        let launch = self.launch(&format!("population_episodes_{world}"))?;
        let launch = launch.tensor(&heads)?.tensor(&measured)?.tensor(&rules)?;
        let launch = launch.tensor(&returns)?.tensor(&measures)?.tensor(&decisions)?;
        let launch = launch.long(self.count).long(self.stride);
        let launch = launch.int(self.storage).int(self.num_layers).int(num_heads).int(width);
        let launch = launch.int(self.units).int(usize::from(options.same_starts));
        self.run(launch.int(options.episodes as usize))?;
        let mut rows: Vec<Vec<f64>> = measures.to_vec2()?;
        rows.truncate(width);
        let decisions: Vec<u32> = decisions.to_vec1()?;
        Ok(Evaluated {
            returns: returns.to_vec1()?,
            measures: self.by_individual(&rows),
            decisions: decisions.into_iter().map(u64::from).sum(),
        })
    }
}
