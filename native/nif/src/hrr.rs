//! Holographic vectors: `Sconce.HRR`.

mod card;

use std::sync::Arc;

use rustler::{Decoder, Encoder, Env, NifResult, Reference, Resource, ResourceArc, Term};
use sconce_hrr::{Codes, Domain, Items, Kind, Sum, Vectors};
use sconce_tensor::Result;

use crate::border::{Answer, Given, Handle, Handled, decode, error, from_binary};
use crate::evolve::{Column, length, run, wide};

struct VectorsHandle(Arc<Vectors>);

#[rustler::resource_impl]
impl Resource for VectorsHandle {}

impl Handled for VectorsHandle {
    const NOUN: &'static str = "vectors";
}

struct CodesHandle(Arc<Codes>);

#[rustler::resource_impl]
impl Resource for CodesHandle {}

impl Handled for CodesHandle {
    const NOUN: &'static str = "quantised vectors";
}

/// A batch as an answer: the handle, and the count, the dimension and the domain that its struct keeps.
struct Made(Arc<Vectors>);

impl From<Vectors> for Made {
    fn from(vectors: Vectors) -> Self {
        Made(Arc::new(vectors))
    }
}

impl Encoder for Made {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let Made(vectors) = self;
        let sizes = (vectors.count(), vectors.dimension(), is_spectrum(vectors.domain()));
        (ResourceArc::new(VectorsHandle(vectors.clone())), sizes).encode(env)
    }
}

fn is_spectrum(domain: Domain) -> bool {
    domain == Domain::Spectrum
}

fn domain(is_spectrum: bool) -> Domain {
    if is_spectrum { Domain::Spectrum } else { Domain::Time }
}

/// Items in either form.
enum Memory {
    Vectors(Arc<Vectors>),
    Codes(Arc<Codes>),
}

impl Memory {
    /// The items of a handle of one of both resources.
    fn of(vectors: Handle<VectorsHandle>, codes: Handle<CodesHandle>) -> Result<Memory> {
        match codes.get() {
            Ok(codes) => Ok(Memory::Codes(codes.0.clone())),
            Err(_) => Ok(Memory::Vectors(vectors.get()?.0.clone())),
        }
    }

    fn items(&self) -> Items<'_> {
        match self {
            Memory::Vectors(vectors) => Items::Numbers(vectors),
            Memory::Codes(codes) => Items::Codes(codes),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Memory::Vectors(vectors) => vectors.bytes(),
            Memory::Codes(codes) => codes.bytes(),
        }
    }
}

/// The argument of a NIF that is a handle of vectors or of quantised ones.
struct EitherHandle(Handle<VectorsHandle>, Handle<CodesHandle>);

impl<'a> Decoder<'a> for EitherHandle {
    fn decode(term: Term<'a>) -> NifResult<Self> {
        Ok(EitherHandle(Handle::of(term), Handle::of(term)))
    }
}

/// Runs `work` on vectors. The bytes of these and `more` decide on which thread.
fn on<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    more: usize,
    work: impl FnOnce(&Arc<Vectors>) -> Result<T> + Send + 'static,
) -> Term<'a> {
    match vectors.get() {
        Ok(own) => {
            let bytes = own.0.bytes().saturating_add(more);
            run(env, op, reference, bytes, move || work(&own.0))
        }
        Err(failure) => error(env, op, &failure),
    }
}

/// Runs `work` on two batches.
fn on_both<'a>(
    env: Env<'a>,
    op: &'static str,
    (one, other): (Handle<VectorsHandle>, Handle<VectorsHandle>),
    reference: Reference<'a>,
    work: impl FnOnce(&Arc<Vectors>, &Arc<Vectors>) -> Result<Vectors> + Send + 'static,
) -> Term<'a> {
    match other.get() {
        Ok(other) => {
            let bytes = other.0.bytes();
            on(env, op, one, reference, bytes, move |one| work(one, &other.0).map(Made::from))
        }
        Err(failure) => error(env, op, &failure),
    }
}

