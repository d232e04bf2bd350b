//! Policies: `Sconce.Policy`, the weights of a Spec.

use std::mem::{self, ManuallyDrop};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustler::{Binary, Encoder, Env, Reference, Resource, ResourceArc, Term};
use sconce_nn::checkpoint::bytes;
use sconce_nn::packed::{PackedPolicy, Plan};
use sconce_nn::policy::{NewWeight, has_two_four};
use sconce_nn::spec::{HeadKind, Heads};
use sconce_nn::{Policy, Spec};
use sconce_serve::pass::{Forward, Pass};
use sconce_serve::{Encoding, Format, Model};
use sconce_tensor::device::Foreign;
use sconce_tensor::metrics::METRICS;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Error, Result, device, memory};
use serde_json::Value;

use crate::border::{
    Bytes, Data, Given as Kept, Handle, Handled, call, decode, encode, from_binary, inline,
    labels_from, perform, pool, to_binary,
};

/// Maximum number of packed models that a policy keeps: each bound of int8 is a format of its own. A dropped model
/// lives as long as its sessions.
const MOST_MODELS: usize = 4;

/// An immutable policy, shared by all its references, and its models, each packed when a session first needs its
/// format. A handle may be dropped on a scheduler, so memory on a card is freed on a native thread.
pub(crate) struct PolicyHandle {
    /// The policy, or the outline of a packed one. Taken only by the destructor.
    policy: ManuallyDrop<Arc<Policy>>,
    packed: Option<Packed>,
    models: Mutex<Vec<(Format, Arc<Model>)>>,
}

/// A policy of a file whose packed weights are mapped.
struct Packed {
    file: PackedPolicy,
    /// The policy with the weights beside the packed ones, read when they are first needed.
    whole: Mutex<Option<Arc<Policy>>>,
}

impl Drop for PolicyHandle {
    fn drop(&mut self) {
        let models = mem::take(self.models.get_mut().unwrap_or_else(|e| e.into_inner()));
        // SAFETY: this is the destructor, so the field is taken once and never read again.
        let policy = unsafe { ManuallyDrop::take(&mut self.policy) };
        device::leave(policy.device().clone(), (policy, models));
    }
}

#[rustler::resource_impl]
impl Resource for PolicyHandle {}

impl Handled for PolicyHandle {
    const NOUN: &'static str = "policy";
}

impl PolicyHandle {
    pub(crate) fn new(policy: Policy) -> ResourceArc<Self> {
        Self::shared(Arc::new(policy))
    }

    pub(crate) fn shared(policy: Arc<Policy>) -> ResourceArc<Self> {
        let policy = ManuallyDrop::new(policy);
        ResourceArc::new(PolicyHandle { policy, packed: None, models: Mutex::default() })
    }

    fn packed(file: PackedPolicy) -> ResourceArc<Self> {
        let policy = ManuallyDrop::new(file.outline().clone());
        let packed = Some(Packed { file, whole: Mutex::default() });
        ResourceArc::new(PolicyHandle { policy, packed, models: Mutex::default() })
    }

