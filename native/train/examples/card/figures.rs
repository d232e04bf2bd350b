//! Times of steps after a warm-up. Each time includes the wait for the card.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use sconce_nn::backbone::State;
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{
    AttentionConfig, Backbone, Embedding, Heads, HeadsKind, MambaConfig, Melee, MlpConfig,
    RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Result, device, trace};
use sconce_train::bench::examples;
use sconce_train::options::{
    DataOptions, MachineOptions, SavingOptions, ScheduleOptions, TrainOptions,
};
use sconce_train::report::Event;
use sconce_train::run::run;
use sconce_train::step::Stepper;
use serde_json::{Value, json};

use crate::games::Games;
use crate::more::PRECISIONS;
use crate::{mamba, recurrent, stepper};

/// Numbers of a frame.
const INPUT: usize = 288;

/// Training steps whose losses are read together, as a run reads them.
const TOGETHER: usize = 8;

/// Sizes of what is timed.
pub struct Times {
    pub warm_up: usize,
    /// Minimum time of a figure.
    pub least: Duration,
    pub frames: usize,
    pub hidden: usize,
    pub batch: usize,
}

impl Times {
    pub fn of(small: bool) -> Self {
        match small {
            true => Times::least(),
            false => Times {
                warm_up: 20,
                least: Duration::from_millis(400),
                frames: 60,
                hidden: 256,
                batch: 256,
            },
        }
    }

    pub fn least() -> Self {
        Times { warm_up: 2, least: Duration::ZERO, frames: 6, hidden: 16, batch: 4 }
    }
}

pub fn all(small: bool) -> Result<String> {
    let (device, times) = (device::open(0)?, Times::of(small));
    for (name, backbone) in backbones(&times) {
        let spec = spec(backbone);
        let policy = Policy::init(&spec, 1)?;
        for batch in [1, 32] {
            tell("act", name, batch, "f32", acted(&policy.copy_on(&device)?, batch, &times, 10)?);
        }
        let window = if name == "mlp" { 1 } else { times.frames };
        for (precision, label) in PRECISIONS {
            let shape = [times.batch, window];
            let frames_per_second = |us: &Us| (shape[0] * shape[1]) as f64 / us.median * 1e6;
            let stepper = stepper(&policy.copy_on(&device)?, precision)?;
            let records = stepper.records(&examples(&spec, shape[0], shape[1], 1));
            let (us, stepper) = trained(stepper, &spec, shape, &times, Batches::New)?;
            let told = json!({ "frames_per_second": frames_per_second(&us).round() });
            tell("train_fed", name, times.batch, label, us.with(told));
            let (us, _) = trained(stepper, &spec, shape, &times, Batches::There)?;
            let per_second = frames_per_second(&us).round();
            let told = json!({ "recorded": records, "frames_per_second": per_second });
            tell("train", name, times.batch, label, us.with(told));
        }
    }
    loader(&times, small)?;
    Ok("every figure was taken".into())
}

pub fn tell(what: &str, name: &str, batch: usize, precision: &str, told: impl Into<Value>) {
    let mut line =
        json!({ "figure": what, "backbone": name, "batch": batch, "precision": precision });
    if let (Some(line), Value::Object(told)) = (line.as_object_mut(), told.into()) {
        line.extend(told);
    }
    println!("{line}");
}

/// Quantiles of times in microseconds.
pub struct Us {
    median: f64,
    p99: f64,
    count: usize,
}

impl Us {
    fn of(mut us: Vec<f64>) -> Self {
        us.sort_by(f64::total_cmp);
        let at = |share: f64| us.get(((us.len() - 1) as f64 * share) as usize).copied();
        Us {
            median: at(0.5).unwrap_or(f64::NAN),
            p99: at(0.99).unwrap_or(f64::NAN),
            count: us.len(),
        }
    }

