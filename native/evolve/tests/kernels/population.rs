//! Populations on a card, beside the same populations on the CPU.

use sconce_env::{EnvOptions, names, rules_for_a_card, spec};
use sconce_evolve::{
    CardImage, CardWeights, Episodes, Evaluated, Measure, Population, PopulationOptions, Storage,
};
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, MlpActivation, MlpConfig, Spec};
use sconce_tensor::rng::Rng;

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Argument, Memory, NULL};
use crate::{Kernels, assert_near};

/// Threads of a block, individuals in more than one block, and units that fit in shared memory.
const THREADS: usize = 32;
const COUNT: usize = 75;
const SHARED_UNITS: usize = 128;

const STORAGES: [Storage; 3] = [Storage::F32, Storage::Bf16, Storage::Int8];

/// A Spec for an environment, with heads of one hidden layer or none.
fn of_env(options: &EnvOptions, hidden: &[usize], activation: MlpActivation, head: usize) -> Spec {
    let env = spec(options).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.iter_mut().for_each(|part| part.hidden_size = head);
    Spec {
        embedding: Embedding::vector(env.observation_size),
        backbone: Backbone::Mlp(MlpConfig {
            hidden_sizes: hidden.to_vec(),
            layer_norm: false,
            residual: false,
            activation,
            dropout: 0.0,
            input_dropout: 0.0,
        }),
        heads,
        critic: None,
    }
}

fn env(name: &str) -> EnvOptions {
    let opponent = (name == "duel").then(|| "mixer".to_string());
    EnvOptions { env: name.into(), opponent, ..EnvOptions::default() }
}

fn population(spec: &Spec, storage: Storage) -> Population {
    let options = PopulationOptions { count: COUNT, storage, sigma: 0.6, seed: 3 };
    Population::new(spec, &options, None).unwrap()
}

/// The memory of a card that holds a population.
struct Card {
    image: CardImage,
    weights: Weights,
    biases: Memory<f32>,
    scales: Option<Memory<f32>>,
    layers: Memory<i64>,
    scratch: Option<Memory<f32>>,
}

enum Weights {
    Wide(Memory<f32>),
    Half(Memory<half::bf16>),
    /// Four codes in each word.
    Codes(Memory<u32>),
}

impl Card {
    fn new(population: &Population) -> Self {
        let image = population.image().unwrap();
        let weights = match &image.weights {
            CardWeights::F32(values) => Weights::Wide(Memory::exactly(values)),
            CardWeights::Bf16(values) => Weights::Half(Memory::exactly(values)),
            CardWeights::Int8(codes) => {
                let (words, rest) = codes.as_chunks();
                assert!(rest.is_empty());
                let words: Vec<u32> = words.iter().map(|own| u32::from_le_bytes(*own)).collect();
                Weights::Codes(Memory::exactly(&words))
            }
        };
        let units = image.units + population.network().spec().heads.num_labels();
        let scales = (!image.scales.is_empty()).then(|| Memory::exactly(&image.scales));
        assert_eq!(scales.is_some(), population.storage() == Storage::Int8);
        Card {
            weights,
            biases: Memory::exactly(&image.biases),
            scales,
            layers: Memory::exactly(&image.layers),
            scratch: (units > SHARED_UNITS).then(|| Memory::unwritten(units * image.stride)),
            image,
        }
    }

    fn launch(&mut self, kernels: &impl Kernels, kernel: &str, more: Vec<Argument<'_>>) {
        let weights = match &mut self.weights {
            Weights::Wide(memory) => memory.argument(),
            Weights::Half(memory) => memory.argument(),
            Weights::Codes(memory) => memory.argument(),
        };
        let mut arguments = vec![
            weights,
            self.biases.argument(),
            self.scales.as_mut().map_or(NULL, Memory::argument),
            self.layers.argument(),
            self.scratch.as_mut().map_or(NULL, Memory::argument),
        ];
        arguments.extend(more);
        let grid = [COUNT.div_ceil(THREADS) as u32, 1, 1];
        kernels.launch(kernel, grid, [THREADS as u32, 1, 1], &mut arguments);
    }

