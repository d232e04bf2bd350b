//! Compression of single matrices: `Sconce.Compress`.
//!
//! `given` is a list of binaries, `nil` for one that is missing; numbers are f32 unless said otherwise.

use std::sync::atomic::AtomicBool;

use rustler::{Atom, Binary, Encoder, Env, NewBinary, Reference, Term};
use sconce_compress::{
    Axis, Calibrated, Distillation, Fake, FakeOptions, Gptq, Grid, Hessian, Kind, LowRank, Matrix,
    Pruned, Quantised, Share, Target, Truncation, magnitude, smooth, sparsity_at, structured,
    two_four,
};
use sconce_tensor::pool::{self as threads, Class};
use sconce_tensor::{Error, Result};
use serde::de::DeserializeOwned;

use crate::border::{
    Answer, Given, Task, call, decode, error, from_binary, inline, pool, to_binary,
};

mod atoms {
    rustler::atoms! { queued }
}

/// Most bytes that a call computes on the caller's scheduler. The slowest function, the loss of distillation, takes about
/// 100 ns for a number of 4 bytes.
const INLINE_BYTES: usize = 1 << 14;
/// Bytes of a call up to which the threads of sessions work on it, for a few milliseconds.
const POOL_BYTES: usize = 256 << 10;

/// Rows and columns.
type Shape = (usize, usize);

/// A part of an answer.
enum Part {
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
    Number(f64),
    Count(usize),
    Indices(Vec<usize>),
    Nothing,
}

/// An answer: a map of parts by name.
struct Parts<const N: usize>([(&'static str, Part); N]);

impl<const N: usize> Answer for Parts<N> {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        let pair = |(name, part): (&str, Part)| {
            let name = Atom::from_str(env, name).map_err(|_| Error::not_found("a name"))?;
            Ok((name.to_term(env), part.encode(env)))
        };
        let pairs = self.0.into_iter().map(pair).collect::<Result<Vec<_>>>()?;
        Term::map_from_pairs(env, &pairs).map_err(|_| Error::not_found("a map"))
    }
}

impl Encoder for Part {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        match self {
            Part::Floats(numbers) => to_binary(env, numbers),
            Part::Bytes(bytes) => NewBinary::from_slice(env, bytes).into(),
            // The VM has no NaN.
            Part::Number(number) => number.is_finite().then_some(number).encode(env),
            Part::Count(count) => count.encode(env),
            Part::Indices(indices) => indices.encode(env),
            Part::Nothing => rustler::types::atom::nil().to_term(env),
        }
    }
}

fn floats_or_nothing(numbers: Vec<f32>) -> Part {
    if numbers.is_empty() { Part::Nothing } else { Part::Floats(numbers) }
}

/// The binaries of a call.
struct Binaries<'a>(Vec<Option<Binary<'a>>>);

impl<'a> Binaries<'a> {
    fn of(given: Term<'a>) -> Result<Self> {
        let binaries = given.decode().map_err(|_| Error::not_found("binaries"))?;
        Ok(Binaries(binaries))
    }

    fn len(&self) -> usize {
        self.0.iter().flatten().map(|binary| binary.len()).sum()
    }

    fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.0.get(at).and_then(Option::as_ref).map(Binary::as_slice)
    }

    fn floats(&self, at: usize, what: &str) -> Result<Option<Vec<f32>>> {
        self.bytes(at).map(|bytes| from_binary(what, bytes, f32::from_le_bytes)).transpose()
    }

    fn matrix(&self, at: usize, what: &str, (rows, cols): Shape) -> Result<Matrix> {
        Matrix::new(what, rows, cols, self.floats(at, what)?.unwrap_or_default())
    }
}