    /// The policy, for its Spec, sizes and notes. It may have no values of weights ([`Policy::outline`]).
    pub(crate) fn outline(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The policy with its weights. Reading those of a packed one takes time, so call it on no scheduler.
    ///
    /// # Errors
    /// `Unavailable` for a file of packed weights only.
    pub(crate) fn policy(&self) -> Result<Arc<Policy>> {
        let Some(Packed { file, whole }) = &self.packed else { return Ok((*self.policy).clone()) };
        let mut whole = whole.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(policy) = &*whole {
            return Ok(policy.clone());
        }
        Ok(whole.insert(Arc::new(file.whole()?)).clone())
    }

    /// Fewest bits of a weight of the policy.
    fn bits(&self) -> u32 {
        self.packed.as_ref().map_or_else(|| self.policy.bits(), |of| of.file.layout().bits)
    }

    /// The model of this policy with weights in `format`. Packing takes time and holds the lock, so call it only on
    /// native threads.
    pub(crate) fn model(&self, format: Format) -> Result<Arc<Model>> {
        let format = self.plain(format);
        let mut models = self.models.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, model)) = models.iter().find(|(of, _)| *of == format) {
            METRICS.model_hits.add(1);
            return Ok(model.clone());
        }
        METRICS.model_misses.add(1);
        let model = Arc::new(self.packed_in(format)?);
        if models.len() == MOST_MODELS {
            models.remove(0);
        }
        models.push((format, model.clone()));
        Ok(model)
    }

    fn plain(&self, format: Format) -> Format {
        match (format, &self.packed) {
            (Format::Stored, Some(packed)) => packed.file.layout().format,
            (format, _) => plain(format, &self.policy),
        }
    }

    /// A new model, which this handle does not keep.
    fn packed_in(&self, format: Format) -> Result<Model> {
        match &self.packed {
            Some(Packed { file, .. }) if file.layout().format == format => {
                Model::of_plan(file.outline().clone(), file.plan().clone())
            }
            _ => Model::new(self.policy()?, format),
        }
    }

    /// The least microseconds of a step in each format, of `rounds` rounds in which the formats take turns; `None` for a
    /// format that this policy or its device cannot have.
    ///
    /// # Errors
    /// That of the first format if no format can be had.
    fn formats_us(&self, formats: &[Format], rounds: usize) -> Result<Vec<Option<f64>>> {
        let model = |format: &Format| match formats.len() {
            // The session that follows uses the same model.
            1 => self.model(*format),
            _ => self.packed_in(self.plain(*format)).map(Arc::new),
        };
        let models: Vec<Result<Arc<Model>>> = formats.iter().map(model).collect();
        if models.iter().all(Result::is_err) {
            return models.into_iter().next().map_or(Ok(vec![]), |first| first.map(|_| vec![]));
        }
        let mut least = vec![None; formats.len()];
        for _round in 0..rounds {
            for (least, model) in least.iter_mut().zip(&models) {
                if let Ok(model) = model {
                    let us = model.measure_step_us()?;
                    *least = Some(least.map_or(us, |before: f64| before.min(us)));
                }
            }
        }
        Ok(least)
    }
}

/// The format that this policy's weights have: without codes and matrices in 2:4 `Stored` is `F32`.
fn plain(format: Format, policy: &Policy) -> Format {
    let is_plain = || policy.bits() == 32 && !has_two_four(policy.weights());
    if format == Format::Stored && is_plain() { Format::F32 } else { format }
}

#[rustler::nif(schedule = "DirtyCpu")]
fn policy_init<'a>(env: Env<'a>, spec: Term<'a>, seed: u64) -> Term<'a> {
    call(env, "init", || Ok(PolicyHandle::new(Policy::init(&decode::<Spec>(spec)?, seed)?)))
}

#[rustler::nif(schedule = "DirtyIo")]
fn policy_load(env: Env, path: String) -> Term {
    call(env, "load", || {
        let path = Path::new(&path);
        Ok(match PackedPolicy::open(path)? {
            Some(packed) => PolicyHandle::packed(packed),
            None => PolicyHandle::new(Policy::load(path)?),
        })
    })
}

/// Copies a policy to the device of this name. Sends `{:ok, policy}` by message.
// On a worker: opening a card takes time, and only native threads work with a card.
#[rustler::nif]
fn policy_on<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    device: String,
) -> Term<'a> {
    perform(env, "device", || {
        let policy = policy.get()?;
        pool::submit(env, "device", reference, move || {
            let policy = policy.policy()?;
            let copy = device::named(&device).and_then(|device| policy.copy_on(&device));
            // Frees a copy that failed for lack of memory.
            device::settle();
            copy.map(PolicyHandle::new)
        })
    })
}

#[rustler::nif(schedule = "DirtyIo")]
fn policy_save<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    path: String,
    notes: Term<'a>,
) -> Term<'a> {
    perform(env, "save", || policy.get()?.policy()?.save(Path::new(&path), decode(notes)?))
}

/// Writes a checkpoint with packed weights, which stand `alone` or beside the others.
#[rustler::nif(schedule = "DirtyCpu")]
fn policy_save_packed<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    path: String,
    notes: Term<'a>,
    (format, alone): (Term<'a>, bool),
) -> Term<'a> {
    perform(env, "save", || {
        let (policy, notes) = (policy.get()?.policy()?, decode(notes)?);
        let refused = |reason: &str| {
            let what = "packed weights".into();
            Err(Error::Unavailable { what, reason: reason.into() })
        };
        if !policy.device().is_cpu() {
            return refused("the policy is not on a CPU");
        }
        match Plan::of(&policy, plain(decode(format)?, &policy))? {
            Some(plan) => plan.save(&policy, Path::new(&path), notes, alone),
            None if policy.spec().is_window_only() => refused("the backbone has no step form"),
            None => refused("a weight is not finite"),
        }
    })
}

