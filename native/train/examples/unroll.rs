//! Peak memory and CPU time of training steps (Linux): `unroll CELL LAYERS BATCH WINDOW STEPS CHUNK EVERY`.
//!
//! `CELL` is `gru` or `lstm`, or `stack`: a residual stack of `LAYERS` GRUs and as many feed-forward
//! layers, without heads and optimiser. `CHUNK` and `EVERY` are `truncate_bptt` and `checkpoint_every`, 0
//! for none. The peak is that of the whole process, so each run measures one setting.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;

use sconce_data::Batch;
use sconce_nn::backbone::stack::{FeedForward, Residual, Stack};
use sconce_nn::backbone::{Backbone, Cell, Context, Recurrent};
use sconce_nn::heads::NONE;
use sconce_nn::layer::{Linear, Norm};
use sconce_nn::policy::Frames;
use sconce_nn::spec::{self, Embedding, HeadKind, RecurrentConfig, Trunk};
use sconce_nn::{Policy, Spec};
use sconce_ops::Activation;
use sconce_ops::weights::{Builder, Source, Weight};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::tensor;
use sconce_tensor::{Error, Result, tape};
use sconce_train::objective::imitation::LossOptions;
use sconce_train::optimiser::OptimiserConfig;
use sconce_train::step::{Stepper, Unroll};

const INPUT: usize = 288;
const HIDDEN: usize = 256;

struct Case {
    batch: usize,
    window: usize,
    steps: usize,
    unroll: Unroll,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, numbers @ ..] = &arguments[..] else { return Err(Error::not_found("CELL")) };
    let number = |text: &String| {
        text.parse::<usize>().map_err(|_| Error::mismatch("argument", "a number", text))
    };
    let numbers = numbers.iter().map(number).collect::<Result<Vec<_>>>()?;
    let [layers, batch, window, steps, chunk, every] = numbers[..] else {
        return Err(Error::not_found("LAYERS BATCH WINDOW STEPS CHUNK EVERY"));
    };
    sconce_tensor::pool::keep_libraries_single_threaded();
    let some = |n: usize| (n > 0).then_some(n);
    let unroll = Unroll { truncate_bptt: some(chunk), recompute: some(every), ..Unroll::default() };
    let case = Case { batch, window, steps, unroll };
    let ms = match kind.as_str() {
        "stack" => stacked(&case, layers)?,
        "gru" => policy(&case, layers, spec::Backbone::Gru)?,
        "lstm" => policy(&case, layers, spec::Backbone::Lstm)?,
        other => return Err(Error::not_found(other)),
    };
    let peak = peak_kb().ok_or_else(|| Error::not_found("VmHWM"))? / 1024;
    println!("{:<24} {ms:8.0} ms of CPU a step {peak:6} MB peak", arguments.join(" "));
    Ok(())
}

fn config(num_layers: usize) -> RecurrentConfig {
    RecurrentConfig {
        hidden_size: HIDDEN,
        num_layers,
        layer_norm: true,
        input_norm: false,
        dropout: 0.1,
        input_dropout: 0.0,
        ..Default::default()
    }
}

fn policy(case: &Case, layers: usize, cell: fn(RecurrentConfig) -> spec::Backbone) -> Result<f64> {
    let part = spec::Head { name: "to".into(), kind: HeadKind::Categorical(17), hidden_size: 64 };
    let heads = spec::Heads {
        kind: spec::HeadsKind::Independent,
        parts: vec![part],
        stream_size: 8,
        prior: false,
    };
    let spec = Spec {
        embedding: Embedding::vector(INPUT),
        backbone: cell(config(layers)),
        heads,
        critic: None,
    };
    let n = case.batch * case.window;
    let rng = Rng::new(1, "examples", 0);
    let frames = Frames {
        batch: case.batch,
        time: case.window,
        continuous: (0..(n * INPUT) as u64).map(|i| rng.normal(i)).collect(),
        ids: vec![],
        previous: vec![NONE; n],
    };
    let labels: Vec<f32> = (0..n as u64).map(|i| rng.below(i, 17) as f32).collect();
    let weights = vec![1.0; n];
    let examples = &Batch { frames, labels, weights, ..Batch::default() };
    let policy = Policy::init(&spec, 1)?;
    let mut stepper =
        Stepper::imitating(&policy, &LossOptions::plain(), OptimiserConfig::default(), 1.0, 1)?
            .unrolling(case.unroll);
    timed(case.steps, |step| stepper.step(examples, step, 1e-4).map(drop))
}

fn stacked(case: &Case, layers: usize) -> Result<f64> {
    let b = Builder::new(Source::Seed(1), true);
    let mut residuals = vec![];
    for i in 0..layers {
        let b = b.under("layers").under(i);
        let cell = Recurrent::new(Cell::Gru, &config(1), HIDDEN, &b)?;
        residuals.push(Arc::new(Residual::new(Norm::rms(HIDDEN, &b.under("norm"))?, cell)?));
        let b = b.under("mlp");
        let up = Linear::new(HIDDEN, 2 * HIDDEN, Activation::Gelu, &b.under("up"))?;
        let layer =
            FeedForward::new(up, Linear::without_bias(2 * HIDDEN, HIDDEN, &b.under("down"))?);
        residuals.push(Arc::new(Residual::new(Norm::rms(HIDDEN, &b.under("norm"))?, layer)?));
    }
    let trunk = Trunk {
        hidden_size: HIDDEN,
        num_layers: layers,
        input_norm: false,
        dropout: 0.1,
        input_dropout: 0.0,
    };
    let stack = Stack::new(&trunk, INPUT, residuals, None, &b)?;
    let weights = b.finish()?;
    let rng = Rng::new(1, "examples", 0);
    let numbers = (case.batch * case.window * INPUT) as u64;
    let x =
        tensor((0..numbers).map(|i| rng.normal(i)).collect(), (case.batch, case.window, INPUT))?;
    timed(case.steps, |step| {
        let mut state = stack.zero_state(case.batch)?;
        let _tape = tape::record();
        let chunk = case.unroll.truncate_bptt.unwrap_or(case.window);
        for from in (0..case.window).step_by(chunk) {
            let frames = chunk.min(case.window - from);
            let mut context = Context::training(1, step).chunk(case.window, from, frames);
            if let Some(every) = case.unroll.recompute {
                context = context.recomputing(every);
            }
            let (y, next) = stack.forward(&x.narrow(1, from, frames)?, &state, &context)?;
            let store = tape::backward(&y, y.ones_like()?)?;
            weights.values().try_for_each(|w| w.gather(&store).map(drop))?;
            state = next.hand_on()?;
        }
        weights.values().for_each(Weight::forget);
        Ok(())
    })
}

/// CPU time of a step over all threads in milliseconds, without the first step.
fn timed(steps: usize, mut step: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    step(0)?;
    let before = cpu_ms();
    let steps = steps.max(2) as u64;
    (1..steps).try_for_each(&mut step)?;
    Ok((cpu_ms() - before) / (steps - 1) as f64)
}

/// CPU time of the process; Linux counts it in hundredths of a second.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * 10.0
}

/// Peak resident size of the process so far, in KiB.
fn peak_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
