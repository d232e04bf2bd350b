//! Populations: `Sconce.Evolve.Population`.

use rustler::{Env, Reference, Resource, ResourceArc, Term};
use sconce_evolve::{Episodes, Network, Population, PopulationOptions, Variation};
use sconce_nn::Spec;
use sconce_tensor::{Result, device};

use super::archive::ArchiveHandle;
use super::{Column, Locked, background, device_of, run};
use crate::border::{Answer, Given, Handle, Handled, decode, error, from_binary, perform, pool};
use crate::policy::PolicyHandle;

struct PopulationHandle {
    population: Locked<Population>,
    /// Bytes of all individuals, which decide on which thread a call runs. Calls on a card run in the background.
    bytes: usize,
}

#[rustler::resource_impl]
impl Resource for PopulationHandle {}

impl Handled for PopulationHandle {
    const NOUN: &'static str = "population";
}

/// Sizes that an Elixir struct keeps: individuals; numbers of a solution, of an observation and of an output; bytes.
type Sizes = (usize, usize, usize, usize, usize);

impl PopulationHandle {
    fn described(population: Population) -> (ResourceArc<Self>, Sizes) {
        let (network, bytes) = (population.network(), population.bytes());
        let (size, inputs, outputs) = (network.size(), network.inputs(), network.outputs());
        let sizes = (population.count(), size, inputs, outputs, bytes);
        let bytes = if population.device().is_cpu() { bytes } else { usize::MAX };
        let population = Locked::new(population);
        (ResourceArc::new(PopulationHandle { population, bytes }), sizes)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Population) -> Result<R>) -> Result<R> {
        self.population.with(Self::NOUN, work)
    }
}

/// Runs `work` on a population.
fn on<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
    work: impl FnOnce(&mut Population) -> Result<T> + Send + 'static,
) -> Term<'a> {
    match population.get() {
        Ok(own) => run(env, op, reference, own.bytes, move || own.with(work)),
        Err(failure) => error(env, op, &failure),
    }
}

fn floats(given: &Given, what: &str) -> Result<Vec<f32>> {
    given.bytes(|bytes| Ok(from_binary(what, bytes, f32::from_le_bytes)?.to_vec()))
}

fn positions(given: &Given, what: &str) -> Result<Vec<u32>> {
    given.bytes(|bytes| Ok(from_binary(what, bytes, u32::from_le_bytes)?.to_vec()))
}

/// Creates a population around a mean of f32, or around 0 for an empty one. Sends `{:ok, {handle, sizes}}` by message.
#[rustler::nif]
fn population_new<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    options: Term<'a>,
    mean: Term<'a>,
) -> Term<'a> {
    let device = device_of(options);
    let (spec, options) = (decode::<Spec>(spec), decode::<PopulationOptions>(options));
    let size =
        spec.as_ref().ok().and_then(|spec| Network::of(spec).ok()).map_or(0, |own| own.size());
    let bytes = options.as_ref().map_or(0, |own| own.count).saturating_mul(4 * size);
    let mean = Given::new(env, mean);
    run(env, "population", reference, bytes, move || {
        let mean = Some(floats(&mean, "mean")?).filter(|mean| !mean.is_empty());
        let device = device::named(&device?)?;
        let made = Population::new(&spec?, &options?, mean.as_deref())?;
        Ok(PopulationHandle::described(made.on(&device)))
    })
}

/// The solutions of individuals of u32. Sends `{:ok, [solutions]}` by message.
#[rustler::nif]
fn population_read<'a>(
    env: Env<'a>,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
    at: Term<'a>,
) -> Term<'a> {
    let at = Given::new(env, at);
    on(env, "read", population, reference, move |population| {
        let at: Vec<usize> =
            positions(&at, "individuals")?.into_iter().map(|at| at as usize).collect();
        Ok(vec![Column::F32(population.read(&at)?)])
    })
}

/// The solutions of all individuals. Sends `{:ok, [solutions]}` by message.
#[rustler::nif]
fn population_solutions<'a>(
    env: Env<'a>,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "solutions", population, reference, |population| {
        Ok(vec![Column::F32(population.solutions()?)])
    })
}