/// Sends `{:ok, times}`: the least microseconds of a step in each format, `nil` for one that cannot be had.
#[rustler::nif]
fn policy_formats_us<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    formats: Term<'a>,
    rounds: usize,
) -> Term<'a> {
    perform(env, "measure", || {
        let (policy, formats) = (policy.get()?, decode::<Vec<Format>>(formats)?);
        pool::submit(env, "measure", reference, move || {
            policy.formats_us(&formats, rounds).map(Data)
        })
    })
}

#[derive(serde::Serialize)]
struct PolicyInfo<'a> {
    spec: &'a Spec,
    num_weights: usize,
    /// Values in a raw row.
    raw_width: usize,
    /// Values in an embedded frame.
    width: usize,
    /// Values in the trunk's output.
    trunk_width: usize,
    num_logits: usize,
    num_labels: usize,
    /// Values in the state of one game.
    state_size: usize,
    /// Fewest bits of a weight.
    bits: u32,
    /// The encoding of mapped weights.
    packed: Option<Encoding>,
}

/// Returns `{:ok, {info, notes}}`.
#[rustler::nif]
fn policy_info(env: Env, policy: Handle<PolicyHandle>) -> Term {
    inline(env, "info", || {
        let handle = policy.get()?;
        let policy = handle.outline();
        let spec = policy.spec();
        let width = spec.embedding.width();
        let info = PolicyInfo {
            spec,
            num_weights: policy.num_weights(),
            raw_width: spec.embedding.raw_width(),
            width,
            trunk_width: spec.backbone.output_size(width),
            num_logits: spec.heads.num_logits(),
            num_labels: spec.heads.num_labels(),
            state_size: policy.state_size()?,
            bits: handle.bits(),
            packed: handle.packed.as_ref().map(|of| of.file.plan().encoding()),
        };
        Ok((encode(env, &info)?, text_keys(env, policy.notes())))
    })
}

/// Returns `{:ok, [{name, shape}]}`.
#[rustler::nif]
fn policy_weights(env: Env, policy: Handle<PolicyHandle>) -> Term {
    inline(env, "weights", || {
        let policy = policy.get()?;
        let weights = policy.outline().weights().iter();
        Ok(weights.map(|(name, weight)| (name.clone(), weight.dims().to_vec())).collect::<Vec<_>>())
    })
}

#[rustler::nif(schedule = "DirtyCpu")]
fn policy_weight(env: Env, policy: Handle<PolicyHandle>, name: String) -> Term {
    call(env, "weight", || {
        let policy = policy.get()?;
        let policy = policy.policy()?;
        let weight = policy.weights().get(&name);
        let weight = weight.ok_or_else(|| Error::not_found(format!("weight {name}")))?;
        Ok(Bytes(bytes(&to_vec(weight)?)))
    })
}

/// A copy of the policy with other values of these weights, each `{name, shape or nil, numbers}`. Sends
/// `{:ok, policy}` by message.
// Dirty: copying the numbers of many weights takes too long for a scheduler.
#[rustler::nif(schedule = "DirtyCpu")]
fn policy_put_weights<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    weights: Vec<(String, Option<Vec<usize>>, Binary<'a>)>,
) -> Term<'a> {
    perform(env, "put_weights", || {
        let policy = policy.get()?;
        let bytes = weights.iter().map(|(_, _, bytes)| bytes.len() as u64).sum();
        memory::room("the weights of a policy", bytes)?;
        let given = |(name, dims, bytes): (String, _, Binary)| {
            let values = from_binary(&name, &bytes, f32::from_le_bytes)?;
            Ok(NewWeight { name, dims, values })
        };
        let given = weights.into_iter().map(given).collect::<Result<Vec<_>>>()?;
        pool::submit(env, "put_weights", reference, move || {
            policy.policy()?.with_weights(given).map(PolicyHandle::new)
        })
    })
}

/// Counts of logits and labels of a kind of head, and whether its labels are bits or classes.
#[rustler::nif]
fn head_sizes<'a>(env: Env<'a>, kind: Term<'a>) -> Term<'a> {
    inline(env, "head", || {
        let kind: HeadKind = decode(kind)?;
        kind.validate("head")?;
        Ok((kind.logits(), kind.labels(), kind.classes() > 0))
    })
}

/// Optional inputs of a pass: labels, queue, state, directions.
pub(crate) type Given<'a> =
    (Option<Binary<'a>>, Option<Binary<'a>>, Option<Binary<'a>>, Option<Binary<'a>>);

