//! Checks of a build with CUDA on the first card: `card SUBJECT [--small]`. `bin/card` runs the subjects one by one.
//! Each ends with a line of results, or with an error. `figures` prints a JSON line for each figure: microseconds of a
//! step, frames a second, and the figures of the loader. `spans` shows where the time of the loader's run goes.

#[path = "card/figures.rs"]
mod figures;
#[path = "card/games.rs"]
mod games;
#[path = "card/more.rs"]
mod more;

use std::sync::atomic::AtomicBool;

use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::{DType, Device, Tensor};
use mimalloc::MiMalloc;
use sconce_data::{Batch, Corpus, Schema, VectorGame};
use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::{Frames, unrecorded};
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{
    Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MambaConfig, RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Kind, Precision, Result, device, tensor};
use sconce_train::bench::examples;
use sconce_train::objective::imitation::LossOptions;
use sconce_train::optimiser::OptimiserConfig;
use sconce_train::options::{
    DataOptions, MachineOptions, SavingOptions, ScheduleOptions, TrainOptions,
};
use sconce_train::run::run;
use sconce_train::step::Stepper;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The allocator of the library.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|argument| argument == "--small");
    let subject = arguments.first().map(String::as_str).unwrap_or_default();
    sconce_tensor::pool::keep_libraries_single_threaded();
    let seen = match subject {
        "name" => name()?.to_string(),
        "learn" => learn(small)?,
        "games" => games::learned(small)?,
        "full" => full(small)?,
        "cycles" => cycles(small)?,
        "replay" => replay(small)?,
        "bf16" => bf16(small)?,
        "figures" => figures::all(small)?,
        "spans" => figures::spans(small)?,
        "first" => more::first(small)?,
        "windows" => more::windows(small)?,
        "padding" => more::padding(small)?,
        "sizes" => more::sizes(small)?,
        "step" => more::step(&arguments, small)?,
        "act" => more::act(&arguments, small)?,
        other => return Err(Error::not_found(format!("a subject {other}"))),
    };
    println!("{seen}");
    Ok(())
}

/// The error of a result other than the expected one.
fn wrong(expected: impl ToString, got: impl ToString) -> Error {
    Error::mismatch("what a card does", expected, got)
}

fn name() -> Result<Value> {
    device::check(&[0])?;
    let card = result::device::get(0).map_err(candle_core::Error::wrap)?;
    let name = result::device::get_name(card).map_err(candle_core::Error::wrap)?;
    let attribute = |which| {
        // SAFETY: the driver has just returned this card.
        unsafe { result::device::get_attribute(card, which) }.map_err(candle_core::Error::wrap)
    };
    let major = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let minor = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    Ok(json!({
        "name": name,
        "capability": format!("{}.{}", attribute(major)?, attribute(minor)?),
    }))
}

/// Numbers of a frame. Heads predict the sign of one and whether two are large.
const SIZE: usize = 6;

fn spec(backbone: Backbone) -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let parts = vec![head("sign", HeadKind::Categorical(3)), head("large", HeadKind::Bernoulli(2))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false };
    Spec { embedding: Embedding::vector(SIZE), backbone, heads, critic: None }
}

fn recurrent(hidden_size: usize) -> RecurrentConfig {
    RecurrentConfig {
        hidden_size,
        num_layers: 2,
        layer_norm: true,
        input_norm: true,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    }
}

fn mamba(hidden_size: usize) -> MambaConfig {
    MambaConfig {
        hidden_size,
        num_layers: 2,
        state_size: 16,
        expand_factor: 2,
        conv_size: 4,
        input_norm: true,
        dropout: 0.0,
        input_dropout: 0.0,
    }
}

/// The numbers of a game's frames.
fn numbers(game: u64, frames: usize) -> Vec<f32> {
    let rng = Rng::new(1, "card", game);
    (0..(frames * SIZE) as u64).map(|i| rng.normal(i)).collect()
}

/// Labels of each frame. One depends on the frame before, so that a memory is needed.
fn labels(x: &[f32]) -> Vec<f32> {
    let frame = |t: usize| {
        let now = &x[t * SIZE..][..SIZE];
        let before = &x[t.saturating_sub(1) * SIZE..][..SIZE];
        let sign = if now[0].abs() < 0.1 { 2 } else { u16::from(now[0] > 0.0) };
        [sign, u16::from(now[1] > 0.5), u16::from(before[1] > 0.5)].map(f32::from)
    };
    (0..x.len() / SIZE).flat_map(frame).collect()
}

