//! Times of training steps, and of forward passes over whole windows. Examples are random but the same in every run.

use std::time::Instant;

use sconce_data::Batch;
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{Backbone, HeadKind};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Precision, Result, pool};
use serde::{Deserialize, Serialize};

use crate::objective::imitation::LossOptions;
use crate::optimiser::OptimiserConfig;
use crate::step::Stepper;

/// Number of untimed steps that warm up caches and threads.
const WARM_UP: usize = 2;
const LEARNING_RATE: f64 = 1e-3;
const MAX_GRAD_NORM: f64 = 1.0;

/// Size and length of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// Windows in a batch.
    pub batch: usize,
    /// Frames in a window.
    pub window: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// Seed of weights and examples.
    pub seed: u64,
    /// Minimum time for which steps are repeated, in seconds.
    pub seconds: f64,
    /// Minimum number of timed steps.
    pub min_steps: usize,
    /// Precision of training steps.
    #[serde(default)]
    pub precision: Precision,
}

/// Times of steps, and the operations of one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepTimes {
    /// Microseconds of each timed step.
    pub us: Vec<f64>,
    /// Loss of the first step.
    pub first_loss: f64,
    /// Loss of the last step.
    pub last_loss: f64,
    /// Multiply-adds of one forward pass: in matrices, and in a memory outside of its matrices.
    pub multiply_adds: u64,
    /// Exponentials of a memory: in one forward pass, and in one backward pass.
    pub exponentials: [u64; 2],
    /// Number of weights.
    pub weights: usize,
}

/// Times training steps of a new policy of `spec`, with the plain loss and the same examples in each step.
pub fn step_times(spec: &Spec, steps: &Steps) -> Result<StepTimes> {
    measured(spec, steps, |policy| {
        let batch = examples(spec, steps.batch, steps.window, steps.seed);
        let config = OptimiserConfig::default();
        let loss = LossOptions::plain();
        let mut stepper = Stepper::imitating(&policy, &loss, config, MAX_GRAD_NORM, steps.seed)?
            .in_precision(steps.precision);
        drop(policy);
        repeat(steps, |step| Ok(stepper.step(&batch, step, LEARNING_RATE)?.figures.total))
    })
}

/// Times forward passes of a new policy of `spec` over whole windows, from zero states to the trunk vectors of all
/// frames. The result has the sum of these vectors in place of a loss.
pub fn forward_times(spec: &Spec, steps: &Steps) -> Result<StepTimes> {
    measured(spec, steps, |policy| {
        let Batch { frames, .. } = examples(spec, steps.batch, steps.window, steps.seed);
        let state = policy.zero_state(steps.batch)?;
        repeat(steps, |_| {
            let (trunk, _) = policy.trunk(&frames, &state, &Context::default())?;
            Ok(f64::from(trunk.sum_all()?.to_scalar::<f32>()?))
        })
    })
}

/// Microseconds of each timed repetition, and the value of every repetition.
type Times = (Vec<f64>, Vec<f64>);

fn measured(
    spec: &Spec,
    steps: &Steps,
    work: impl FnOnce(Policy) -> Result<Times>,
) -> Result<StepTimes> {
    spec.validate()?;
    let before = pool::threads();
    pool::set_threads(steps.threads.max(1))?;
    let times = Policy::init(spec, steps.seed).and_then(|policy| {
        let frames = (steps.batch * steps.window) as u64;
        let backbones = spec.critic.iter().chain([&spec.backbone]);
        let own: Vec<Work> = backbones.map(|of| Work::of(of, steps.window as u64)).collect();
        let of_memories: u64 = own.iter().map(|work| work.multiply_adds).sum();
        let multiply_adds = (of_matrices(&policy) + of_memories) * frames;
        let exponentials = [0, 1].map(|i| own.iter().map(|of| of.exponentials[i]).sum::<u64>());
        let exponentials = exponentials.map(|count| count * frames);
        let weights = policy.num_weights();
        let (us, values) = work(policy)?;
        let (Some(&first_loss), Some(&last_loss)) = (values.first(), values.last()) else {
            return Err(Error::not_found("a step"));
        };
        Ok(StepTimes { us, first_loss, last_loss, multiply_adds, exponentials, weights })
    });
    pool::set_threads(before)?;
    times
}

fn repeat(steps: &Steps, mut work: impl FnMut(u64) -> Result<f64>) -> Result<Times> {
    let (mut us, mut values) = (vec![], vec![]);
    let mut clock = Instant::now();
    for step in 0.. {
        let start = Instant::now();
        values.push(work(step)?);
        match values.len() {
            n if n < WARM_UP => continue,
            WARM_UP => clock = Instant::now(),
            _ => us.push(start.elapsed().as_secs_f64() * 1e6),
        }
        if us.len() >= steps.min_steps && clock.elapsed().as_secs_f64() >= steps.seconds {
            break;
        }
    }
    Ok((us, values))
}

/// Operations of a memory for one frame, outside of its matrices. Backbones that are not counted have 0.
#[derive(Default)]
struct Work {
    multiply_adds: u64,
    exponentials: [u64; 2],
}