    /// The sizes that follow the memory in each kernel's arguments.
    fn sizes(&self) -> [Argument<'static>; 4] {
        let (storage, layers) = (self.image.weights.storage(), self.image.num_layers);
        let stride = self.image.stride;
        [Long(COUNT as i64), Long(stride as i64), Int(storage as i32), Int(layers as i32)]
    }

    /// The rows of one number of each individual, without those beyond the count, as `[COUNT, rows]`.
    fn by_individual<T: Copy>(&self, rows: &[T]) -> Vec<T> {
        let rows: Vec<&[T]> = rows.chunks(self.image.stride).collect();
        (0..COUNT).flat_map(|at| rows.iter().map(move |row| row[at])).collect()
    }

    fn forward(&mut self, kernels: &impl Kernels, seen: &[f32], of: &Population) -> Vec<f32> {
        let (inputs, outputs) = (of.network().inputs(), of.network().outputs());
        let stride = self.image.stride;
        let each = seen.len() != inputs;
        let mut rows = seen.to_vec();
        if each {
            rows = vec![f32::NAN; inputs * stride];
            for (at, own) in seen.chunks(inputs).enumerate() {
                own.iter().enumerate().for_each(|(i, v)| rows[i * stride + at] = *v);
            }
        }
        let mut seen = Memory::<f32>::of(&rows);
        let mut logits = Memory::<f32>::unwritten(outputs * stride);
        let [count, long, storage, layers] = self.sizes();
        let first = Int(self.image.logits as i32);
        let mut more = vec![seen.argument(), logits.argument(), count, long, storage, layers];
        more.extend([Int(inputs as i32), Int(i32::from(each)), first, Int(outputs as i32)]);
        self.launch(kernels, "population_forward", more);
        self.by_individual(logits.exact())
    }

    fn episodes(
        &mut self,
        kernels: &impl Kernels,
        options: &Episodes,
        of: &Population,
    ) -> Evaluated {
        let heads = of.network().heads_for_a_card().unwrap();
        let (mut measured, width) = (options.words_for_a_card(), options.measures.len());
        measured.push(0);
        let mut heads = Memory::exactly(&heads);
        let mut measured = Memory::exactly(&measured);
        let mut rules = Memory::exactly(&rules_for_a_card(&options.env).unwrap());
        let mut returns = Memory::<f64>::unwritten(COUNT);
        let mut measures = Memory::<f64>::unwritten(width * self.image.stride);
        let mut decisions = Memory::<u32>::unwritten(COUNT);
        let [count, long, storage, layers] = self.sizes();
        let labels = Int(self.image.units as i32);
        let num_heads = of.network().spec().heads.parts.len() as i32;
        let mut more = vec![heads.argument(), measured.argument(), rules.argument()];
        more.extend([returns.argument(), measures.argument(), decisions.argument()]);
        more.extend([count, long, storage, layers, Int(num_heads), Int(width as i32), labels]);
        more.extend([Int(i32::from(options.same_starts)), Int(options.episodes as i32)]);
        self.launch(kernels, &format!("population_episodes_{}", options.env.env), more);
        Evaluated {
            returns: returns.exact().to_vec(),
            measures: self.by_individual(measures.exact()),
            decisions: decisions.exact().iter().map(|n| u64::from(*n)).sum(),
        }
    }
}

fn numbers(count: usize) -> Vec<f32> {
    let rng = Rng::new(5, "test", 0);
    (0..count as u64).map(|at| rng.normal(at)).collect()
}

/// Networks of each activation; the last ones have more units than fit in shared memory.
fn specs() -> Vec<Spec> {
    vec![
        of_env(&env("cart_pole"), &[32, 16], MlpActivation::Tanh, 0),
        of_env(&env("duel"), &[7], MlpActivation::Relu, 5),
        of_env(&env("pendulum"), &[5, 6, 7], MlpActivation::Silu, 0),
        of_env(&env("acrobot"), &[150], MlpActivation::Gelu, 3),
        of_env(&env("acrobot"), &[64, 70], MlpActivation::Tanh, 0),
    ]
}

