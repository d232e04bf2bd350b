//! Strategies: `Sconce.Evolve.Strategy`.

use std::path::Path;

use rustler::{Env, Reference, Resource, ResourceArc, Term};
use sconce_evolve::{Method, Strategy, StrategyOptions};
use sconce_tensor::{Error, Result, memory};
use serde::Serialize;

use super::{Column, Locked, length, run, wide};
use crate::border::{Answer, Data, Given, Handle, Handled, Task, call, decode, error, inline};

struct StrategyHandle {
    strategy: Locked<Strategy>,
    /// Bytes of the candidates of a generation, or of the products of its matrix: the work of a call.
    bytes: usize,
}

#[rustler::resource_impl]
impl Resource for StrategyHandle {}

impl Handled for StrategyHandle {
    const NOUN: &'static str = "strategy";
}

impl StrategyHandle {
    /// A handle, and the sizes that its struct keeps: numbers of a solution, candidates of a generation.
    fn described(strategy: Strategy) -> (ResourceArc<Self>, (usize, usize)) {
        let (size, population) = (strategy.size(), strategy.population());
        let depth = if strategy.method() == Method::CmaEs { size } else { 1 };
        let bytes = size_of::<f64>() * size * population.max(depth) * depth.div_ceil(8);
        let strategy = Locked::new(strategy);
        (ResourceArc::new(StrategyHandle { strategy, bytes }), (size, population))
    }

    fn with<R>(&self, work: impl FnOnce(&mut Strategy) -> Result<R>) -> Result<R> {
        self.strategy.with(Self::NOUN, work)
    }
}

/// Runs `work` on a strategy. The bytes of a generation decide on which thread.
fn on<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    strategy: Handle<StrategyHandle>,
    reference: Reference<'a>,
    work: impl FnOnce(&mut Strategy) -> Result<T> + Send + 'static,
) -> Term<'a> {
    match strategy.get() {
        Ok(own) => run(env, op, reference, own.bytes, move || own.with(work)),
        Err(failure) => error(env, op, &failure),
    }
}

#[derive(Serialize)]
struct Described {
    method: Method,
    generation: u64,
    sigma: f64,
    best: Option<f64>,
}

/// Creates a strategy that begins at a mean of f64. Sends `{:ok, {handle, sizes}}` by message.
#[rustler::nif]
fn strategy_new<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    mean: Term<'a>,
    options: Term<'a>,
) -> Term<'a> {
    let options = decode::<StrategyOptions>(options);
    // Two matrices of 1024 x 1024 are 16 MB.
    let bytes = 64 * length(mean);
    let given = Given::new(env, mean);
    run(env, "strategy", reference, bytes, move || {
        let mean = given.bytes(|bytes| wide("mean", bytes))?;
        Strategy::new(&mean, &options?).map(StrategyHandle::described)
    })
}

/// Reads a strategy. Sends `{:ok, {handle, sizes}}` by message.
#[rustler::nif]
fn strategy_load<'a>(env: Env<'a>, reference: Reference<'a>, path: String) -> Term<'a> {
    call(env, "load", || {
        Task::start(env, "load", reference, move |_events, _cancelled| {
            Strategy::load(Path::new(&path)).map(StrategyHandle::described)
        })
    })
}

/// Writes a strategy. Sends `{:ok, true}` by message.
#[rustler::nif]
fn strategy_save<'a>(
    env: Env<'a>,
    strategy: Handle<StrategyHandle>,
    reference: Reference<'a>,
    path: String,
) -> Term<'a> {
    call(env, "save", || {
        let strategy = strategy.get()?;
        Task::start(env, "save", reference, move |_events, _cancelled| {
            strategy.with(|strategy| strategy.save(Path::new(&path))).map(|()| true)
        })
    })
}

/// Candidates `[population, n]`. Sends `{:ok, [candidates]}` by message.
#[rustler::nif]
fn strategy_ask<'a>(
    env: Env<'a>,
    strategy: Handle<StrategyHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "ask", strategy, reference, |strategy| Ok(vec![narrow(&strategy.ask()?)?]))
}

/// Moves the distribution by a fitness of f64. Sends `{:ok, generation}` by message.
#[rustler::nif]
fn strategy_tell<'a>(
    env: Env<'a>,
    strategy: Handle<StrategyHandle>,
    reference: Reference<'a>,
    fitness: Term<'a>,
) -> Term<'a> {
    let given = Given::new(env, fitness);
    on(env, "tell", strategy, reference, move |strategy| {
        let fitness = given.bytes(|bytes| wide("fitness", bytes))?;
        strategy.tell(&fitness)?;
        Ok(strategy.generation())
    })
}

/// Figures of a strategy. The deviation of SNES is a mean over all numbers, so a native thread computes it.
#[rustler::nif]
fn strategy_info<'a>(
    env: Env<'a>,
    strategy: Handle<StrategyHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "info", strategy, reference, |strategy| {
        Ok(Data(Described {
            method: strategy.method(),
            generation: strategy.generation(),
            sigma: strategy.sigma(),
            best: strategy.best().map(|(_, fitness)| fitness),
        }))
    })
}

/// The number of finished generations.
#[rustler::nif]
fn strategy_generation<'a>(env: Env<'a>, strategy: Handle<StrategyHandle>) -> Term<'a> {
    inline(env, "info", || {
        strategy.get()?.with(|strategy| {
            let best = strategy.best().map(|(_, fitness)| fitness);
            Ok(Data((strategy.method(), strategy.generation(), best)))
        })
    })
}

/// The mean, and the best candidate with its fitness if there is one. Sends `{:ok, [mean]}` or
/// `{:ok, [mean, best, fitness]}` by message.
#[rustler::nif]
fn strategy_solutions<'a>(
    env: Env<'a>,
    strategy: Handle<StrategyHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "info", strategy, reference, |strategy| {
        let mut columns = vec![narrow(strategy.mean())?];
        if let Some((best, fitness)) = strategy.best() {
            columns.extend([narrow(best)?, Column::F64(vec![fitness])]);
        }
        Ok(columns)
    })
}

/// Numbers as f32, which hold no larger ones.
fn narrow(numbers: &[f64]) -> Result<Column> {
    if let Some(value) = numbers.iter().find(|v| !(**v as f32).is_finite()) {
        let most = f64::from(f32::MAX);
        return Err(Error::out_of_range("a number of a candidate", *value, -most, most));
    }
    memory::room("candidates", 2 * size_of_val(numbers) as u64)?;
    Ok(Column::F32(numbers.iter().map(|v| *v as f32).collect()))
}
