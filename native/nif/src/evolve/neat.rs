//! Networks that evolve: `Sconce.Evolve.Neat`.

use std::path::Path;

use rustler::{Env, Reference, Resource, ResourceArc, Term};
use sconce_evolve::{Compatibility, Genome, Neat, NeatOptions};
use sconce_tensor::Result;
use sconce_tensor::pool::Class;
use serde::Serialize;

use super::{Column, Locked, binaries, length, part, run, wide};
use crate::border::{
    Answer, Data, Given, Handle, Handled, Task, call, decode, error, from_binary, inline,
};

/// Work on a genome beside its inputs, in the bytes of [`run`].
const GENOME: usize = 1024;

struct NeatHandle {
    neat: Locked<Neat>,
    population: usize,
}

#[rustler::resource_impl]
impl Resource for NeatHandle {}

impl Handled for NeatHandle {
    const NOUN: &'static str = "neat";
}

impl NeatHandle {
    /// A handle, and the sizes that its struct keeps: inputs, outputs, population.
    fn described(neat: Neat) -> (ResourceArc<Self>, (usize, usize, usize)) {
        let &NeatOptions { inputs, outputs, population, .. } = neat.options();
        let neat = Locked::new(neat);
        (ResourceArc::new(NeatHandle { neat, population }), (inputs, outputs, population))
    }

    fn with<R>(&self, work: impl FnOnce(&mut Neat) -> Result<R>) -> Result<R> {
        self.neat.with(Self::NOUN, work)
    }
}

/// Runs `work` on a population whose genomes each read this many bytes. They decide on which thread.
fn on<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    neat: Handle<NeatHandle>,
    reference: Reference<'a>,
    bytes: usize,
    work: impl FnOnce(&mut Neat) -> Result<T> + Send + 'static,
) -> Term<'a> {
    match neat.get() {
        Ok(own) => {
            let bytes = own.population.saturating_mul(GENOME + bytes);
            run(env, op, reference, bytes, move || own.with(work))
        }
        Err(failure) => error(env, op, &failure),
    }
}

fn floats(what: &str, bytes: &[u8]) -> Result<Vec<f32>> {
    from_binary(what, bytes, f32::from_le_bytes)
}

/// Creates a population. Sends `{:ok, {handle, sizes}}` by message.
#[rustler::nif]
fn neat_new<'a>(env: Env<'a>, reference: Reference<'a>, options: Term<'a>) -> Term<'a> {
    call(env, "neat", || {
        let options: NeatOptions = decode(options)?;
        Task::start(env, "neat", reference, move |_events, _cancelled| {
            Class::Background.enter();
            Neat::new(&options).map(NeatHandle::described)
        })
    })
}

/// Reads a population. Sends `{:ok, {handle, sizes}}` by message.
#[rustler::nif]
fn neat_load<'a>(env: Env<'a>, reference: Reference<'a>, path: String) -> Term<'a> {
    call(env, "load", || {
        Task::start(env, "load", reference, move |_events, _cancelled| {
            Neat::load(Path::new(&path)).map(NeatHandle::described)
        })
    })
}

/// Writes a population. Sends `{:ok, true}` by message.
#[rustler::nif]
fn neat_save<'a>(
    env: Env<'a>,
    neat: Handle<NeatHandle>,
    reference: Reference<'a>,
    path: String,
) -> Term<'a> {
    call(env, "save", || {
        let neat = neat.get()?;
        Task::start(env, "save", reference, move |_events, _cancelled| {
            neat.with(|neat| neat.save(Path::new(&path))).map(|()| true)
        })
    })
}

/// Outputs `[genomes, patterns, outputs]` of inputs f32 `[patterns, inputs]`. Sends `{:ok, [outputs]}` by message.
#[rustler::nif]
fn neat_forward<'a>(
    env: Env<'a>,
    neat: Handle<NeatHandle>,
    reference: Reference<'a>,
    inputs: Term<'a>,
    patterns: usize,
) -> Term<'a> {
    let bytes = length(inputs);
    let given = Given::new(env, inputs);
    on(env, "forward", neat, reference, bytes, move |neat| {
        let inputs = given.bytes(|bytes| floats("inputs", bytes))?;
        Ok(vec![Column::F32(neat.forward(&inputs, patterns)?)])
    })
}