/// Runs work whose time grows with its numbers: on the caller's scheduler if there are few, on a thread of the sessions if
/// there are more, and on a thread of its own if sessions would wait for it. In the last two cases the result is `:queued`
/// or a task, and the answer comes by message.
fn run<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    reference: Reference<'a>,
    given: Term<'a>,
    work: impl FnOnce(Binaries<'_>) -> Result<T> + Send + 'static,
) -> Term<'a> {
    let binaries = match Binaries::of(given) {
        Ok(binaries) => binaries,
        Err(failure) => return error(env, op, &failure),
    };
    if binaries.len() <= INLINE_BYTES {
        // Without other threads the scheduler never waits.
        return inline(env, op, move || threads::serial(|| work(binaries)));
    }
    if binaries.len() > POOL_BYTES {
        return start(env, op, reference, given, move |given, _cancelled| work(given));
    }
    let given = Given::new(env, given);
    let read = move || given.read(|given| work(Binaries::of(given)?));
    match pool::submit(env, op, reference, read) {
        Ok(()) => atoms::queued().encode(env),
        Err(failure) => error(env, op, &failure),
    }
}

/// Runs work that may take seconds on a thread of its own, which ends early with its process.
fn start<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    reference: Reference<'a>,
    given: Term<'a>,
    work: impl FnOnce(Binaries<'_>, &AtomicBool) -> Result<T> + Send + 'static,
) -> Term<'a> {
    call(env, op, || {
        let given = Given::new(env, given);
        Task::start(env, op, reference, move |_events, cancelled| {
            Class::Background.enter();
            given.read(|given| work(Binaries::of(given)?, cancelled))
        })
    })
}

/// Reads the options of a call, and makes it.
fn with<'a, T: DeserializeOwned>(
    env: Env<'a>,
    op: &'static str,
    options: Term<'a>,
    call: impl FnOnce(T) -> Term<'a>,
) -> Term<'a> {
    match decode(options) {
        Ok(options) => call(options),
        Err(failure) => error(env, op, &failure),
    }
}

/// Codes as bytes: i8, or u8 with zero points.
fn code_bytes(codes: &[i16]) -> Vec<u8> {
    codes.iter().map(|code| code.to_le_bytes()[0]).collect()
}

fn codes_of(bytes: &[u8], zero_point: bool) -> Vec<i16> {
    let code = |byte: &u8| match zero_point {
        true => i16::from(*byte),
        false => i16::from(i8::from_le_bytes([*byte])),
    };
    bytes.iter().map(code).collect()
}

fn coded(quantised: &Quantised) -> [(&'static str, Part); 5] {
    let zeros = match quantised.zeros.is_empty() {
        true => Part::Nothing,
        false => Part::Bytes(code_bytes(&quantised.zeros)),
    };
    let order = match quantised.order.is_empty() {
        true => Part::Nothing,
        false => Part::Indices(quantised.order.clone()),
    };
    [
        ("codes", Part::Bytes(code_bytes(&quantised.codes))),
        ("scales", Part::Floats(quantised.scales.clone())),
        ("zeros", zeros),
        ("order", order),
        ("bytes", Part::Count(quantised.bytes())),
    ]
}

/// Quantises `[weight]` to the nearest codes.
#[rustler::nif]
fn compress_quantise<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
    grid: Term<'a>,
) -> Term<'a> {
    with(env, "quantise", grid, |grid: Grid| {
        run(env, "quantise", reference, given, move |given| {
            let weight = given.matrix(0, "weight", shape)?;
            let quantised = Quantised::nearest(&weight, grid)?;
            let [codes, scales, zeros, order, bytes] = coded(&quantised);
            let error = ("error", Part::Number(quantised.error(&weight)?));
            Ok(Parts([codes, scales, zeros, order, bytes, error]))
        })
    })
}

