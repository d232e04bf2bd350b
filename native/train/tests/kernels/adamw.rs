//! `adamw.cu` compared with `optimiser::Optimiser`.

use half::bf16;
use sconce_tensor::rng::Rng;
use sconce_train::optimiser::{Kind, Optimiser, OptimiserConfig, Parameter, clip, squared_norm};

use crate::emulated::Emulated;
use crate::memory::Argument::{self, Int, Pointers};
use crate::memory::{Element, Memory, NULL};
use crate::{Kernels, assert_near};

/// The same as in the kernels.
const CHUNK: usize = 4096;
const THREADS: u32 = 256;
const DECAYS: i32 = 1;
const BF16_GRADIENT: i32 = 2;

/// One number, fewer numbers than threads in a block, whole chunks, and more. Vectors do not decay.
const SHAPES: [&[usize]; 4] = [&[1], &[7, 9], &[2, CHUNK], &[2 * CHUNK + 21, 1]];

const MAX_NORM: f64 = 40.0;
const UPDATES: u64 = 3;

/// Exact in f32, so that both sides have the same number.
const AVERAGING: f32 = 0.75;

fn config(kind: Kind) -> OptimiserConfig {
    let of = |value: f32| Some(f64::from(value));
    let weight_decay = 0.03125;
    let config = OptimiserConfig::new(kind);
    OptimiserConfig { beta1: of(0.9), beta2: of(0.99), eps: of(1e-6), weight_decay, ..config }
}

fn learning_rate(t: u64) -> f32 {
    0.01 / (t + 1) as f32
}

/// Weight of the sum of gradients in update `t`.
fn learned(t: u64) -> f32 {
    1.5 + t as f32
}

fn numbers(name: &str, stream: u64, shape: &[usize]) -> Vec<f32> {
    let rng = Rng::new(1, name, stream);
    (0..shape.iter().product::<usize>() as u64).map(|i| rng.normal(i)).collect()
}

/// Parameters, means, squares and averages of all weights, one after another, and the norm of each update.
#[derive(Debug, PartialEq)]
struct Results {
    numbers: [Vec<Vec<f32>>; 4],
    norms: Vec<f32>,
}

/// Whether the gradient of a parameter is bf16.
fn of_bf16(parameter: usize) -> bool {
    parameter % 2 == 1
}

fn gradient(parameter: usize, t: u64) -> Vec<f32> {
    let g = numbers("gradient", 10 * t + parameter as u64, SHAPES[parameter]);
    let rounded = |v: f32| if of_bf16(parameter) { bf16::from_f32(v).to_f32() } else { v };
    g.into_iter().map(rounded).collect()
}

fn parameters() -> Vec<Vec<f32>> {
    SHAPES.iter().enumerate().map(|(i, shape)| numbers("p", i as u64, shape)).collect()
}

fn on_cpu(kind: Kind) -> Results {
    let known = SHAPES.iter().enumerate();
    let known = known.map(|(i, shape)| Parameter::new(i.to_string(), shape)).collect();
    let mut optimiser = Optimiser::new(config(kind), known).averaging(Some(f64::from(AVERAGING)));
    let (mut p, mut norms) = (parameters(), vec![]);
    for t in 0..UPDATES {
        let gradients: Vec<_> = (0..SHAPES.len()).map(|i| gradient(i, t)).collect();
        let squares = gradients.iter().map(|g| squared_norm(g)).sum();
        let (norm, factor) = clip(squares, learned(t).into(), MAX_NORM).unwrap();
        norms.push(norm as f32);
        optimiser.begin();
        for (i, (p, g)) in p.iter_mut().zip(&gradients).enumerate() {
            optimiser.update(i, p, g, factor, learning_rate(t).into()).unwrap();
        }
    }
    let state = optimiser.state().unwrap();
    let kept = |kind: &str| {
        let of_kind = state.iter().filter(|(name, _)| name.starts_with(kind));
        of_kind.map(|(_, values)| values.to_vec()).collect()
    };
    Results { numbers: [p, kept("exp_avg."), kept("exp_avg_sq."), kept("ema.")], norms }
}

