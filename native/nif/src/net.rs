//! Small networks: `Sconce.Net`.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustler::{Atom, Binary, Encoder, Env, Reference, Resource, ResourceArc, Term};
use sconce_net::{Net, NetSpec, Outline, Packed, Program, Storage, Weight};
use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result, memory};
use sconce_train::nets::{Event, Examples, FitOptions, Fitted, Loss, Report, evaluate, fit};
use serde::Serialize;

use crate::border::{
    Answer, Data, Events, Given, Handle, Handled, Task, call, decode, encode, error, from_binary,
    inline, perform, to_binary,
};

mod atoms {
    rustler::atoms! { f32, int8, full }
}

/// Arenas that a handle keeps for later calls.
const KEPT: usize = 64;
/// The longest estimate of a pass on the caller's scheduler, in nanoseconds.
const MOST_INLINE: u64 = 200_000;

struct NetHandle {
    net: Net,
    program: Arc<Program>,
    /// Arenas that no call uses. A call takes one out, so a panic loses it and nothing else.
    free: Mutex<Vec<Packed>>,
}

#[rustler::resource_impl]
impl Resource for NetHandle {}

impl Handled for NetHandle {
    const NOUN: &'static str = "net";
}

impl NetHandle {
    fn free<R>(&self, with: impl FnOnce(&mut Vec<Packed>) -> R) -> R {
        with(&mut self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn packed(&self) -> Result<Packed> {
        match self.free(Vec::pop) {
            Some(packed) => Ok(packed),
            None => Packed::of(&self.program),
        }
    }

    fn numbers(&self, inputs: &[Binary]) -> Result<Vec<Vec<f32>>> {
        let named = self.program.inputs().zip(inputs);
        let read = |(name, input): (&str, &Binary)| {
            from_binary(&format!("input {name:?}"), input, f32::from_le_bytes)
        };
        named.map(read).collect()
    }

    fn put_back(&self, packed: Packed) {
        self.free(|free| {
            if free.len() < KEPT {
                free.push(packed);
            }
        });
    }

    fn run<'a>(&self, env: Env<'a>, mut packed: Packed, inputs: &[Vec<f32>]) -> Result<Term<'a>> {
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let count = self.net.outline().output.iter().product();
        let mut output = memory::caught(|| Ok(memory::zeros(count)))?;
        let ran = packed.run(&inputs, &mut output);
        self.put_back(packed);
        ran.map(|()| to_binary(env, &output))
    }
}

/// Facts of a net that the Elixir struct keeps.
#[derive(Serialize)]
struct Info<'n> {
    spec: &'n NetSpec,
    outline: &'n Outline,
    bytes: usize,
    arena_bytes: usize,
    /// Whether a pass is short enough for the caller's scheduler.
    inline: bool,
}

/// A net as an answer: the handle and its info.
struct Made(Net, Storage);

impl Answer for Made {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        let Made(net, storage) = self;
        let program = Program::new(&net, storage)?;
        let packed = Packed::of(&program)?;
        let info = encode(
            env,
            &Info {
                spec: net.spec(),
                outline: net.outline(),
                bytes: packed.weight_bytes(),
                arena_bytes: packed.arena_bytes(),
                inline: program.nanoseconds() <= MOST_INLINE,
            },
        )?;
        let free = Mutex::new(vec![packed]);
        Ok((ResourceArc::new(NetHandle { net, program, free }), info).encode(env))
    }
}

/// The layers of a declaration with their shapes.
#[rustler::nif(schedule = "DirtyCpu")]
fn net_outline<'a>(env: Env<'a>, spec: Term<'a>) -> Term<'a> {
    call(env, "outline", || decode::<NetSpec>(spec)?.check().map(Data))
}

/// A net of random weights. Returns `{:ok, {handle, info}}`.
#[rustler::nif(schedule = "DirtyCpu")]
fn net_init<'a>(env: Env<'a>, spec: Term<'a>, seed: u64, storage: Atom) -> Term<'a> {
    call(env, "init", || {
        let net = Net::init(&decode(spec)?, seed)?;
        Ok(Made(net, storage_of(storage)?))
    })
}

/// A net of a file. Returns `{:ok, {handle, info}}`.
#[rustler::nif(schedule = "DirtyIo")]
fn net_load<'a>(env: Env<'a>, path: String, storage: Atom) -> Term<'a> {
    call(env, "load", || Ok(Made(Net::load(Path::new(&path))?, storage_of(storage)?)))
}

/// A net of weights `{name, shape, data}` of f32. Returns `{:ok, {handle, info}}`.
#[rustler::nif(schedule = "DirtyCpu")]
fn net_from_weights<'a>(
    env: Env<'a>,
    spec: Term<'a>,
    weights: Term<'a>,
    storage: Atom,
) -> Term<'a> {
    call(env, "from_weights", || {
        let given: Vec<(String, Vec<usize>, Binary)> =
            weights.decode().map_err(|_| Error::not_found("weights"))?;
        let mut weights = Vec::with_capacity(given.len());
        for (name, shape, data) in given {
            let numbers = from_binary(&name, &data, f32::from_le_bytes)?;
            weights.push((name, numbers, shape));
        }
        let net = Net::from_weights(&decode(spec)?, weights)?;
        Ok(Made(net, storage_of(storage)?))
    })
}