/// Writes solutions of f32 from an individual on. Sends `{:ok, true}` by message.
#[rustler::nif]
fn population_write<'a>(
    env: Env<'a>,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
    first: usize,
    solutions: Term<'a>,
) -> Term<'a> {
    let solutions = Given::new(env, solutions);
    on(env, "write", population, reference, move |population| {
        population.write(first, &floats(&solutions, "solutions")?).map(|()| true)
    })
}

/// Logits of all individuals. Sends `{:ok, [logits]}` by message.
#[rustler::nif]
fn population_forward<'a>(
    env: Env<'a>,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
    observations: Term<'a>,
) -> Term<'a> {
    let observations = Given::new(env, observations);
    on(env, "forward", population, reference, move |population| {
        let observations = floats(&observations, "observations")?;
        Ok(vec![Column::F32(population.forward(&observations)?)])
    })
}

/// Replaces all individuals by children of each other: of pairs of u32, or of random pairs for an empty binary. Sends
/// `{:ok, true}` by message.
#[rustler::nif]
fn population_vary<'a>(
    env: Env<'a>,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
    variation: Term<'a>,
    pairs: Term<'a>,
    stream: (u64, u64),
) -> Term<'a> {
    let (variation, pairs) = (decode::<Variation>(variation), Given::new(env, pairs));
    on(env, "vary", population, reference, move |population| {
        let pairs = Some(positions(&pairs, "parents")?).filter(|pairs| !pairs.is_empty());
        population.vary(&variation?, pairs.as_deref(), stream).map(|()| true)
    })
}

/// Replaces all individuals by children of an archive's elites. Sends `{:ok, true}` by message.
#[rustler::nif]
fn population_vary_from<'a>(
    env: Env<'a>,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
    archive: Handle<ArchiveHandle>,
    variation: Term<'a>,
    stream: (u64, u64),
) -> Term<'a> {
    let variation = decode::<Variation>(variation);
    match archive.get() {
        Ok(archive) => on(env, "vary", population, reference, move |population| {
            let variation = variation?;
            archive.with(|archive| population.vary_from(archive, &variation, None, stream))?;
            Ok(true)
        }),
        Err(failure) => error(env, "vary", &failure),
    }
}

/// Plays episodes, in the background, until the caller dies. Sends `{:ok, [returns, measures, decisions]}` by message.
#[rustler::nif]
fn population_episodes<'a>(
    env: Env<'a>,
    population: Handle<PopulationHandle>,
    reference: Reference<'a>,
    options: Term<'a>,
) -> Term<'a> {
    let options = decode::<Episodes>(options);
    match population.get() {
        Ok(population) => background(env, "episodes", reference, move |stop| {
            let options = options?;
            let got = population.with(|population| population.episodes_until(&options, stop))?;
            let decisions = Column::F64(vec![got.decisions as f64]);
            Ok(vec![Column::F64(got.returns), Column::F64(got.measures), decisions])
        }),
        Err(failure) => error(env, "episodes", &failure),
    }
}

/// The policy of a solution of f32. Sends `{:ok, policy}` by message.
#[rustler::nif]
fn population_policy<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    solution: Term<'a>,
) -> Term<'a> {
    let (spec, solution) = (decode::<Spec>(spec), Given::new(env, solution));
    perform(env, "policy", || {
        pool::submit(env, "policy", reference, move || {
            let network = Network::of(&spec?)?;
            let solution = floats(&solution, "the solution")?;
            Population::policy(&network, &solution).map(PolicyHandle::new)
        })
    })
}

/// The solution of a policy. Sends `{:ok, [solution]}` by message.
#[rustler::nif]
fn population_solution<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    policy: Handle<PolicyHandle>,
) -> Term<'a> {
    perform(env, "solution", || {
        let policy = policy.get()?;
        pool::submit(env, "solution", reference, move || {
            let solution = Population::solution(&*policy.policy()?)?;
            Ok(vec![Column::F32(solution)])
        })
    })
}
