//! Environments with the buffers of their steps. Columns of a step go to Elixir without a copy.

use std::mem;
use std::time::{Duration, Instant};

use rustler::{Encoder, Env, NewBinary, Resource, ResourceArc, Term};
use sconce_env::{EnvOptions, Envs, Stepped};
use sconce_tensor::{Error, Result, pool};

/// Environments of the measurement of a step; the time of more is in proportion.
const MEASURED: usize = 1024;
/// Fewest and most steps of the measurement. The shortest counts.
const STEPS: usize = 8;
const MOST_STEPS: usize = 64;
/// Time of the measurement after which it takes no more than the fewest steps.
const ENOUGH: Duration = Duration::from_millis(2);
/// Longest column that is copied. A copy of a page takes less time than a reference to it.
const COPIED_BYTES: usize = 4096;

/// Results of a step.
#[derive(Default)]
pub(super) struct Outcome {
    observations: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    ended: Vec<u32>,
    final_observations: Vec<f32>,
}

#[rustler::resource_impl]
impl Resource for Outcome {}

/// A column of an outcome as bytes.
pub(super) type Column = fn(&Outcome) -> &[u8];

/// The columns that are binaries.
const COLUMNS: [(&str, Column); 5] = [
    ("observation", |of| bytemuck::cast_slice(&of.observations)),
    ("reward", |of| bytemuck::cast_slice(&of.rewards)),
    ("terminated", |of| &of.terminated),
    ("truncated", |of| &of.truncated),
    ("final_observation", |of| bytemuck::cast_slice(&of.final_observations)),
];

/// The column that is a binary of this name.
pub(super) fn column(name: &str) -> Result<Column> {
    let found = COLUMNS.iter().find(|(column, _)| *column == name);
    found.map(|(_, column)| *column).ok_or_else(|| Error::not_found(format!("column {name}")))
}

impl Outcome {
    fn new(envs: &Envs) -> Self {
        let rows = envs.rows();
        Outcome {
            observations: vec![0.0; rows * envs.spec().observation_size],
            rewards: vec![0.0; rows],
            terminated: vec![0; rows],
            truncated: vec![0; rows],
            ..Outcome::default()
        }
    }

    fn step(&mut self, envs: &mut Envs, inputs: &[f32]) -> Result<()> {
        let mut out = Stepped {
            observations: &mut self.observations,
            rewards: &mut self.rewards,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            ended: &mut self.ended,
            final_observations: &mut self.final_observations,
        };
        envs.step(inputs, &mut out)
    }
}

/// The outcome of the last step.
enum Latest {
    /// No binary refers to it: the next step overwrites it.
    Own(Outcome),
    /// Binaries may refer to it, so it never changes: the next step writes to a new one.
    Shared(ResourceArc<Outcome>),
}

/// Environments, the inputs of their next step, and the outcome of the last one.
pub(super) struct EnvBuffers {
    envs: Envs,
    /// Inputs of the next step without inputs of its own, `[rows, labels]`.
    inputs: Vec<f32>,
    /// Inputs that come with a step, `[rows, labels]`.
    given: Vec<f32>,
    latest: Latest,
    /// Steps of all environments.
    steps: u64,
}

/// Copies the bytes of inputs of `rows` rows.
fn read(bytes: &[u8], rows: usize, out: &mut [f32]) -> Result<()> {
    match bytes.as_chunks() {
        (numbers, []) if numbers.len() == out.len() => {
            for (input, number) in out.iter_mut().zip(numbers) {
                *input = f32::from_le_bytes(*number);
            }
            Ok(())
        }
        _ => {
            let all = size_of_val(out);
            let expected = format!("{all} bytes, {} a row", all / rows.max(1));
            Err(Error::mismatch("inputs", expected, format!("{} bytes", bytes.len())))
        }
    }
}

impl EnvBuffers {
    pub(super) fn new(options: &EnvOptions) -> Result<Self> {
        let envs = Envs::new(options)?;
        let inputs = vec![0.0; envs.rows() * envs.spec().labels()];
        let mut outcome = Outcome::new(&envs);
        envs.observe(&mut outcome.observations);
        let (given, latest) = (inputs.clone(), Latest::Own(outcome));
        Ok(EnvBuffers { envs, inputs, given, latest, steps: 0 })
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Reads the inputs of the next [`step`](Self::step).
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        read(bytes, self.envs.rows(), &mut self.inputs)
    }

    /// Steps with these inputs; those of the buffer stay.
    pub(super) fn step_with(&mut self, bytes: &[u8]) -> Result<usize> {
        read(bytes, self.envs.rows(), &mut self.given)?;
        mem::swap(&mut self.inputs, &mut self.given);
        let ended = self.step();
        mem::swap(&mut self.inputs, &mut self.given);
        ended
    }

    /// Steps with the inputs of the buffer. Returns the number of rows whose episode has ended.
    pub(super) fn step(&mut self) -> Result<usize> {
        let (envs, inputs) = (&mut self.envs, &self.inputs);
        match &mut self.latest {
            Latest::Own(outcome) => outcome.step(envs, inputs)?,
            Latest::Shared(_) => {
                let mut outcome = Outcome::new(envs);
                outcome.step(envs, inputs)?;
                self.latest = Latest::Own(outcome);
            }
        }
        self.steps += self.envs.options().count as u64;
        match &self.latest {
            Latest::Own(outcome) => Ok(outcome.ended.len()),
            Latest::Shared(outcome) => Ok(outcome.ended.len()),
        }
    }