/// Ends a generation with a fitness of f64. Sends `{:ok, generation}` by message.
#[rustler::nif]
fn neat_tell<'a>(
    env: Env<'a>,
    neat: Handle<NeatHandle>,
    reference: Reference<'a>,
    fitness: Term<'a>,
) -> Term<'a> {
    let given = Given::new(env, fitness);
    on(env, "tell", neat, reference, 0, move |neat| {
        let fitness = given.bytes(|bytes| wide("fitness", bytes))?;
        neat.tell(&fitness)?;
        Ok(neat.generation())
    })
}

/// Evolves on inputs and targets f32, on a thread of its own. Sends `{:ok, figures}` by message.
#[rustler::nif]
fn neat_fit<'a>(
    env: Env<'a>,
    neat: Handle<NeatHandle>,
    reference: Reference<'a>,
    given: Term<'a>,
    generations: u64,
    stop_at: Option<f64>,
) -> Term<'a> {
    let given = Given::new(env, given);
    call(env, "fit", || {
        let neat = neat.get()?;
        Task::start(env, "fit", reference, move |_events, cancelled| {
            Class::Background.enter();
            let (inputs, targets) = given.read(|given| {
                let given = binaries(given)?;
                Ok((floats("inputs", part(&given, 0))?, floats("targets", part(&given, 1))?))
            })?;
            let stop_at = stop_at.unwrap_or(f64::INFINITY);
            neat.with(|neat| neat.fit((&inputs, &targets), generations, stop_at, cancelled))
                .map(Data)
        })
    })
}

/// A genome as data, by message.
#[rustler::nif]
fn neat_genome<'a>(
    env: Env<'a>,
    neat: Handle<NeatHandle>,
    reference: Reference<'a>,
    at: usize,
) -> Term<'a> {
    on(env, "genome", neat, reference, 0, move |neat| neat.genome(at).map(Data))
}

#[derive(Serialize)]
struct Best {
    genome: Genome,
    fitness: f64,
}

/// The best genome of all generations and its fitness, or nil, by message.
#[rustler::nif]
fn neat_best<'a>(env: Env<'a>, neat: Handle<NeatHandle>, reference: Reference<'a>) -> Term<'a> {
    on(env, "best", neat, reference, 0, move |neat| {
        let best = neat.best().map(|(genome, fitness)| Best { genome: genome.clone(), fitness });
        Ok(Data(best))
    })
}

/// Figures of a population, by message.
#[rustler::nif]
fn neat_stats<'a>(env: Env<'a>, neat: Handle<NeatHandle>, reference: Reference<'a>) -> Term<'a> {
    on(env, "stats", neat, reference, 0, move |neat| Ok(Data(neat.stats())))
}

/// The number of finished generations, and the best fitness.
#[rustler::nif]
fn neat_info<'a>(env: Env<'a>, neat: Handle<NeatHandle>) -> Term<'a> {
    inline(env, "info", || {
        let own = neat.get()?;
        own.with(|neat| Ok(Data((neat.generation(), neat.best().map(|(_, fitness)| fitness)))))
    })
}

/// Outputs `[patterns, outputs]` of one genome. Sends `{:ok, [outputs]}` by message.
#[rustler::nif]
fn neat_run<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    genome: Term<'a>,
    inputs: Term<'a>,
    patterns: usize,
) -> Term<'a> {
    let given = (Given::new(env, genome), Given::new(env, inputs));
    run(env, "run", reference, length(inputs), move || {
        let genome: Genome = given.0.read(decode)?;
        let inputs = given.1.bytes(|bytes| floats("inputs", bytes))?;
        Ok(vec![Column::F32(genome.forward(&inputs, patterns)?)])
    })
}

/// The distance of two genomes, by message.
#[rustler::nif]
fn neat_distance<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    genomes: Term<'a>,
    options: Term<'a>,
) -> Term<'a> {
    let options = decode::<Compatibility>(options);
    let given = Given::new(env, genomes);
    run(env, "distance", reference, 0, move || {
        let (a, b): (Genome, Genome) = given.read(decode)?;
        a.distance(&b, &options?)
    })
}

/// The layer of each node of a genome, by message.
#[rustler::nif]
fn neat_layers<'a>(env: Env<'a>, reference: Reference<'a>, genome: Term<'a>) -> Term<'a> {
    let given = Given::new(env, genome);
    run(env, "svg", reference, 0, move || given.read(decode::<Genome>)?.layers())
}