/// A gradient of either type.
enum Gradient {
    F32(Memory<f32>),
    Bf16(Memory<bf16>),
}

impl Gradient {
    fn of(parameter: usize, t: u64) -> Self {
        let g = gradient(parameter, t);
        if of_bf16(parameter) { Self::Bf16(Memory::of(&g)) } else { Self::F32(Memory::of(&g)) }
    }

    fn argument(&mut self) -> Argument<'_> {
        match self {
            Gradient::F32(memory) => memory.argument(),
            Gradient::Bf16(memory) => memory.argument(),
        }
    }
}

fn all(gradients: &mut [Gradient]) -> Argument<'_> {
    Pointers(gradients.iter_mut().map(Gradient::argument).collect())
}

fn pointers<T: Element>(memories: &mut [Memory<T>]) -> Argument<'_> {
    Pointers(memories.iter_mut().map(Memory::argument).collect())
}

/// Memory of a card that lasts from one update to the next.
struct Card {
    /// Parameters, means, squares, averages.
    numbers: [Vec<Memory<f32>>; 4],
    /// Copies of every other parameter.
    copies: Vec<Memory<bf16>>,
    chunks: Memory<i32>,
    count: usize,
    settings: Memory<f64>,
    state: Memory<f64>,
}

impl Card {
    fn new() -> Self {
        let zeros = || SHAPES.iter().map(|s| Memory::of(&vec![0.0; s.iter().product()])).collect();
        let chunks = SHAPES.iter().enumerate().flat_map(|(i, shape)| {
            let len: usize = shape.iter().product();
            let decays = if shape.len() >= 2 { DECAYS } else { 0 };
            let flags = decays + if of_bf16(i) { BF16_GRADIENT } else { 0 };
            (0..len.div_ceil(CHUNK)).flat_map(move |chunk| {
                [i, chunk, CHUNK.min(len - chunk * CHUNK), flags as usize].map(|n| n as f32)
            })
        });
        let (chunks, p) = (chunks.collect::<Vec<f32>>(), parameters());
        Card {
            numbers: [p.iter().map(|p| Memory::of(p)).collect(), zeros(), zeros(), zeros()],
            copies: p.iter().map(|p| Memory::unwritten(p.len())).collect(),
            count: chunks.len() / 4,
            chunks: Memory::of(&chunks),
            settings: Memory::unwritten(9),
            state: Memory::of(&[0.0; 3]),
        }
    }

    /// One update by these gradients.
    fn update(&mut self, kernels: &impl Kernels, kind: Kind, t: u64, gradients: &mut [Gradient]) {
        let OptimiserConfig { beta1, beta2, eps, weight_decay, .. } = config(kind);
        let decays = if kind == Kind::AdamW { [weight_decay, 0.0] } else { [0.0, weight_decay] };
        let numbers = [learning_rate(t), learned(t), MAX_NORM as f32];
        let rule = [beta1, beta2, eps].map(|number| number.unwrap() as f32);
        let decays = decays.map(|decay| decay as f32);
        self.settings = Memory::of(&[&numbers[..], &rule, &decays, &[AVERAGING]].concat());

        let mut parts = Memory::<f64>::unwritten(self.count);
        let mut constants = Memory::<f32>::unwritten(12);
        let (grid, block) = ([self.count as u32, 1, 1], [THREADS, 1, 1]);
        kernels.launch(
            "adamw_squares",
            grid,
            block,
            &mut [all(gradients), self.chunks.argument(), parts.argument()],
        );
        kernels.launch(
            "adamw_begin",
            [1; 3],
            block,
            &mut [
                parts.argument(),
                Int(self.count as i32),
                self.settings.argument(),
                self.state.argument(),
                constants.argument(),
            ],
        );
        let [p, m, v, averages] = &mut self.numbers;
        let copies = self.copies.iter_mut().enumerate();
        let copies = copies.map(|(i, copy)| if i % 2 == 0 { copy.argument() } else { NULL });
        kernels.launch(
            "adamw_update",
            grid,
            block,
            &mut [
                pointers(p),
                all(gradients),
                pointers(m),
                pointers(v),
                pointers(averages),
                Pointers(copies.collect()),
                self.chunks.argument(),
                constants.argument(),
            ],
        );
        parts.read();
    }