fn game(game: u64, frames: usize) -> VectorGame {
    let x = numbers(game, frames);
    VectorGame { labels: labels(&x), x }
}

/// A run on a card learns. Its policy, loaded again, plays there as on the CPU, with the right choices.
fn learn(small: bool) -> Result<String> {
    let (games, frames, steps, hidden) = if small { (8, 90, 40, 16) } else { (40, 600, 400, 128) };
    let folder = folder()?;
    // A norm of the input would hide the thresholds of the labels.
    let config = RecurrentConfig { input_norm: false, ..recurrent(hidden) };
    let spec = spec(Backbone::Gru(config));
    let all: Vec<VectorGame> = (0..games).map(|number| game(number, frames)).collect();
    let corpus =
        Corpus::build(&Schema::vector(SIZE, &spec.heads), &all, &folder.path().join("corpus"))?;
    let options = TrainOptions {
        data: DataOptions {
            batch_size: if small { 8 } else { 64 },
            window_size: 20,
            stride: 10,
            val_split: 0.25,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions {
            steps: Some(steps),
            learning_rate: 1e-2,
            ..ScheduleOptions::default()
        },
        saving: SavingOptions { validate_every: Some(steps / 4), ..SavingOptions::default() },
        machine: MachineOptions { device: "cuda:0".into(), ..MachineOptions::default() },
        ..TrainOptions::default()
    };
    let out = folder.path().join("run");
    let report = run(&corpus, &spec, &options, &out, &|_| (), &AtomicBool::new(false))?;
    let losses: Vec<f64> = report.history.iter().filter_map(|point| point.nll).collect();
    let (Some(first), Some(last)) = (losses.first(), losses.last()) else {
        return Err(wrong("validations", losses.len()));
    };
    // 2.2 nats without any learning.
    let bound = if small { 0.9 * first } else { 0.6 };
    if *last >= bound {
        return Err(wrong(format!("less than {bound} nats after {first}"), last));
    }

    let there = device::open(0)?;
    let policy = Policy::load(&out.join("best.safetensors"))?;
    let new: Vec<VectorGame> = (0..4).map(|number| game(1000 + number, 60)).collect();
    let seen = joined(&new);
    let (here, on_card) = (play(&policy, &seen)?, play(&policy.copy_on(&there)?, &seen)?);
    let apart = apart(&here, &on_card);
    if apart > 1e-3 {
        return Err(wrong("logits of the CPU within 0.001", apart));
    }
    let right = signs(&on_card, &new);
    match small || right > 0.8 {
        true => Ok(format!(
            "{first:.3} nats, then {last:.3}; {:.0} % of signs are right; logits {apart:.1e} from the CPU's",
            100.0 * right
        )),
        false => Err(wrong("four signs of five that are right", right)),
    }
}

/// A temporary folder.
fn folder() -> Result<TempDir> {
    let none = |error: std::io::Error| Error::Unavailable {
        what: "a folder for a corpus".into(),
        reason: error.to_string(),
    };
    tempfile::tempdir().map_err(none)
}

/// Games of equally many frames as one batch.
fn joined(games: &[VectorGame]) -> Frames {
    let continuous: Vec<f32> = games.iter().flat_map(|game| &game.x).copied().collect();
    let rows = continuous.len() / SIZE;
    let previous = vec![sconce_nn::heads::NONE; 3 * rows];
    Frames { batch: games.len(), time: rows / games.len(), continuous, ids: vec![], previous }
}

/// Frame `t` of each of some games.
fn frame(games: &Frames, t: usize) -> Frames {
    games.part(&(0..games.batch), &(t..t + 1))
}

/// Logits `[t, b, num_logits]` of games that are stepped together, frame by frame.
fn play(policy: &Policy, games: &Frames) -> Result<Vec<f32>> {
    let mut states = vec![policy.zero_state(1)?; games.batch];
    let mut logits = vec![];
    let (sampling, rngs) = (Sampling::default(), [Rng::new(0, "act", 0)]);
    let draws =
        vec![Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None }; games.batch];
    for t in 0..games.time {
        let own: Vec<&State> = states.iter().collect();
        let stepped = policy.step_games(&frame(games, t), &own, &draws)?;
        for (state, stepped) in states.iter_mut().zip(stepped) {
            let (own, after) = stepped?;
            logits.extend(own.logits);
            *state = after;
        }
    }
    Ok(logits)
}