/// All batches of a list.
fn all(batches: Vec<Handle<VectorsHandle>>) -> Result<Vec<Arc<Vectors>>> {
    batches.into_iter().map(|batch| Ok(batch.get()?.0.clone())).collect()
}

fn bytes_of(batches: &[Arc<Vectors>]) -> usize {
    batches.iter().map(|batch| batch.bytes()).fold(0, usize::saturating_add)
}

/// Random vectors. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_atoms<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    (count, dimension): (usize, usize),
    kind: Term<'a>,
    seed: u64,
) -> Term<'a> {
    let kind = decode::<Kind>(kind);
    let bytes = count.saturating_mul(dimension).saturating_mul(size_of::<f32>());
    run(env, "atoms", reference, bytes, move || {
        Vectors::atoms(count, dimension, seed, kind?).map(Made::from)
    })
}

/// Vectors of a binary of f32. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_new<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    numbers: Term<'a>,
    dimension: usize,
) -> Term<'a> {
    let (bytes, given) = (length(numbers), Given::new(env, numbers));
    run(env, "from_tensor", reference, bytes, move || {
        let numbers = given.bytes(|bytes| from_binary("numbers", bytes, f32::from_le_bytes))?;
        Vectors::new(dimension, numbers).map(Made::from)
    })
}

/// The numbers in time. Sends `{:ok, [numbers]}` by message.
#[rustler::nif]
fn hrr_numbers<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "to_tensor", vectors, reference, 0, |own| Ok(vec![Column::F32(own.to_numbers()?)]))
}

/// The same vectors in a domain. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_within<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    spectrum: bool,
) -> Term<'a> {
    on(env, "in_domain", vectors, reference, 0, move |own| own.within(domain(spectrum)).map(Made))
}

/// Vectors at indices of u32. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_take<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    indices: Term<'a>,
) -> Term<'a> {
    let given = Given::new(env, indices);
    on(env, "take", vectors, reference, 0, move |own| {
        let word = |bytes| u32::from_le_bytes(bytes) as usize;
        own.take(&given.bytes(|bytes| from_binary("indices", bytes, word))?).map(Made::from)
    })
}

/// All vectors of several batches. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_concat<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    batches: Vec<Handle<VectorsHandle>>,
) -> Term<'a> {
    match all(batches) {
        Ok(batches) => run(env, "concat", reference, bytes_of(&batches), move || {
            Vectors::concat(&batches).map(Made::from)
        }),
        Err(failure) => error(env, "concat", &failure),
    }
}

/// Binds vectors. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_bind<'a>(
    env: Env<'a>,
    one: Handle<VectorsHandle>,
    reference: Reference<'a>,
    other: Handle<VectorsHandle>,
) -> Term<'a> {
    on_both(env, "bind", (one, other), reference, |one, other| one.bind(other))
}

/// Unbinds keys. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_unbind<'a>(
    env: Env<'a>,
    one: Handle<VectorsHandle>,
    reference: Reference<'a>,
    keys: Handle<VectorsHandle>,
    exact: bool,
) -> Term<'a> {
    on_both(env, "unbind", (one, keys), reference, move |one, keys| match exact {
        true => one.unbind_exact(keys),
        false => one.unbind(keys),
    })
}

/// Sums of the vectors of one batch, or of the rows of several. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_superpose<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    batches: Vec<Handle<VectorsHandle>>,
    several: bool,
    options: Term<'a>,
) -> Term<'a> {
    let options = decode::<Sum>(options);
    match all(batches) {
        Ok(batches) => run(env, "superpose", reference, bytes_of(&batches), move || {
            let options = options?;
            let sum = match (&*batches, several) {
                ([one], false) => one.superpose(&options),
                (all, _) => {
                    let all: Vec<&Vectors> = all.iter().map(Arc::as_ref).collect();
                    Vectors::superpose_rows(&all, &options)
                }
            };
            sum.map(Made::from)
        }),
        Err(failure) => error(env, "superpose", &failure),
    }
}

/// Vectors of length 1. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_normalise<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "normalise", vectors, reference, 0, |own| own.normalised().map(Made::from))
}

