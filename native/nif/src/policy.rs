//! The weights of a Spec: `Sconce.Policy`.

use std::path::Path;
use std::sync::Arc;

use rustler::{Binary, Encoder, Env, Reference, Resource, ResourceArc, Term};
use sconce_core::backbone::Context;
use sconce_core::checkpoint::bytes;
use sconce_core::ops::tensor::to_vec;
use sconce_core::{Error, Policy, Result, Spec};
use sconce_serve::frames;
use serde_json::Value;

use crate::border::{Bytes, call, decode, encode, from_binary, inline, perform, pool, to_binary};

/// A policy that never changes, shared by all who hold it.
pub struct PolicyHandle(pub Arc<Policy>);

#[rustler::resource_impl]
impl Resource for PolicyHandle {}

impl PolicyHandle {
    pub fn new(policy: Policy) -> ResourceArc<Self> {
        ResourceArc::new(PolicyHandle(Arc::new(policy)))
    }
}

#[rustler::nif(schedule = "DirtyCpu")]
fn policy_init<'a>(env: Env<'a>, spec: Term<'a>, seed: u64) -> Term<'a> {
    call(env, "init", || Ok(PolicyHandle::new(Policy::init(&decode::<Spec>(spec)?, seed)?)))
}

#[rustler::nif(schedule = "DirtyIo")]
fn policy_load(env: Env, path: String) -> Term {
    call(env, "load", || Ok(PolicyHandle::new(Policy::load(Path::new(&path))?)))
}

#[rustler::nif(schedule = "DirtyIo")]
fn policy_save<'a>(
    env: Env<'a>,
    policy: ResourceArc<PolicyHandle>,
    path: String,
    notes: Term<'a>,
) -> Term<'a> {
    perform(env, "save", || policy.0.save(Path::new(&path), decode(notes)?))
}

#[derive(serde::Serialize)]
struct PolicyInfo<'a> {
    spec: &'a Spec,
    num_weights: usize,
    /// Numbers of a raw row, of an embedded frame, and of the trunk vector.
    raw_width: usize,
    width: usize,
    trunk_width: usize,
    num_logits: usize,
    num_labels: usize,
    /// Numbers of the state of one game.
    state_size: usize,
}

/// `{:ok, {info, notes}}`
#[rustler::nif]
fn policy_info(env: Env, policy: ResourceArc<PolicyHandle>) -> Term {
    inline(env, "info", || {
        let policy = &policy.0;
        let spec = policy.spec();
        let width = spec.embedding.width();
        let state = policy.zero_state(1)?;
        let info = PolicyInfo {
            spec,
            num_weights: policy.num_weights(),
            raw_width: spec.embedding.raw_width(),
            width,
            trunk_width: spec.backbone.output_size(width),
            num_logits: spec.heads.num_logits(),
            num_labels: spec.heads.num_labels(),
            state_size: state.0.iter().map(|part| part.elem_count()).sum(),
        };
        Ok((encode(env, &info)?, text_keys(env, policy.notes())))
    })
}

/// `{:ok, [{name, shape}]}`
#[rustler::nif]
fn policy_weights(env: Env, policy: ResourceArc<PolicyHandle>) -> Term {
    inline(env, "weights", || {
        let weights = policy.0.weights().iter();
        Ok(weights.map(|(name, weight)| (name.clone(), weight.dims().to_vec())).collect::<Vec<_>>())
    })
}

#[rustler::nif(schedule = "DirtyCpu")]
fn policy_weight(env: Env, policy: ResourceArc<PolicyHandle>, name: String) -> Term {
    call(env, "weight", || {
        let weight = policy.0.weights().get(&name);
        let weight = weight.ok_or_else(|| Error::not_found(format!("weight {name}")))?;
        Ok(Bytes(bytes(&to_vec(weight)?)))
    })
}

/// Logits of every frame and the state after the last, `{:ok, {logits, state}}`, by message.
///
/// # Shapes
/// `rows [batch, time, raw_width]` f32, `labels [batch, time, num_labels]` u16, `state` as
/// `backbone::State::to_vec` lays it out.
// Copying the rows of many frames takes longer than a scheduler has.
#[rustler::nif(schedule = "DirtyCpu")]
#[allow(clippy::too_many_arguments)]
fn policy_forward<'a>(
    env: Env<'a>,
    policy: ResourceArc<PolicyHandle>,
    reference: Reference<'a>,
    rows: Binary<'a>,
    batch: usize,
    time: usize,
    labels: Option<Binary<'a>>,
    state: Option<Binary<'a>>,
) -> Term<'a> {
    perform(env, "forward", || {
        let rows = from_binary("frames", &rows, f32::from_le_bytes)?;
        let labels = labels.map(|l| from_binary("labels", &l, u16::from_le_bytes)).transpose()?;
        let state = state.map(|s| from_binary("state", &s, f32::from_le_bytes)).transpose()?;
        let policy = policy.0.clone();
        pool::submit(env, "forward", reference, move || {
            forward(&policy, &rows, (batch, time), labels.as_deref(), state.as_deref())
        })
    })
}

fn forward(
    policy: &Policy,
    rows: &[f32],
    (batch, time): (usize, usize),
    labels: Option<&[u16]>,
    state: Option<&[f32]>,
) -> Result<Forward> {
    let spec = policy.spec();
    let frames = frames::embed(spec, rows, batch, time)?;
    if let Some(labels) = labels {
        frames::check_actions(&spec.heads, labels, batch * time)?;
    }
    let zero = policy.zero_state(batch)?;
    let state = match state {
        Some(numbers) => zero.with_values(numbers)?,
        None => zero,
    };
    let (logits, state) = policy.forward(&frames, labels, &state, &Context::default())?;
    Ok(Forward { logits: to_vec(&logits)?, state: state.to_vec()? })
}

struct Forward {
    logits: Vec<f32>,
    state: Vec<f32>,
}

impl Encoder for Forward {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        (to_binary(env, &self.logits), to_binary(env, &self.state)).encode(env)
    }
}

/// JSON as a term whose maps have text as keys: a file's words must not become atoms.
fn text_keys<'a>(env: Env<'a>, value: &Value) -> Term<'a> {
    match value {
        Value::Array(items) => {
            items.iter().map(|item| text_keys(env, item)).collect::<Vec<_>>().encode(env)
        }
        Value::Object(fields) => {
            let keys: Vec<_> = fields.keys().map(|key| key.encode(env)).collect();
            let values: Vec<_> = fields.values().map(|value| text_keys(env, value)).collect();
            // Keys of an object are distinct, which is all that could fail.
            Term::map_from_term_arrays(env, &keys, &values).unwrap_or_else(|_| Term::map_new(env))
        }
        // Numbers, text, booleans and null look the same in both forms.
        plain => encode(env, &plain).unwrap_or_else(|_| rustler::types::atom::nil().to_term(env)),
    }
}