/// Share of frames whose most likely sign is the right one.
fn signs(logits: &[f32], games: &[VectorGame]) -> f64 {
    const LOGITS: usize = 5;
    let rows = logits.chunks_exact(LOGITS).enumerate();
    let right = rows.filter(|(row, logits)| {
        let (t, game) = (row / games.len(), row % games.len());
        let most = (0..3).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        most == Some(games[game].labels[3 * t] as usize)
    });
    right.count() as f64 / (logits.len() / LOGITS).max(1) as f64
}

/// Largest difference, relative to the largest number.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let scale = a.iter().fold(1e-6f32, |most, v| most.max(v.abs()));
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    // A NaN is kept as the largest difference.
    let most = differences.fold(0.0f32, |most, v| if v <= most { most } else { v });
    if a.len() == b.len() { most / scale } else { f32::INFINITY }
}

fn stepper(policy: &Policy, precision: Precision) -> Result<Stepper<'static>> {
    let (loss, config) = (LossOptions::plain(), OptimiserConfig::default());
    Ok(Stepper::imitating(policy, &loss, config, 1.0, 7)?.in_precision(precision))
}

/// A full card causes an error, after which steps succeed again.
fn full(small: bool) -> Result<String> {
    let device = device::open(0)?;
    let spec = spec(Backbone::Gru(recurrent(if small { 16 } else { 256 })));
    let policy = Policy::init(&spec, 3)?.on(&device)?;
    let mut stepper = stepper(&policy, Precision::F32)?;
    let x = &examples(&spec, 8, 20, 1);
    stepper.step(x, 0, 1e-3)?;

    let (mut taken, mut bytes, mut errors): (Vec<Tensor>, _, _) = (vec![], 1usize << 36, 0);
    while bytes >= 1 << 20 {
        match Tensor::zeros(bytes, DType::U8, &device).map_err(Error::from) {
            Ok(tensor) => taken.push(tensor),
            Err(error) if error.kind() == Kind::OutOfMemory => {
                (bytes, errors) = (bytes / 2, errors + 1)
            }
            Err(error) => return Err(error),
        }
    }
    let held: usize = taken.iter().map(Tensor::elem_count).sum();
    let large = &examples(&spec, 256, 60, 1);
    match stepper.step(large, 1, 1e-3) {
        Err(error) if error.kind() == Kind::OutOfMemory => stepper.forget(),
        Err(error) => return Err(error),
        Ok(_) => return Err(wrong("no memory for a step", "a step")),
    }
    drop(taken);
    let loss = stepper.step(x, 1, 1e-3)?.figures.total;
    match loss.is_finite() {
        true => {
            Ok(format!("{errors} errors with {held} bytes taken; then a step of loss {loss:.3}"))
        }
        false => Err(wrong("a loss", loss)),
    }
}

/// Bytes in use on this thread's card, by any process.
fn in_use(device: &Device) -> Result<usize> {
    device.synchronize()?;
    let (free, total) = result::mem_get_info().map_err(candle_core::Error::wrap)?;
    Ok(total - free)
}

/// Opens, trains, plays and closes a hundred times: the memory in use after the last cycle is that after the first.
fn cycles(small: bool) -> Result<String> {
    // Context and cuBLAS stay.
    let stays = device::open(0)?;
    let count = if small { 5 } else { 100 };
    let spec = spec(Backbone::Gru(recurrent(if small { 16 } else { 256 })));
    let x = &examples(&spec, 8, 20, 1);
    let game = joined(&[game(1, 5)]);
    let mut first = 0;
    for cycle in 0..count {
        let device = device::open(0)?;
        let policy = Policy::init(&spec, cycle)?.on(&device)?;
        stepper(&policy, Precision::F32)?.step(x, 0, 1e-3)?;
        // A separate thread owns its graphs, and frees them at its end.
        std::thread::scope(|scope| scope.spawn(|| play(&policy, &game)).join())
            .map_err(|_| wrong("a game", "a panic"))??;
        drop((policy, device));
        if cycle == 0 {
            first = in_use(&stays)?;
        }
    }
    let last = in_use(&stays)?;
    let seen = format!("{first} bytes in use after the first cycle, {last} after {count}");
    if last <= first { Ok(seen) } else { Err(wrong("no more than after the first", seen)) }
}