/// A pass over `rows [batch, time, raw_width]` (f32), if they are on the CPU, with labels and queue in the format of `heads`.
pub(crate) fn pass<'a>(
    heads: &Heads,
    rows: Option<Binary<'a>>,
    (batch, time): (usize, usize),
    (labels, queue, state, project_out): Given<'a>,
    look: Term<'a>,
) -> Result<Pass> {
    let labels_of = |what, given: Option<Binary>| {
        given.map(|binary| labels_from(what, &binary, heads.are_words())).transpose()
    };
    let numbers_of = |what, given: Option<Binary>| {
        given.map(|binary| from_binary(what, &binary, f32::from_le_bytes)).transpose()
    };
    Ok(Pass {
        rows: numbers_of("frames", rows)?.unwrap_or_default(),
        batch,
        time,
        labels: labels_of("labels", labels)?,
        queue: labels_of("queue", queue)?,
        state: numbers_of("state", state)?,
        project_out: numbers_of("project_out", project_out)?,
        look: decode(look)?,
    })
}

/// Sends logits, the state after the last frame and taps by message, as
/// `{:ok, {logits, state, [{name, shape, numbers}]}}`.
// Dirty: copying the rows of many frames takes too long for a scheduler.
#[rustler::nif(schedule = "DirtyCpu")]
fn policy_forward<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    rows: Binary<'a>,
    shape: (usize, usize),
    given: Given<'a>,
    look: Term<'a>,
) -> Term<'a> {
    perform(env, "forward", || {
        let policy = policy.get()?;
        let pass = pass(&policy.outline().spec().heads, Some(rows), shape, given, look)?;
        pool::submit(env, "forward", reference, move || pass.run(&*policy.policy()?).map(Looked))
    })
}

/// Memory of another library on a card: its address and its size in bytes.
type Pointer = (u64, u64);

/// [`policy_forward`] with rows and logits in memory of another library on the policy's card, which `held` keeps: terms
/// with that library's references. The logits of the answer are empty.
///
/// The work holds the references, and drops them after its last copy. So neither the death of the caller nor a garbage
/// collection frees the memory earlier.
// Dirty: as for `policy_forward`.
#[rustler::nif(schedule = "DirtyCpu")]
fn policy_forward_between<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    (rows, logits, held): (Pointer, Pointer, Term<'a>),
    shape: (usize, usize),
    given: Given<'a>,
    look: Term<'a>,
) -> Term<'a> {
    perform(env, "forward", || {
        let policy = policy.get()?;
        let pass = pass(&policy.outline().spec().heads, None, shape, given, look)?;
        let held = Kept::new(env, held);
        pool::submit(env, "forward", reference, move || {
            let policy = policy.policy()?;
            let (of_rows, of_logits) = pass.numbers(policy.spec())?;
            let on = |what, pointer, len| Foreign::on(policy.device(), what, pointer, len);
            let (rows, logits) = (on("frames", rows, of_rows)?, on("logits", logits, of_logits)?);
            // The references are borrowed until the copies have finished.
            let made = held.read(|_held| {
                // SAFETY: the caller has waited until the library has written both, and before the answer only this
                // call refers to the logits. `held` keeps both.
                unsafe { pass.run_between(&policy, &rows, &logits) }
            });
            drop(held);
            made.map(Looked)
        })
    })
}

/// Logits, state and taps as terms.
pub(crate) struct Looked(pub Forward);

impl Encoder for Looked {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let tap = |(name, dims, numbers): &(String, Vec<usize>, Vec<f32>)| {
            (name, dims, to_binary(env, numbers)).encode(env)
        };
        let taps: Vec<Term> = self.0.taps.iter().map(tap).collect();
        (to_binary(env, &self.0.logits), to_binary(env, &self.0.state), taps).encode(env)
    }
}

/// Encodes JSON as a term whose maps have binaries as keys: names from a file must not become atoms.
fn text_keys<'a>(env: Env<'a>, value: &Value) -> Term<'a> {
    match value {
        Value::Array(items) => {
            items.iter().map(|item| text_keys(env, item)).collect::<Vec<_>>().encode(env)
        }
        Value::Object(fields) => {
            let keys: Vec<_> = fields.keys().map(|key| key.encode(env)).collect();
            let values: Vec<_> = fields.values().map(|value| text_keys(env, value)).collect();
            // The call fails only for duplicate keys, and keys of an object are distinct.
            Term::map_from_term_arrays(env, &keys, &values).unwrap_or_else(|_| Term::map_new(env))
        }
        // Numbers, text, booleans and null have the same term in both encodings.
        plain => encode(env, &plain).unwrap_or_else(|_| rustler::types::atom::nil().to_term(env)),
    }
}