    /// Begins an episode in every environment.
    pub(super) fn reset(&mut self, seed: Option<u64>) -> Result<()> {
        let mut outcome = Outcome::new(&self.envs);
        self.envs.reset(seed, &mut outcome.observations)?;
        self.latest = Latest::Own(outcome);
        Ok(())
    }

    /// Begins the next episode in the environments whose byte is not 0.
    pub(super) fn reset_where(&mut self, mask: &[u8]) -> Result<()> {
        let mut outcome = Outcome::new(&self.envs);
        let mask: Vec<bool> = mask.iter().map(|byte| *byte != 0).collect();
        self.envs.reset_rows(&mask, &mut outcome.observations)?;
        self.latest = Latest::Own(outcome);
        Ok(())
    }

    /// The outcome, for binaries that refer to it: all of it, unless the caller chooses a part.
    pub(super) fn share(&mut self) -> Shared {
        let latest = mem::replace(&mut self.latest, Latest::Own(Outcome::default()));
        let shared = match latest {
            Latest::Own(outcome) => ResourceArc::new(outcome),
            Latest::Shared(shared) => shared,
        };
        self.latest = Latest::Shared(shared.clone());
        Shared { outcome: shared, part: Part::All }
    }

    /// Finished episodes that were not taken before, 17 bytes each: environment and seat (u32), return (f32), length (u32)
    /// and whether it terminated (u8), little-endian.
    pub(super) fn episodes(&mut self) -> Vec<u8> {
        let mut episodes = vec![];
        self.envs.episodes(&mut episodes);
        let mut bytes = Vec::with_capacity(17 * episodes.len());
        for episode in episodes {
            bytes.extend_from_slice(&episode.env.to_le_bytes());
            bytes.extend_from_slice(&episode.seat.to_le_bytes());
            bytes.extend_from_slice(&episode.ret.to_le_bytes());
            bytes.extend_from_slice(&episode.length.to_le_bytes());
            bytes.push(u8::from(episode.terminated));
        }
        bytes
    }

    /// The full state of an environment.
    pub(super) fn state(&self, at: usize) -> Result<Vec<f32>> {
        let state = self.envs.state(at);
        let last = self.envs.options().count as f64 - 1.0;
        match state.is_empty() {
            true => Err(Error::out_of_range("environment", at as f64, 0.0, last)),
            false => Ok(state),
        }
    }
}

/// What of an outcome becomes terms.
enum Part {
    Column(Column),
    /// The rows that ended, as a list.
    Ended,
    /// All columns as a tuple, in the order of [`COLUMNS`], with the rows that ended at the end.
    All,
}

/// Parts of an outcome as terms.
pub(super) struct Shared {
    outcome: ResourceArc<Outcome>,
    part: Part,
}

impl Shared {
    /// One column that is a binary.
    pub(super) fn column(self, column: Column) -> Self {
        Shared { part: Part::Column(column), ..self }
    }

    /// The rows that ended.
    pub(super) fn ended(self) -> Self {
        Shared { part: Part::Ended, ..self }
    }

    fn binary<'a>(&self, env: Env<'a>, column: Column) -> Term<'a> {
        let bytes = column(&self.outcome);
        match bytes.len() <= COPIED_BYTES {
            true => NewBinary::from_slice(env, bytes).into(),
            false => self.outcome.make_binary(env, |outcome| column(outcome)).to_term(env),
        }
    }
}

impl Encoder for Shared {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        match &self.part {
            Part::Column(column) => self.binary(env, *column),
            Part::Ended => self.outcome.ended.encode(env),
            Part::All => {
                let [a, b, c, d, e] = COLUMNS.map(|(_, column)| self.binary(env, column));
                (a, b, c, d, e, &self.outcome.ended).encode(env)
            }
        }
    }
}

/// Time of a step of all environments in microseconds, measured on some of them with inputs of zeros.
pub(super) fn step_us(options: &EnvOptions) -> Result<f64> {
    let count = options.count.min(MEASURED);
    let mut envs = Envs::new(&EnvOptions { count, ..options.clone() })?;
    let (inputs, mut outcome) =
        (vec![0.0; envs.rows() * envs.spec().labels()], Outcome::new(&envs));
    let mut best = f64::INFINITY;
    let first = Instant::now();
    for taken in 0..MOST_STEPS {
        // Short steps are repeated, so that other processes of a busy machine cannot take time from all of them.
        if taken >= STEPS && first.elapsed() > ENOUGH {
            break;
        }
        let begun = Instant::now();
        let stepped = pool::serial(|| outcome.step(&mut envs, &inputs));
        // Without auto-reset, the ends of episodes end the measurement.
        if stepped.is_err() {
            break;
        }
        best = best.min(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(if best.is_finite() { best * options.count as f64 / count as f64 } else { 0.0 })
}