/// Recorded steps of games and of training give the same as steps that are launched one by one.
fn replay(small: bool) -> Result<String> {
    let device = device::open(0)?;
    let hidden = if small { 16 } else { 256 };
    let mut most = 0.0f32;
    for backbone in [
        Backbone::Gru(recurrent(hidden)),
        Backbone::Lstm(recurrent(hidden)),
        Backbone::Mamba(mamba(hidden)),
    ] {
        let (name, spec) = (backbone.name(), spec(backbone));
        let policy = Policy::init(&spec, 3)?.on(&device)?;
        let games: Vec<VectorGame> = (0..4).map(|number| game(number, 8)).collect();
        let games = joined(&games);
        let recorded = play(&policy, &games)?;
        let mut state = policy.zero_state(games.batch)?;
        let mut launched = vec![];
        for t in 0..games.time {
            let rngs = vec![Rng::new(0, "act", t as u64); games.batch];
            let draw =
                Draw { sampling: &Sampling::default(), rngs: &rngs, given: None, mask: None };
            let (decision, after) =
                policy.act(&frame(&games, t), &state, draw, &Context::default())?;
            launched.extend(decision.logits);
            state = after;
        }
        most = most.max(same(&format!("logits of {name}"), &recorded, &launched)?);

        let x = &examples(&spec, 8, 20, 1);
        let (mut eager, mut graph) =
            (stepper(&policy, Precision::F32)?, stepper(&policy, Precision::F32)?);
        if !graph.records(x) {
            return Err(wrong(format!("steps of {name} that are recorded"), "none"));
        }
        let zero = policy.zero_state(8)?;
        let mut losses = (vec![], vec![]);
        for step in 0..5 {
            losses.0.push(eager.step(x, step, 1e-3)?.figures.total as f32);
            graph.begin(x, &zero, step, 1e-3)?;
        }
        for result in graph.results()? {
            losses.1.push(result?.figures.total as f32);
        }
        most = most.max(same(&format!("losses of {name}"), &losses.0, &losses.1)?);
        let all = |stepper: &Stepper| -> Result<Vec<f32>> {
            let weights = stepper.policy().weights().values();
            let parts: Vec<Vec<f32>> =
                weights.map(|w| tensor::to_vec(w)).collect::<candle_core::Result<_>>()?;
            Ok(parts.concat())
        };
        most = most.max(same(&format!("weights of {name}"), &all(&eager)?, &all(&graph)?)?);
    }
    match unrecorded() {
        0 => Ok(format!("at most {most:.1e} apart, of the largest number")),
        some => Err(wrong("steps that are all recorded", format!("{some} that are not"))),
    }
}

fn same(what: &str, a: &[f32], b: &[f32]) -> Result<f32> {
    let apart = apart(a, b);
    match apart <= 1e-5 {
        true => Ok(apart),
        false => Err(wrong(format!("{what} within 0.00001"), apart)),
    }
}

/// Policies trained in tf32 and bf16 are as good on new frames as one trained in f32.
fn bf16(small: bool) -> Result<String> {
    let device = device::open(0)?;
    let (steps, hidden) = if small { (12, 16) } else { (300, 128) };
    let mut seen = vec![];
    for backbone in [Backbone::Lstm(recurrent(hidden)), Backbone::Mamba(mamba(hidden))] {
        let (name, spec) = (backbone.name(), spec(backbone));
        let policy = Policy::init(&spec, 3)?.on(&device)?;
        let [f32, tf32, bf16] = [Precision::F32, Precision::Tf32, Precision::Bf16]
            .map(|precision| trained(&policy, precision, steps));
        let (f32, tf32, bf16) = (f32?, tf32?, bf16?);
        let told = format!("{name} {f32:.4} nats in f32, {tf32:.4} in tf32, {bf16:.4} in bf16");
        if tf32.max(bf16) > 1.05 * f32 + 0.01 {
            return Err(wrong("tf32 and bf16 no worse by a twentieth", told));
        }
        seen.push(told);
    }
    Ok(seen.join("; "))
}

/// Mean loss of the last tenth of the steps. Each step sees new frames.
fn trained(policy: &Policy, precision: Precision, steps: u64) -> Result<f64> {
    const GAMES: u64 = 16;
    const TIME: usize = 20;
    let mut stepper = stepper(policy, precision)?;
    let mut losses = vec![];
    for step in 0..steps {
        let games: Vec<VectorGame> = (0..GAMES).map(|i| game(step * GAMES + i, TIME)).collect();
        let frames = joined(&games);
        let labels: Vec<f32> = games.iter().flat_map(|game| &game.labels).copied().collect();
        let weights = vec![1.0; games.len() * TIME];
        let x = &Batch { frames, labels, weights, ..Batch::default() };
        losses.push(stepper.step(x, step, 5e-3)?.figures.total);
    }
    let last = &losses[losses.len() - losses.len().div_ceil(10)..];
    Ok(last.iter().sum::<f64>() / last.len() as f64)
}