    fn results(&self, norms: Vec<f32>) -> Results {
        let read = |of: &Vec<Memory<f32>>| of.iter().map(Memory::read).collect();
        Results { numbers: self.numbers.each_ref().map(read), norms }
    }
}

fn updates_are_those_of_the_cpu(kernels: &impl Kernels) {
    for kind in [Kind::AdamW, Kind::Adam] {
        let (mut card, mut norms) = (Card::new(), vec![]);
        for t in 0..UPDATES {
            let mut gradients: Vec<_> = (0..SHAPES.len()).map(|i| Gradient::of(i, t)).collect();
            card.update(kernels, kind, t, &mut gradients);
            norms.push(card.state.read()[1]);
        }
        assert_eq!((card.state.read()[0], card.state.read()[2]), (UPDATES as f32, 0.0));
        let (want, got) = (on_cpu(kind), card.results(norms));
        assert!(want.norms[0] > MAX_NORM as f32 && want.norms[2] < MAX_NORM as f32);
        assert_near("norms", &got.norms, &want.norms, 1e-6);
        for (what, (got, want)) in got.numbers.iter().zip(&want.numbers).enumerate() {
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                assert_near(&format!("{kind:?}, {what} of {i}"), got, want, 2e-6);
            }
        }
        for (i, copy) in card.copies.iter().enumerate().step_by(2) {
            let rounded = got.numbers[0][i].iter().map(|p| bf16::from_f32(*p).to_f32());
            assert_eq!(copy.read(), rounded.collect::<Vec<_>>());
        }
        assert!(card.copies[1].read().iter().all(|p| p.is_nan()), "no copy was wanted");
    }
}

fn gradients_that_are_not_finite_change_nothing(kernels: &impl Kernels) {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut card = Card::new();
        let update = |card: &mut Card, bad: Option<f32>| {
            let mut gradients: Vec<_> = (0..SHAPES.len()).map(|i| Gradient::of(i, 0)).collect();
            if let Some(bad) = bad {
                let last = gradient(3, 0).len() - 1;
                let with = |(i, g)| if i == last { bad } else { g };
                let g: Vec<_> = gradient(3, 0).into_iter().enumerate().map(with).collect();
                gradients[3] = Gradient::Bf16(Memory::of(&g));
            }
            card.update(kernels, Kind::AdamW, 0, &mut gradients);
        };
        update(&mut card, None);
        let before = card.results(vec![]);
        update(&mut card, Some(bad));
        assert_eq!(card.results(vec![]), before);
        let state = card.state.read();
        assert!((state[0], state[2]) == (1.0, 1.0) && !state[1].is_finite(), "{state:?}");
        update(&mut card, None);
        assert_eq!((card.state.read()[0], card.state.read()[2]), (2.0, 1.0));
        assert!(card.results(vec![]) != before);
    }
}

#[test]
fn updates_of_all_parameters_at_once_are_those_of_the_cpu() {
    updates_are_those_of_the_cpu(&Emulated::compile("adamw"));
}

#[test]
fn an_update_by_gradients_that_are_not_finite_changes_nothing_and_is_counted() {
    gradients_that_are_not_finite_change_nothing(&Emulated::compile("adamw"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn updates_on_a_card_are_those_of_the_cpu() {
    let module = sconce_cuda::kernels::ADAMW;
    let kernels = crate::card::Card::open(module.name, module.ptx);
    updates_are_those_of_the_cpu(&kernels);
    gradients_that_are_not_finite_change_nothing(&kernels);
}