/// Writes a net to a file.
#[rustler::nif(schedule = "DirtyIo")]
fn net_save<'a>(env: Env<'a>, net: Handle<NetHandle>, path: String) -> Term<'a> {
    perform(env, "save", || net.get()?.net.save(Path::new(&path)))
}

/// All weights as `{name, shape, data}`.
#[rustler::nif(schedule = "DirtyCpu")]
fn net_weights<'a>(env: Env<'a>, net: Handle<NetHandle>) -> Term<'a> {
    call(env, "weights", || {
        let net = net.get()?;
        let named = |weight: &Weight| {
            (weight.name.clone(), weight.shape.clone(), to_binary(env, &weight.values))
        };
        Ok(net.net.weights().iter().map(named).collect::<Vec<_>>())
    })
}

/// The output of a net, on the caller's scheduler. Returns `:full` if no arena is free.
#[rustler::nif]
fn net_run<'a>(env: Env<'a>, net: Handle<NetHandle>, inputs: Vec<Binary<'a>>) -> Term<'a> {
    match net.get() {
        Ok(net) => match net.free(Vec::pop) {
            Some(packed) => inline(env, "run", || match net.numbers(&inputs) {
                Ok(inputs) => net.run(env, packed, &inputs),
                Err(wrong) => {
                    net.put_back(packed);
                    Err(wrong)
                }
            }),
            None => atoms::full().to_term(env),
        },
        Err(failure) => error(env, "run", &failure),
    }
}

/// The output of a net.
#[rustler::nif(schedule = "DirtyCpu")]
fn net_run_dirty<'a>(env: Env<'a>, net: Handle<NetHandle>, inputs: Vec<Binary<'a>>) -> Term<'a> {
    call(env, "run", || {
        let net = net.get()?;
        let inputs = net.numbers(&inputs)?;
        net.run(env, net.packed()?, &inputs)
    })
}

fn storage_of(name: Atom) -> Result<Storage> {
    match name {
        name if name == atoms::f32() => Ok(Storage::F32),
        name if name == atoms::int8() => Ok(Storage::Int8),
        _ => Err(Error::not_found("a storage of this name")),
    }
}

/// A trained net and its report.
struct Trained(Made, Report);

impl Answer for Trained {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        let Trained(made, report) = self;
        Ok((made.into_term(env)?, encode(env, &report)?).encode(env))
    }
}

/// Calls `with` with the examples of `given`, a pair of a list of inputs and of targets.
fn examples<T>(
    net: &Net,
    loss: Loss,
    given: &Given,
    with: impl FnOnce(&Examples<'_>) -> Result<T>,
) -> Result<T> {
    given.read(|term| {
        let (inputs, targets): (Vec<Binary>, Binary) =
            term.decode().map_err(|_| Error::not_found("inputs and targets"))?;
        let inputs: Vec<&[u8]> = inputs.iter().map(Binary::as_slice).collect();
        with(&Examples::new(net, loss, &inputs, targets.as_slice())?)
    })
}

/// Sends the events of a run. A failed event is dropped: it must not end the run.
fn tell(events: &Events, event: Event) {
    let told = match event {
        Event::Step { .. } => events.progress(Data(event)),
        Event::Epoch { .. } => events.tell(Data(event)),
    };
    drop(told);
}

/// Trains a copy of a net on `{inputs, targets}`. Sends `{{handle, info}, report}`.
#[rustler::nif]
fn net_fit<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    net: Handle<NetHandle>,
    given: Term<'a>,
    options: Term<'a>,
    tells: bool,
) -> Term<'a> {
    call(env, "fit", || {
        let (net, options) = (net.get()?, decode::<FitOptions>(options)?);
        let given = Given::new(env, given);
        Task::start(env, "fit", reference, move |events, cancelled| {
            Class::Background.enter();
            let told = |event| {
                if tells {
                    tell(events, event);
                }
            };
            let Fitted { net, report } = examples(&net.net, options.loss, &given, |examples| {
                fit(&net.net, examples, &options, &told, cancelled)
            })?;
            Ok(Trained(Made(net, Storage::F32), report))
        })
    })
}

/// Evaluates a net on `{inputs, targets}`. Sends the figures.
#[rustler::nif]
fn net_evaluate<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    net: Handle<NetHandle>,
    given: Term<'a>,
    loss: Term<'a>,
) -> Term<'a> {
    call(env, "evaluate", || {
        let (net, loss) = (net.get()?, decode::<Loss>(loss)?);
        let given = Given::new(env, given);
        Task::start(env, "evaluate", reference, move |_events, cancelled| {
            Class::Background.enter();
            examples(&net.net, loss, &given, |examples| {
                evaluate(&net.program, examples, cancelled).map(Data)
            })
        })
    })
}