    pub fn with(self, more: Value) -> Value {
        let mut told = Value::from(self);
        if let (Some(told), Value::Object(more)) = (told.as_object_mut(), more) {
            told.extend(more);
        }
        told
    }
}

impl From<Us> for Value {
    fn from(us: Us) -> Value {
        let tenths = |us: f64| (us * 10.0).round() / 10.0;
        json!({ "us": tenths(us.median), "p99_us": tenths(us.p99), "count": us.count })
    }
}

pub fn spec(backbone: Backbone) -> Spec {
    let mut heads = Heads::controller(HeadsKind::Independent);
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    Spec { embedding: Embedding::vector(INPUT), backbone, heads, critic: None }
}

/// The Spec with that many numbers a frame.
pub fn with_inputs(spec: Spec, inputs: usize) -> Spec {
    Spec { embedding: Embedding::vector(inputs), ..spec }
}

pub fn backbones(times: &Times) -> [(&'static str, Backbone); 5] {
    let hidden = times.hidden;
    let mlp = MlpConfig {
        hidden_sizes: vec![2 * hidden; 2],
        layer_norm: true,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let attention = AttentionConfig {
        hidden_size: hidden,
        num_layers: 2,
        num_heads: 8,
        head_dim: hidden / 8,
        window_size: times.frames,
        qk_layernorm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    // As in cuDNN.
    let recurrent = RecurrentConfig { layer_norm: false, input_norm: false, ..recurrent(hidden) };
    let mamba = MambaConfig { input_norm: false, ..mamba(hidden) };
    [
        ("mlp", Backbone::Mlp(mlp)),
        ("mamba", Backbone::Mamba(mamba)),
        ("lstm", Backbone::Lstm(recurrent.clone())),
        ("gru", Backbone::Gru(recurrent)),
        ("attention", Backbone::SlidingWindow(attention)),
    ]
}

/// Times of work after the warm-up.
pub fn timed(times: &Times, mut work: impl FnMut() -> Result<()>) -> Result<Us> {
    for _ in 0..times.warm_up {
        work()?;
    }
    measured(times, 3, || {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    })
}

/// At least that many times in microseconds, of work that times itself.
fn measured(times: &Times, count: usize, mut work: impl FnMut() -> Result<f64>) -> Result<Us> {
    let (mut us, clock) = (vec![], Instant::now());
    while us.len() < count || clock.elapsed() < times.least {
        us.push(work()?);
    }
    Ok(Us::of(us))
}

/// Times of one frame of each of `batch` games, from frames to logits, at least `count` of them. The memories have read
/// a window before.
pub fn acted(policy: &Policy, batch: usize, times: &Times, count: usize) -> Result<Us> {
    let mut frames = examples(policy.spec(), batch, 1, 1).frames;
    frames.previous = vec![NONE; frames.previous.len()];
    let mut states = vec![policy.zero_state(1)?; batch];
    for _ in 0..times.frames.max(times.warm_up) {
        states = stepped(policy, &frames, &states)?;
    }
    measured(times, count, || {
        let start = Instant::now();
        states = stepped(policy, &frames, &states)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    })
}

fn stepped(policy: &Policy, frames: &Frames, states: &[State]) -> Result<Vec<State>> {
    let own: Vec<&State> = states.iter().collect();
    let (sampling, rngs) = (Sampling::default(), [Rng::new(0, "act", 0)]);
    let draws = vec![Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None }; own.len()];
    policy.step_games(frames, &own, &draws)?.into_iter().map(|one| Ok(one?.1)).collect()
}

/// Where the batches of steps come from.
#[derive(Clone, Copy, PartialEq)]
pub enum Batches {
    /// From the host, one for each step, as in a run.
    New,
    /// The first batch stays on the card, as in the figures of the peers.
    There,
}

/// Times of steps as a run makes them: recorded if possible, with losses read now and then. Returns the stepper too,
/// which still holds its memory.
pub fn trained<'a>(
    mut stepper: Stepper<'a>,
    spec: &Spec,
    [batch, window]: [usize; 2],
    times: &Times,
    batches: Batches,
) -> Result<(Us, Stepper<'a>)> {
    let x = &examples(spec, batch, window, 1);
    let (recorded, zero) = (stepper.records(x), stepper.policy().zero_state(batch)?);
    let mut next = 0;
    let mut some = |count: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            match recorded {
                true if next > 0 && batches == Batches::There => {
                    stepper.again(x, &zero, next, 1e-3)?
                }
                true => drop(stepper.begin(x, &zero, next, 1e-3)?),
                false => drop(stepper.step(x, next, 1e-3)?),
            }
            next += 1;
        }
        stepper.results()?.into_iter().try_for_each(|result| result.map(drop))?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
    };
    some(TOGETHER)?;
    let us = measured(times, 3, || some(TOGETHER))?;
    Ok((us, stepper))
}