/// Returns the numbers of `[codes, scales, zeros]`, where codes and zeros are bytes.
#[rustler::nif]
fn compress_dequantise<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    (rows, cols): Shape,
    order: Vec<usize>,
    grid: Term<'a>,
) -> Term<'a> {
    with(env, "dequantise", grid, |grid: Grid| {
        run(env, "dequantise", reference, given, move |given| {
            let codes = |at| codes_of(given.bytes(at).unwrap_or_default(), grid.zero_point);
            let quantised = Quantised {
                grid,
                rows,
                cols,
                codes: codes(0),
                scales: given.floats(1, "scales")?.unwrap_or_default(),
                zeros: codes(2),
                order,
            };
            Ok(Parts([("weight", Part::Floats(quantised.checked()?.dequantise()?))]))
        })
    })
}

/// Rounds `[numbers, steps, zeros or offsets, gradient]` to a grid; all but the first may be missing.
#[rustler::nif]
fn compress_fake_quantise<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
    options: Term<'a>,
) -> Term<'a> {
    with(env, "fake_quantise", options, |options: FakeOptions| {
        run(env, "fake_quantise", reference, given, move |given| {
            let x = given.matrix(0, "numbers", shape)?;
            let zeros = if options.learned { "offset" } else { "zero" };
            let fake = Fake {
                steps: given.floats(1, "step")?,
                zeros: given.floats(2, zeros)?,
                gradient: given.floats(3, "gradient")?,
            };
            let faked = fake.run(&x, options)?;
            let [dx, steps, zeros] = faked.gradients.unwrap_or_default();
            Ok(Parts([
                ("y", Part::Floats(faked.y)),
                ("steps", Part::Floats(faked.steps)),
                ("zeros", floats_or_nothing(faked.zeros)),
                ("numbers_gradient", floats_or_nothing(dx)),
                ("steps_gradient", floats_or_nothing(steps)),
                ("zeros_gradient", floats_or_nothing(zeros)),
            ]))
        })
    })
}

/// Quantises `[weight, calibration]` by GPTQ. The calibration is a Hessian, or inputs. Sends the parts by message.
#[rustler::nif]
fn compress_gptq<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    (weight, calibration): (Shape, Shape),
    is_hessian: bool,
    options: Term<'a>,
) -> Term<'a> {
    with(env, "gptq", options, |gptq: Gptq| {
        start(env, "gptq", reference, given, move |given, cancelled| {
            let weight = given.matrix(0, "weight", weight)?;
            let calibration = given.matrix(1, "calibration", calibration)?;
            if calibration.cols() != weight.cols() {
                let expected = format!("inputs of width {}", weight.cols());
                return Err(Error::mismatch("calibration", expected, calibration.cols()));
            }
            let hessian = match is_hessian {
                true => Hessian::of(&calibration)?,
                false => Hessian::of_inputs(&calibration, cancelled)?,
            };
            let found: Calibrated = gptq.run(&weight, &hessian, cancelled)?;
            let [codes, scales, zeros, order, bytes] = coded(&found.quantised);
            let weight = ("weight", Part::Floats(found.dequantised));
            let error = ("output_error", Part::Number(found.error));
            let nearest = ("nearest_output_error", Part::Number(found.nearest_error));
            Ok(Parts([codes, scales, zeros, order, bytes, weight, error, nearest]))
        })
    })
}

/// Smooths `[weight, maxima of the inputs]`.
#[rustler::nif]
fn compress_smooth<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
    alpha: f64,
) -> Term<'a> {
    run(env, "smooth", reference, given, move |given| {
        let weight = given.matrix(0, "weight", shape)?;
        let maxima = given.floats(1, "calibration")?.unwrap_or_default();
        let smoothed = smooth(&weight, &maxima, alpha)?;
        let factors = ("factors", Part::Floats(smoothed.factors));
        Ok(Parts([factors, ("weight", Part::Floats(smoothed.weight))]))
    })
}

fn pruned(pruned: Pruned) -> [(&'static str, Part); 3] {
    [
        ("weight", Part::Floats(pruned.weight)),
        ("mask", Part::Bytes(pruned.mask)),
        ("kept", Part::Count(pruned.kept)),
    ]
}

/// Removes the smallest magnitudes of `[weight]`.
#[rustler::nif]
fn compress_prune<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
    sparsity: f64,
    share: Term<'a>,
) -> Term<'a> {
    with(env, "prune", share, |share: Share| {
        run(env, "prune", reference, given, move |given| {
            let weight = given.matrix(0, "weight", shape)?;
            Ok(Parts(pruned(magnitude(&weight, sparsity, share)?)))
        })
    })
}

