//! Parses, checks and briefly uses options from a caller.

use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use sconce_data::{
    Corpus, Draws, ImportOptions, Loader, LoaderOptions, Reader, Sampler, SamplerOptions, import,
};
use sconce_nn::Policy;
use sconce_serve::Session;
use sconce_serve::session::{Mode, Options, Overrides};
use sconce_tensor::{Error, Result};
use sconce_train::eval::evaluate;
use sconce_train::options::{EvaluateOptions, ObjectiveOptions, TrainOptions};
use sconce_train::report::Event;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::checkpoint::{frame, options};
use super::{corpus, replay, run as runs, specs};

/// Options of one kind.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Input {
    Train(Value),
    Evaluate(Value),
    Import(Value),
    Session(Value),
    Windows { batch_size: usize, sampler: Value, loader: Value },
}

pub fn seeds() -> Vec<Vec<u8>> {
    let to = |value: serde_json::Result<Value>| value.expect("options");
    let train = |options: &TrainOptions| json!({ "train": to(serde_json::to_value(options)) });
    let session = |mode| json!({ "session": to(serde_json::to_value(options(mode))) });
    let windows = |options: SamplerOptions| {
        let (sampler, loader) = (serde_json::to_value(options), LoaderOptions::default());
        let loader = serde_json::to_value(loader);
        json!({ "windows": { "batch_size": 2, "sampler": to(sampler), "loader": to(loader) } })
    };
    let small = SamplerOptions { window: 4, stride: 2, ..SamplerOptions::default() };
    let weighted = SamplerOptions {
        sampling: sconce_data::Sampling::Weighted,
        weights: vec![1.0, 0.5],
        mirror: 0.5,
        noise: 0.5,
        ..small.clone()
    };
    let all = [
        train(&runs::small()),
        train(&TrainOptions {
            objective: ObjectiveOptions {
                teacher: Some(Path::new(teacher()).into()),
                ..runs::small().objective
            },
            ..runs::small()
        }),
        json!({ "evaluate": { "mode": "window", "window_size": 4, "stride": 2, "threads": 1 } }),
        json!({ "import": { "min_frames": 1, "threads": 1 } }),
        session(Mode::Carry),
        session(Mode::Resync(2)),
        windows(small),
        windows(weighted),
    ];
    all.iter().map(|value| value.to_string().into_bytes()).collect()
}

fn policy() -> &'static Arc<Policy> {
    static POLICY: OnceLock<Arc<Policy>> = OnceLock::new();
    POLICY.get_or_init(|| Policy::init(&specs::of_vectors("gru"), 1).expect("a policy").into())
}

/// The file of a policy that can be a teacher.
fn teacher() -> &'static str {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = crate::scratch::folder("teacher").join("teacher.safetensors");
        policy().save(&path, Value::Null).expect("a file");
        path.display().to_string()
    })
}

pub fn run(input: &[u8], dir: &Path) -> Result<()> {
    match parse(serde_json::from_slice(input).map_err(|e| Error::corrupt("options", e))?)? {
        Input::Train(said) => runs::go(&specs::of_vectors("gru"), &parse(said)?, &dir.join("run")),
        Input::Evaluate(said) => scored(&parse(said)?),
        Input::Import(said) => imported(&parse(said)?, dir),
        Input::Session(said) => acted(parse(said)?),
        Input::Windows { batch_size, sampler, loader } => {
            drawn(batch_size, parse(sampler)?, &parse(loader)?)
        }
    }
}

fn parse<T: DeserializeOwned>(said: Value) -> Result<T> {
    serde_json::from_value(said).map_err(|e| Error::mismatch("options", "options of that kind", e))
}

fn scored(options: &EvaluateOptions) -> Result<()> {
    let corpus = Corpus::open(corpus::of_vectors())?;
    // Longer windows are valid, but too slow for a fuzzer.
    if let Some(frames) = options.window_size.filter(|frames| *frames > MOST_FRAMES) {
        return Err(Error::out_of_range("window_size", frames as f64, 1.0, MOST_FRAMES as f64));
    }
    let never = AtomicBool::new(false);
    evaluate(policy(), &corpus, None, options, &|_: Event| (), &never).map(drop)
}

fn imported(options: &ImportOptions, dir: &Path) -> Result<()> {
    let path = super::write(dir, "game.slp", &replay::seeds()[0])?;
    let never = AtomicBool::new(false);
    import(&[path], &dir.join("corpus"), options, &|_| (), &never).map(drop)
}

fn acted(options: Options) -> Result<()> {
    let mut session = Session::open(policy().clone(), options)?;
    let raw = frame(policy());
    session.act(&raw, &Overrides::default())?;
    session.snapshot().map(drop)
}

/// Maximum frames of a window that this target scores.
const MOST_FRAMES: usize = 1 << 12;
/// Maximum bytes of a batch in this target. The NIF also bounds the bytes of a batch.
const MOST_BYTES: u64 = 16 << 20;

fn drawn(batch_size: usize, options: SamplerOptions, loader: &LoaderOptions) -> Result<()> {
    loader.validate()?;
    let corpus = Corpus::open(corpus::of_melee())?;
    options.check_weights(corpus.games().len())?;
    let games: Vec<usize> = (0..corpus.games().len()).collect();
    let views = corpus.views(&games)?;
    let reader = Reader::new(corpus.schema().embedding(), corpus.schema().heads(), 0);
    let bytes = reader.bytes(batch_size, options.window);
    if bytes > MOST_BYTES || options.window.saturating_mul(batch_size) > 1 << 20 {
        return Err(Error::out_of_memory("a batch", bytes));
    }
    let loader = LoaderOptions { max_bytes: MOST_BYTES, ..loader.clone() };
    let sampler = Sampler::new(views, reader, options)?;
    let draws = Draws::Windows { sampler: sampler.into(), batch_size, burn_in: 0 };
    let mut loader = Loader::start("a corpus", draws, &loader, 0)?;
    loader.next(&AtomicBool::new(false)).map(drop)
}