/// Kernels, or populations of a card.
fn forwards_are_those_of_the_cpu(forward: impl Fn(&Population, &[f32]) -> Vec<f32>) -> f32 {
    let mut most = 0.0f32;
    for spec in specs() {
        for storage in STORAGES {
            let population = population(&spec, storage);
            let inputs = population.network().inputs();
            let own = numbers(COUNT * inputs);
            for seen in [&own[..], &own[..inputs]] {
                let (got, want) = (forward(&population, seen), population.forward(seen).unwrap());
                assert_near(&format!("{storage:?} of {spec:?}"), &got, &want, 1e-5);
                let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs() / b.abs().max(1.0));
                most = off.fold(most, f32::max);
            }
        }
    }
    most
}

#[test]
fn forwards_of_all_are_those_of_the_cpu() {
    let kernels = Emulated::compile("population");
    let most = forwards_are_those_of_the_cpu(|population, seen| {
        Card::new(population).forward(&kernels, seen, population)
    });
    println!("largest difference of a logit: {most:e}");
}

/// Every world of a card, as it is, and with a limit, a stack, repeated inputs and weights.
fn cases() -> Vec<Episodes> {
    let mut all = vec![];
    for name in names().into_iter().filter(|name| rules_for_a_card(&env(name)).is_ok()) {
        let plain = EnvOptions {
            seed: 3 << 40 | 11,
            first: (1 << 32) - 20,
            time_limit: Some(40),
            ..env(name)
        };
        let term = spec(&plain).unwrap().reward_terms[0].to_string();
        let measures = vec![
            Measure::Final(0),
            Measure::Input(0),
            Measure::Length,
            Measure::Observation(1),
            Measure::Final(1),
        ];
        let other = EnvOptions {
            time_limit: Some(31),
            action_repeat: 3,
            frame_stack: 3,
            reward_weights: vec![(term, -2.5)],
            ..plain.clone()
        };
        all.push(Episodes { env: plain, episodes: 3, same_starts: false, measures });
        all.push(Episodes { env: other, episodes: 2, same_starts: true, measures: vec![] });
    }
    all
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-3 * b.abs().max(1.0)
}

/// The share of individuals whose return or measures differ. A rounding error may change which of two classes is the
/// likelier one, and the episode goes on elsewhere.
fn apart(got: &Evaluated, want: &Evaluated) -> f64 {
    assert_eq!((got.returns.len(), got.measures.len()), (want.returns.len(), want.measures.len()));
    let width = want.measures.len() / COUNT;
    let differs = (0..COUNT).filter(|at| {
        let rows = |all: &Evaluated| all.measures[at * width..][..width].to_vec();
        let same = rows(got).iter().zip(rows(want)).all(|(a, b)| near(*a, b));
        !same || !near(got.returns[*at], want.returns[*at])
    });
    differs.count() as f64 / COUNT as f64
}

/// At most this share of the individuals may have another episode.
const APART: f64 = 0.05;

fn episodes_are_those_of_the_cpu(episodes: impl Fn(&Population, &Episodes) -> Evaluated) {
    for (at, options) in cases().iter().enumerate() {
        let spec = of_env(&options.env, &[8, 6], MlpActivation::Tanh, 0);
        for storage in [STORAGES[at % 3], STORAGES[(at + 1) % 3]] {
            let population = population(&spec, storage);
            let want = population.episodes(options).unwrap();
            let got = episodes(&population, options);
            let share = apart(&got, &want);
            println!("{} {storage:?}: {share}", options.env.env);
            assert!(share <= APART, "{share} differ: {storage:?} {options:?}");
            let decisions = got.decisions as f64 / want.decisions as f64;
            assert!((decisions - 1.0).abs() < 0.02, "{decisions} of the decisions: {options:?}");
        }
    }
}

#[test]
fn episodes_in_every_world_are_those_of_the_cpu() {
    let kernels = Emulated::compile("population");
    episodes_are_those_of_the_cpu(|population, options| {
        Card::new(population).episodes(&kernels, options, population)
    });
}

/// Units in scratch memory, and heads with a hidden layer.
#[test]
fn episodes_of_a_large_network_are_those_of_the_cpu() {
    let kernels = Emulated::compile("population");
    let options = Episodes {
        env: EnvOptions { time_limit: Some(60), ..env("duel") },
        episodes: 2,
        same_starts: false,
        measures: vec![Measure::Length, Measure::Input(1)],
    };
    let population =
        population(&of_env(&options.env, &[120], MlpActivation::Relu, 9), Storage::F32);
    let want = population.episodes(&options).unwrap();
    let mut card = Card::new(&population);
    assert!(card.scratch.is_some());
    let share = apart(&card.episodes(&kernels, &options, &population), &want);
    assert!(share <= APART, "{share} differ");
}