/// The run of [`loader`] once more, and its spans by kind and name, with their sums of time.
pub fn spans(small: bool) -> Result<String> {
    let trace = trace::start();
    loader(&Times::of(small), small)?;
    let recording = trace.end();
    for row in recording.rows() {
        let (kind, ms) = (row.kind.name(), row.time.as_secs_f64() * 1e3);
        println!("{kind:10} {:24} {:8} {ms:10.1} ms", row.name, row.count);
    }
    Ok(format!("{:.1} s", recording.time().as_secs_f64()))
}

/// Share of its time in which a run waits for data: windows of Melee games, drawn, mirrored, embedded and uploaded to
/// the card while the run learns from earlier windows.
fn loader(times: &Times, small: bool) -> Result<()> {
    let games = Games::found(small)?;
    let spec = Spec {
        embedding: Embedding::melee(Melee::packed()),
        ..spec(Backbone::Mamba(MambaConfig { input_norm: false, ..mamba(times.hidden) }))
    };
    // Steps whose figures are read together are a sixteenth of each part.
    let (steps, warm) = if small { (6, 3) } else { (512, 256) };
    let threads = thread::available_parallelism().map_or(1, |processors| processors.get() / 2);
    let options = TrainOptions {
        data: DataOptions {
            batch_size: times.batch,
            window_size: times.frames,
            stride: times.frames / 3,
            mirror: 0.5,
            noise: 0.3,
            val_split: 0.0,
            loader_threads: threads.max(1),
            prefetch: 2 * threads.max(1),
            ..DataOptions::default()
        },
        schedule: ScheduleOptions { steps: Some(steps), ..ScheduleOptions::default() },
        saving: SavingOptions { evaluate: false, ..SavingOptions::default() },
        machine: MachineOptions { device: "cuda:0".into(), ..MachineOptions::default() },
        ..TrainOptions::default()
    };
    // Frames, seconds of waiting, and the first and the last moment, from step `warm` on.
    let spent: Cell<(f64, f64, Option<[Instant; 2]>)> = Cell::new((0.0, 0.0, None));
    let note = |event| {
        if let Event::Step { step, frames_per_second, step_seconds, data_wait, .. } = event
            && step >= warm
        {
            let ((frames, waited, clock), now) = (spent.get(), Instant::now());
            spent.set(match clock {
                None => (0.0, 0.0, Some([now, now])),
                Some([first, _]) => {
                    let more = frames_per_second * step_seconds;
                    (frames + more, waited + data_wait, Some([first, now]))
                }
            });
        }
    };
    let out = games.path().join("loader");
    run(&games.train, &spec, &options, &out, &note, &AtomicBool::new(false))?;
    let (frames, waited, clock) = spent.get();
    let seconds = clock.map_or(f64::NAN, |[first, last]| (last - first).as_secs_f64());
    let told = json!({
        "waiting": waited / seconds,
        "frames_per_second": (frames / seconds).round(),
        "threads": threads.max(1),
        "games": games.told(),
    });
    tell("loader", "mamba", times.batch, "f32", told);
    Ok(())
}