/// Keeps two of four consecutive columns of `[weight]`.
#[rustler::nif]
fn compress_two_four<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
) -> Term<'a> {
    run(env, "prune", reference, given, move |given| {
        let found = two_four(&given.matrix(0, "weight", shape)?)?;
        let [weight, mask, kept] = pruned(found.pruned);
        let values = ("values", Part::Floats(found.values));
        Ok(Parts([weight, mask, kept, values, ("index", Part::Bytes(found.index))]))
    })
}

/// Removes whole rows or columns of `[weight]`.
#[rustler::nif]
fn compress_structured<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
    sparsity: f64,
    axis: Term<'a>,
) -> Term<'a> {
    with(env, "prune", axis, |axis: Axis| {
        run(env, "prune", reference, given, move |given| {
            let shrunk = structured(&given.matrix(0, "weight", shape)?, sparsity, axis)?;
            let weight = ("weight", Part::Floats(shrunk.weight.values().to_vec()));
            Ok(Parts([weight, ("kept", Part::Indices(shrunk.kept))]))
        })
    })
}

/// The sparsity at a step of gradual pruning.
#[rustler::nif]
fn compress_sparsity_at(env: Env, step: u64, steps: u64, ends: (f64, f64)) -> Term {
    inline(env, "sparsity_at", || sparsity_at(step, steps, [ends.0, ends.1]))
}

/// Approximates `[weight]` by a product of two matrices. Sends the parts by message.
#[rustler::nif]
fn compress_low_rank<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
    truncation: Term<'a>,
) -> Term<'a> {
    with(env, "low_rank", truncation, |truncation: Truncation| {
        start(env, "low_rank", reference, given, move |given, cancelled| {
            let weight = given.matrix(0, "weight", shape)?;
            let found: LowRank = truncation.run(&weight, cancelled)?;
            Ok(Parts([
                ("rank", Part::Count(found.rank)),
                ("left", Part::Floats(found.left)),
                ("right", Part::Floats(found.right)),
                ("singular_values", Part::Floats(found.singular_values)),
                ("error", Part::Number(found.error)),
                ("energy", Part::Number(found.energy)),
            ]))
        })
    })
}

/// The loss of `[student, target, teacher, ..]`. A target has 8 bytes for each class (i64), or one for each bit.
#[rustler::nif]
fn compress_distillation_loss<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    given: Term<'a>,
    shape: Shape,
    options: Term<'a>,
) -> Term<'a> {
    with(env, "distillation_loss", options, |loss: Distillation| {
        run(env, "distillation_loss", reference, given, move |given| {
            let student = given.matrix(0, "logits of the student", shape)?;
            let teachers = (2..given.0.len())
                .map(|at| given.matrix(at, "logits of a teacher", shape))
                .collect::<Result<Vec<_>>>()?;
            let target = given.bytes(1).map(|bytes| target(loss.kind, bytes)).transpose()?;
            let found = loss.run(&student, &teachers, target.as_ref())?;
            Ok(Parts([
                ("loss", Part::Number(found.loss)),
                ("soft", Part::Number(found.soft)),
                ("hard", Part::Number(found.hard)),
                ("gradient", Part::Floats(found.gradient)),
            ]))
        })
    })
}

fn target(kind: Kind, bytes: &[u8]) -> Result<Target> {
    match kind {
        Kind::Bernoulli => Ok(Target::Bits(bytes.to_vec())),
        // A class below 0 becomes one that is too large.
        Kind::Categorical => {
            let class = |bytes| usize::try_from(i64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
            Ok(Target::Classes(from_binary("target", bytes, class)?))
        }
    }
}