/// A logit that is not finite counts as 0, and of equally likely classes the first is chosen.
#[test]
fn numbers_that_are_not_finite_are_treated_as_on_the_cpu() {
    let kernels = Emulated::compile("population");
    for name in ["pendulum", "cart_pole"] {
        let options = Episodes {
            env: EnvOptions { time_limit: Some(10), ..env(name) },
            episodes: 1,
            same_starts: false,
            measures: vec![Measure::Input(0)],
        };
        let spec = of_env(&options.env, &[4], MlpActivation::Relu, 0);
        let mut population = population(&spec, Storage::F32);
        let size = population.network().size();
        population.write(0, &vec![1e30; size]).unwrap();
        population.write(1, &vec![0.0; size]).unwrap();
        let mixed: Vec<f32> = (0..size).map(|i| if i % 2 == 0 { 1e30 } else { -1e30 }).collect();
        population.write(2, &mixed).unwrap();
        let want = population.episodes(&options).unwrap();
        let got = Card::new(&population).episodes(&kernels, &options, &population);
        for at in 0..3 {
            assert!(near(got.returns[at], want.returns[at]), "{name} {at}");
            assert!(near(got.measures[at], want.measures[at]), "{name} {at}");
        }
    }
}

#[test]
fn billiards_are_refused_on_a_card() {
    let refused = rules_for_a_card(&env("billiards")).unwrap_err();
    assert_eq!(refused.kind(), sconce_tensor::Kind::Unavailable);
    assert!(refused.to_string().contains("billiards on a card"), "{refused}");
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn populations_on_a_card_are_those_of_the_cpu() {
    let module = sconce_cuda::kernels::POPULATION;
    let kernels = crate::card::Card::open(module.name, module.ptx);
    forwards_are_those_of_the_cpu(|population, seen| {
        Card::new(population).forward(&kernels, seen, population)
    });
    episodes_are_those_of_the_cpu(|population, options| {
        Card::new(population).episodes(&kernels, options, population)
    });
    let device = crate::card::open();
    let there = |population: &Population| population.clone().on(&device);
    forwards_are_those_of_the_cpu(|population, seen| there(population).forward(seen).unwrap());
    episodes_are_those_of_the_cpu(|population, options| {
        there(population).episodes(options).unwrap()
    });
    let billiards =
        Episodes { env: env("billiards"), episodes: 1, same_starts: false, measures: vec![] };
    let spec = of_env(&billiards.env, &[4], MlpActivation::Tanh, 0);
    let refused = there(&population(&spec, Storage::F32)).episodes(&billiards).unwrap_err();
    assert_eq!(refused.kind(), sconce_tensor::Kind::Unavailable);
}

/// A change of the individuals reaches the card.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn written_and_varied_individuals_are_computed_on_a_card() {
    let spec = of_env(&env("cart_pole"), &[8], MlpActivation::Tanh, 0);
    let mut cpu = population(&spec, Storage::F32);
    let mut card = cpu.clone().on(&crate::card::open());
    let seen = numbers(cpu.network().inputs());
    let row = numbers(cpu.network().size());
    let variation = sconce_evolve::Variation {
        iso_sigma: 0.2,
        crossover: sconce_evolve::Crossover::Line(0.3),
        bounds: None,
    };
    for turn in 0..4 {
        let near = |what: &str, cpu: &Population, card: &Population| {
            let (got, want) = (card.forward(&seen).unwrap(), cpu.forward(&seen).unwrap());
            assert_near(&format!("{what} {turn}"), &got, &want, 1e-5);
        };
        near("before", &cpu, &card);
        for own in [&mut cpu, &mut card] {
            match turn {
                0 => own.write(7, &row).unwrap(),
                1 => own.vary(&variation, None, (1, 2)).unwrap(),
                2 => own.renew(0.5, (3, 4)).unwrap(),
                _ => own.write(0, &numbers(COUNT * row.len())).unwrap(),
            }
        }
        near("after", &cpu, &card);
    }
}