impl Work {
    fn of(backbone: &Backbone, window: u64) -> Self {
        match backbone {
            // The exponentials of the gates, whose values are kept for the backward pass.
            Backbone::Lstm(c) => Self::kept(5 * (c.num_layers * c.hidden_size) as u64),
            Backbone::Gru(c) => Self::kept(3 * (c.num_layers * c.hidden_size) as u64),
            Backbone::Mamba(c) => {
                let inner = c.num_layers * c.hidden_size * c.expand_factor;
                let states = (inner * c.state_size) as u64;
                // A softplus and two SiLUs of each channel, and a decay of each of its states. The backward pass
                // recomputes them: storing the decays would take as many bytes as all states of all frames.
                let exponentials = states + 3 * inner as u64;
                Work {
                    multiply_adds: 3 * states + (inner * c.conv_size) as u64,
                    exponentials: [exponentials; 2],
                }
            }
            Backbone::SlidingWindow(c) => {
                let most = c.window_size as u64;
                // Pairs of a frame and a frame that it attends to, itself included.
                let seen: u64 = (1..=window).map(|frames| frames.min(most)).sum();
                let layers = (c.num_layers * c.num_heads) as u64;
                Work {
                    multiply_adds: 2 * layers * c.head_dim as u64 * seen / window.max(1),
                    exponentials: [layers * seen / window.max(1), 0],
                }
            }
            _ => Work::default(),
        }
    }

    fn kept(exponentials: u64) -> Self {
        Work { multiply_adds: 0, exponentials: [exponentials, 0] }
    }
}

/// Multiply-adds of the matrices for one frame. Rows of embeddings and of a prior's tables are looked up, which costs
/// none.
fn of_matrices(policy: &Policy) -> u64 {
    let is_table = |name: &str| name.contains("embedding.") || name.contains("prior.");
    let net = policy.spec().embedding.net().and_then(|net| net.check().ok());
    let of_net = net.map_or(0, |outline| outline.flops / 2);
    let matrices = policy.weights().iter().filter(|(name, w)| w.rank() == 2 && !is_table(name));
    of_net + matrices.map(|(_, weight)| weight.elem_count() as u64).sum::<u64>()
}

/// Random frames with labels; each frame has weight 1.
pub fn examples(spec: &Spec, batch: usize, window: usize, seed: u64) -> Batch {
    let rows = batch * window;
    let rng = |purpose: &str| Rng::new(seed, purpose, 0);
    let numbers = rng("bench.continuous");
    let count = (rows * spec.embedding.continuous_width()) as u64;
    let slots = spec.embedding.id_slots();
    let frames = Frames {
        batch,
        time: window,
        continuous: (0..count).map(|i| numbers.normal(i)).collect(),
        ids: below(rng("bench.ids"), rows, slots.iter().map(|slot| slot.rows)),
        previous: choices(spec, rng("bench.previous"), rows),
    };
    let labels = choices(spec, rng("bench.labels"), rows);
    Batch { frames, labels, weights: vec![1.0; rows], ..Batch::default() }
}

/// Random labels, `[rows, num_labels]`.
fn choices(spec: &Spec, rng: Rng, rows: usize) -> Vec<f32> {
    let kinds = spec.heads.parts.iter().map(|head| head.kind);
    let each = kinds.flat_map(|kind| std::iter::repeat_n(kind, kind.labels()));
    let each = std::iter::repeat_n(each, rows).flatten();
    let of = |(i, kind): (usize, HeadKind)| match kind.classes() {
        0 => kind.least() + rng.uniform(i as u64) * (kind.largest() - kind.least()),
        classes => rng.below(i as u64, classes as u64) as f32,
    };
    each.enumerate().map(of).collect()
}

/// Random integers: each row has one below each bound, `[rows, bounds]`.
fn below(rng: Rng, rows: usize, bounds: impl Iterator<Item = usize> + Clone) -> Vec<u32> {
    let bounds = std::iter::repeat_n(bounds, rows).flatten();
    bounds.enumerate().map(|(i, n)| rng.below(i as u64, n as u64) as u32).collect()
}

#[cfg(test)]
mod tests {
    use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, Melee, MlpConfig};

    use super::*;

    #[test]
    fn steps_on_the_same_examples_bring_the_loss_down() {
        let config = MlpConfig {
            hidden_sizes: vec![32],
            layer_norm: true,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let heads = Heads { prior: true, ..Heads::controller(HeadsKind::Independent) };
        for embedding in [Melee::default(), Melee::packed()] {
            let spec = Spec {
                embedding: Embedding::melee(embedding),
                backbone: Backbone::Mlp(config.clone()),
                heads: heads.clone(),
                critic: None,
            };
            let steps = Steps {
                batch: 4,
                window: 3,
                threads: 1,
                seed: 1,
                seconds: 0.0,
                min_steps: 5,
                precision: Precision::F32,
            };
            let times = step_times(&spec, &steps).unwrap();
            assert!(times.us.len() == 5 && times.us.iter().all(|us| *us > 0.0));
            assert!(times.last_loss < times.first_loss, "{times:?}");
        }
    }
}
