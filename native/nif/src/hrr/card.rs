//! Holographic vectors on a card. All calls run in the background.

use std::sync::Arc;

use rustler::{Decoder, Encoder, Env, NifResult, Reference, Resource, ResourceArc, Term};
use sconce_hrr::{CardCodes, CardItems, CardVectors, Sum};
use sconce_tensor::{Error, Result, device};

use super::{Made, VectorsHandle, domain, is_spectrum};
use crate::border::{Answer, Handle, Handled, decode, error};
use crate::evolve::{Column, run};

/// Vectors on a card, until the drop.
struct CardHandle(Option<Arc<CardVectors>>);

#[rustler::resource_impl]
impl Resource for CardHandle {}

impl Handled for CardHandle {
    const NOUN: &'static str = "vectors on a card";
}

struct CardCodesHandle(Option<Arc<CardCodes>>);

#[rustler::resource_impl]
impl Resource for CardCodesHandle {}

impl Handled for CardCodesHandle {
    const NOUN: &'static str = "quantised vectors on a card";
}

/// A thread that may wait for the card frees the memory there.
impl Drop for CardHandle {
    fn drop(&mut self) {
        if let Some(own) = self.0.take() {
            device::leave(own.device().clone(), own);
        }
    }
}

impl Drop for CardCodesHandle {
    fn drop(&mut self) {
        if let Some(own) = self.0.take() {
            device::leave(own.device().clone(), own);
        }
    }
}

impl CardHandle {
    fn own(&self) -> Result<Arc<CardVectors>> {
        self.0.clone().ok_or_else(|| Error::not_found("vectors on a card"))
    }
}

/// A batch on a card as an answer, with the sizes of [`Made`].
struct MadeThere(CardVectors);

impl Encoder for MadeThere {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let MadeThere(vectors) = self;
        let sizes = (vectors.count(), vectors.dimension(), is_spectrum(vectors.domain()));
        (ResourceArc::new(CardHandle(Some(Arc::new(vectors.clone())))), sizes).encode(env)
    }
}

/// The argument of a NIF that is a handle of vectors or of quantised ones, on a card.
struct ItemsHandle(Handle<CardHandle>, Handle<CardCodesHandle>);

impl<'a> Decoder<'a> for ItemsHandle {
    fn decode(term: Term<'a>) -> NifResult<Self> {
        Ok(ItemsHandle(Handle::of(term), Handle::of(term)))
    }
}

fn on<'a, T: Answer + Send + 'static>(
    env: Env<'a>,
    op: &'static str,
    vectors: Handle<CardHandle>,
    reference: Reference<'a>,
    work: impl FnOnce(&CardVectors) -> Result<T> + Send + 'static,
) -> Term<'a> {
    match vectors.get().and_then(|own| own.own()) {
        Ok(own) => run(env, op, reference, usize::MAX, move || work(&own)),
        Err(failure) => error(env, op, &failure),
    }
}

/// Copies vectors to a device. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_card_new<'a>(
    env: Env<'a>,
    vectors: Handle<VectorsHandle>,
    reference: Reference<'a>,
    name: String,
) -> Term<'a> {
    match vectors.get() {
        Ok(own) => run(env, "on", reference, usize::MAX, move || {
            CardVectors::of(&own.0, &device::named(&name)?).map(MadeThere)
        }),
        Err(failure) => error(env, "on", &failure),
    }
}

/// Copies vectors to the CPU. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_card_to_cpu<'a>(
    env: Env<'a>,
    vectors: Handle<CardHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "on", vectors, reference, |own| own.to_cpu().map(Made::from))
}

/// The same vectors in a domain. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_card_within<'a>(
    env: Env<'a>,
    vectors: Handle<CardHandle>,
    reference: Reference<'a>,
    spectrum: bool,
) -> Term<'a> {
    on(env, "in_domain", vectors, reference, move |own| own.within(domain(spectrum)).map(MadeThere))
}

/// Binds vectors, or unbinds keys. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_card_bind<'a>(
    env: Env<'a>,
    one: Handle<CardHandle>,
    reference: Reference<'a>,
    other: Handle<CardHandle>,
    keys: bool,
) -> Term<'a> {
    let op = if keys { "unbind" } else { "bind" };
    match other.get().and_then(|other| other.own()) {
        Ok(other) => on(env, op, one, reference, move |one| {
            if keys { one.unbind(&other) } else { one.bind(&other) }.map(MadeThere)
        }),
        Err(failure) => error(env, op, &failure),
    }
}

/// Sums of the vectors of a batch. Sends `{:ok, made}` by message.
#[rustler::nif]
fn hrr_card_superpose<'a>(
    env: Env<'a>,
    vectors: Handle<CardHandle>,
    reference: Reference<'a>,
    options: Term<'a>,
) -> Term<'a> {
    let options = decode::<Sum>(options);
    on(env, "superpose", vectors, reference, |own| own.superpose(&options?).map(MadeThere))
}

/// Vectors with 8 bits a number. Sends `{:ok, handle}` by message.
#[rustler::nif]
fn hrr_card_quantise<'a>(
    env: Env<'a>,
    vectors: Handle<CardHandle>,
    reference: Reference<'a>,
) -> Term<'a> {
    on(env, "quantise", vectors, reference, |own| {
        Ok(ResourceArc::new(CardCodesHandle(Some(Arc::new(CardCodes::of(own)?)))))
    })
}

/// Cosines of queries and items. Sends `{:ok, [cosines]}` by message.
#[rustler::nif]
fn hrr_card_similarity<'a>(
    env: Env<'a>,
    queries: Handle<CardHandle>,
    reference: Reference<'a>,
    items: ItemsHandle,
) -> Term<'a> {
    let ItemsHandle(vectors, codes) = items;
    if let Ok(codes) = codes.get() {
        let codes = codes.0.clone().ok_or_else(|| Error::not_found("quantised vectors"));
        return on(env, "similarity", queries, reference, |own| {
            Ok(vec![Column::F32(own.similarity(CardItems::Codes(&*codes?))?)])
        });
    }
    match vectors.get().and_then(|own| own.own()) {
        Ok(items) => on(env, "similarity", queries, reference, move |own| {
            Ok(vec![Column::F32(own.similarity(CardItems::Numbers(&items))?)])
        }),
        Err(failure) => error(env, "similarity", &failure),
    }
}