/// Unitary vectors. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_unitary<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "unitary", vectors, reference, 0, |own| own.unitary().map(Made::from))
}

/// Shifted vectors. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_permute<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    shift: i64,
) -> Term<'a> {
    on(env, "permute", vectors, reference, 0, move |own| own.permute(shift).map(Made::from))
}

/// Powers of a vector, by exponents of f64. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_power<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    exponents: Term<'a>,
) -> Term<'a> {
    let given = Given::new(env, exponents);
    // The phases of a vector and each power cost more than a product.
    on(env, "power", vectors, reference, usize::MAX, move |own| {
        own.power(&given.bytes(|bytes| wide("exponents", bytes))?).map(Made::from)
    })
}

/// Sequences of vectors. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_sequence<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    position: Handle<VectorsHandle>,
    length: Option<usize>,
) -> Term<'a> {
    on_both(env, "sequence", (vectors, position), reference, move |items, position| {
        items.sequence(position, length)
    })
}

/// Vectors at places of sequences, of f64. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_at<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    position: Handle<VectorsHandle>,
    places: Term<'a>,
) -> Term<'a> {
    let given = Given::new(env, places);
    on_both(env, "at", (vectors, position), reference, move |sequence, position| {
        sequence.at_places(position, &given.bytes(|bytes| wide("places", bytes))?)
    })
}

/// Projections of rows of f32. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_project<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    numbers: Term<'a>,
    width: usize,
    target: (usize, u64),
    normalise: bool,
) -> Term<'a> {
    let (bytes, given) = (length(numbers), Given::new(env, numbers));
    // Three transforms cost as much as reading a vector several times.
    let results = (bytes / 4).div_ceil(width.max(1)).saturating_mul(target.0);
    run(env, "project", reference, results.saturating_mul(4), move || {
        let numbers = given.bytes(|bytes| from_binary("numbers", bytes, f32::from_le_bytes))?;
        Vectors::project(&numbers, width, target, normalise).map(Made::from)
    })
}

/// Vectors with 8 bits a number. Sends `{:ok, handle}` by message.
#[rustler::nif]
fn hrr_quantise<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "quantise", vectors, reference, 0, |own| {
        Ok(ResourceArc::new(CodesHandle(Arc::new(Codes::of(own)?))))
    })
}

/// Runs `work` on queries and items. The bytes of all products decide on which thread.
fn on_items<'a>(
    env: Env<'a>,
    op: &'static str,
    (queries, items): (Handle<VectorsHandle>, EitherHandle),
    reference: Reference<'a>,
    work: impl FnOnce(&Vectors, Items<'_>) -> Result<Vec<Column>> + Send + 'static,
) -> Term<'a> {
    match (queries.get(), Memory::of(items.0, items.1)) {
        (Ok(queries), Ok(memory)) => {
            let bytes = queries.0.count().saturating_mul(memory.bytes());
            run(env, op, reference, bytes, move || work(&queries.0, memory.items()))
        }
        (Err(failure), _) | (_, Err(failure)) => error(env, op, &failure),
    }
}

/// Cosines of queries and items. Sends `{:ok, [cosines]}` by message.
#[rustler::nif]
fn hrr_similarity<'a>(
    env: Env<'a>,
    queries: Handle<VectorsHandle>,
    reference: Reference<'a>,
    items: EitherHandle,
) -> Term<'a> {
    on_items(env, "similarity", (queries, items), reference, |queries, items| {
        Ok(vec![Column::F32(queries.similarity(items)?)])
    })
}

/// The most similar items. Sends `{:ok, [indices, similarities]}` by message.
#[rustler::nif]
fn hrr_cleanup<'a>(
    env: Env<'a>,
    queries: Handle<VectorsHandle>,
    reference: Reference<'a>,
    items: EitherHandle,
) -> Term<'a> {
    on_items(env, "cleanup", (queries, items), reference, |queries, items| {
        let found = queries.cleanup(items)?;
        Ok(vec![Column::U32(found.indices), Column::F32(found.similarities)])
    })
}
