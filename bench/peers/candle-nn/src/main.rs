//! One optimiser step of the MLP, the LSTM and the GRU in candle-nn. Rows have the format of `../train.py`.
//!
//!     RAYON_NUM_THREADS=2 cargo run --release -- --threads 2 --budget 1 --cases train_gru
//!
//! A step is forward, BCE of the buttons and cross entropy of five heads on all frames, backward, clip to
//! the global norm 1, AdamW. Candle reads its thread count from the environment, which `run.py` sets.

use std::env;
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::optim::ParamsAdamW;
use candle_nn::{AdamW, Module, Optimizer, RNN, VarBuilder, VarMap, loss};

const INPUTS: usize = 288;
const WIDTH: usize = 256;
const FRAMES: usize = 60;
const BITS: usize = 8;
const CLASSES: [usize; 5] = [17, 17, 17, 17, 5];
const OUTPUTS: usize = BITS + 17 * 4 + 5;

type Network = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// Builds a network that maps the inputs of a batch to rows of logits.
fn network(kind: &str, b: VarBuilder) -> Result<Network> {
    Ok(match kind {
        "mlp" => {
            let layer = |i: usize, from: usize| -> Result<_> {
                let b = b.pp(i);
                Ok((
                    candle_nn::linear(from, 512, b.pp("dense"))?,
                    candle_nn::layer_norm(512, 1e-5, b.pp("norm"))?,
                ))
            };
            let (layers, head) = (
                [layer(0, INPUTS)?, layer(1, 512)?],
                candle_nn::linear(512, OUTPUTS, b.pp("head"))?,
            );
            Box::new(move |x| {
                let mut x = x.clone();
                for (dense, norm) in &layers {
                    x = norm.forward(&dense.forward(&x)?)?.relu()?;
                }
                head.forward(&x)
            })
        }
        "lstm" => recurrent(b, |from, b| candle_nn::lstm(from, WIDTH, Default::default(), b))?,
        "gru" => recurrent(b, |from, b| candle_nn::gru(from, WIDTH, Default::default(), b))?,
        other => candle_core::bail!("unknown network {other}"),
    })
}

/// Two recurrent layers and the head.
fn recurrent<R: RNN + 'static>(
    b: VarBuilder,
    layer: impl Fn(usize, VarBuilder) -> Result<R>,
) -> Result<Network> {
    let layers = [layer(INPUTS, b.pp(0))?, layer(WIDTH, b.pp(1))?];
    let head = candle_nn::linear(WIDTH, OUTPUTS, b.pp("head"))?;
    Ok(Box::new(move |x| {
        let (mut x, batch) = (x.clone(), x.dim(0)?);
        for layer in &layers {
            // A GRU returns its frames concatenated, so the shape is restored.
            x = layer.states_to_tensor(&layer.seq(&x)?)?.reshape((batch, FRAMES, WIDTH))?;
        }
        head.forward(&x)?.flatten_to(1)
    }))
}

fn total(logits: &Tensor, bits: &Tensor, classes: &[Tensor]) -> Result<Tensor> {
    let mut sum = loss::binary_cross_entropy_with_logit(&logits.narrow(1, 0, BITS)?, bits)?;
    let mut from = BITS;
    for (labels, count) in classes.iter().zip(CLASSES) {
        sum = (sum + loss::cross_entropy(&logits.narrow(1, from, count)?, labels)?)?;
        from += count;
    }
    Ok(sum)
}

/// Scales gradients whose global norm is above 1.
fn clip(gradients: &mut GradStore, all: &[Var]) -> Result<()> {
    let mut squares = 0.0;
    for var in all {
        if let Some(gradient) = gradients.get(var) {
            squares += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
        }
    }
    let norm = squares.sqrt();
    for var in all {
        if norm > 1.0
            && let Some(gradient) = gradients.remove(var)
        {
            gradients.insert(var, (gradient / norm)?);
        }
    }
    Ok(())
}

/// Microseconds of steps, sorted ascending. The loss must fall.
fn measure(kind: &str, batch: usize, budget: Duration) -> Result<Vec<f64>> {
    let device = Device::Cpu;
    let weights = VarMap::new();
    let forward = network(kind, VarBuilder::from_varmap(&weights, DType::F32, &device))?;
    let (x, rows) = match kind {
        "mlp" => (Tensor::randn(0f32, 1., (batch, INPUTS), &device)?, batch),
        _ => (Tensor::randn(0f32, 1., (batch, FRAMES, INPUTS), &device)?, batch * FRAMES),
    };
    let bits = Tensor::rand(0f32, 1., (rows, BITS), &device)?.lt(0.2f32)?.to_dtype(DType::F32)?;
    let class = |count: usize| {
        let labels: Vec<u32> = (0..rows).map(|row| (row * 7 % count) as u32).collect();
        Tensor::new(labels, &device)
    };
    let classes = CLASSES.iter().map(|count| class(*count)).collect::<Result<Vec<_>>>()?;
    let all = weights.all_vars();
    let params = ParamsAdamW { lr: 1e-4, weight_decay: 1e-2, ..Default::default() };
    let mut adam = AdamW::new(all.clone(), params)?;
    let mut step = || -> Result<f32> {
        let loss = total(&forward(&x)?, &bits, &classes)?;
        let mut gradients = loss.backward()?;
        clip(&mut gradients, &all)?;
        adam.step(&gradients)?;
        loss.to_scalar()
    };
    let first = step()?;
    let (mut us, mut last, clock) = (vec![], first, Instant::now());
    while us.len() < 5 || clock.elapsed() < budget {
        let start = Instant::now();
        last = step()?;
        us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    if last >= first {
        candle_core::bail!("{kind}: the loss did not fall: {first} to {last}");
    }
    us.sort_by(f64::total_cmp);
    Ok(us)
}

fn main() -> Result<()> {
    let given: Vec<String> = env::args().collect();
    let after = |name: &str| given.iter().position(|a| a == name).and_then(|i| given.get(i + 1));
    let threads = after("--threads").map_or("1", String::as_str);
    let seconds = after("--budget").and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let wanted: Vec<&str> = after("--cases")
        .map_or(vec!["train_mlp", "train_lstm", "train_gru"], |s| s.split(',').collect());
    for case in wanted {
        let kind = case.trim_start_matches("train_");
        let batch = if kind == "mlp" { 256 } else { 32 };
        let us = measure(kind, batch, Duration::from_secs_f64(seconds))?;
        let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
        println!(
            r#"{{"peer": "candle-nn", "case": "{case}", "batch": {batch}, "threads": {threads}, "median_us": {:.3}, "p95_us": {:.3}, "p99_us": {:.3}, "n": {}}}"#,
            at(0.5),
            at(0.95),
            at(0.99),
            us.len(),
        );
    }
    Ok(())
}
