//! The weights of a Spec on a device, and the passes that they compute.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use sconce_tensor::simd::non_finite;
use sconce_tensor::{Device, Tensor};
use serde_json::Value;

use crate::backbone::{Backbone, Context, State};
use crate::device::{self, Held, Owner};
use crate::embedding::IdSlot;
use crate::heads::{Decision, Heads, Trunk};
use crate::sampling::Draw;
use crate::weights::{Builder, Frozen, Init, Source, Weight, Weights};
use crate::{Error, Kind, Result, Spec, memory};

mod eyes;
pub(crate) mod matrices;
mod new_weights;
mod placed;
mod recorded;
mod room;
mod stepped;
mod steps;
mod stored;
mod trunks;

pub(crate) use eyes::Eyes;
pub use matrices::{LEAST_INPUTS, has_two_four, is_matrix, stored_bytes};
pub use new_weights::NewWeight;
pub use placed::Placed;
pub use placed::words::words_of;
pub use recorded::unrecorded;
pub use stepped::Stepped;
pub(crate) use trunks::Critic;
use trunks::Trunks;

/// Input frames of a policy: `batch x time` rows, embedded by the embedding of the Spec.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frames {
    /// Number of windows.
    pub batch: usize,
    /// Number of frames in each window.
    pub time: usize,
    /// Continuous features `[b, t, continuous_width]`.
    pub continuous: Vec<f32>,
    /// Ids `[b, t, id slots]`.
    pub ids: Vec<u32>,
    /// Previous labels `[b, t, num_labels]`; [`crate::heads::NONE`] if there is no previous action.
    pub previous: Vec<f32>,
}

impl Frames {
    /// Copies frames `range` of the windows `rows`.
    pub fn part(&self, rows: &Range<usize>, range: &Range<usize>) -> Frames {
        let shape = [self.batch, self.time];
        Frames {
            batch: rows.len(),
            time: range.len(),
            continuous: part(&self.continuous, shape, rows, range),
            ids: part(&self.ids, shape, rows, range),
            previous: part(&self.previous, shape, rows, range),
        }
    }
}

fn check_logits(logits: &[f32]) -> Result<()> {
    match non_finite(logits) {
        Some(value) => Err(Error::NonFinite { what: "logits".into(), value: value.into() }),
        None => Ok(()),
    }
}

/// Copies frames `range` of the windows `rows` of `data [batch, time, ..]`.
pub fn part<T: Copy>(
    data: &[T],
    [batch, time]: [usize; 2],
    rows: &Range<usize>,
    range: &Range<usize>,
) -> Vec<T> {
    let width = data.len() / (batch * time).max(1);
    let windows = data.chunks_exact((time * width).max(1)).skip(rows.start).take(rows.len());
    windows.flat_map(|row| &row[range.start * width..range.end * width]).copied().collect()
}

/// The parts of a policy that hold weights.
struct Parts {
    eyes: Option<Eyes>,
    tables: Vec<(String, Weight)>,
    trunks: Trunks,
    heads: Heads,
}

impl Parts {
    fn new(spec: &Spec, b: &Builder) -> Result<Self> {
        let eyes = spec.embedding.net().map(|net| Eyes::new(net, b)).transpose()?;
        let mut tables = vec![];
        for table in spec.embedding.tables() {
            let under = b.under(format!("{}_embedding", table.name));
            // A small spread, so that an id never seen in training has little effect.
            let weight = under.get("weight", &[table.rows, table.width], Init::Normal(0.1))?;
            tables.push((table.name.to_string(), weight));
        }
        let trunks = Trunks::new(spec, b)?;
        let (width, b) = (spec.backbone.output_size(spec.embedding.width()), b.under("heads"));
        let heads = match trunks.critic() {
            Some(_) => Heads::beside_critic(&spec.heads, width, &b)?,
            None => Heads::new(&spec.heads, width, &b)?,
        };
        Ok(Parts { eyes, tables, trunks, heads })
    }
}

/// Selects the weights that are trained.
enum Learns {
    Nothing,
    /// All weights except those that are frozen.
    But(Option<Frozen>),
}

/// A policy: weights of a Spec on a device.
pub struct Policy {
    _held: Held,
    spec: Spec,
    weights: Weights,
    /// One of the weights. Tensors of a pass are created with the device and type of this weight.
    place: Tensor,
    /// The network of the embedding.
    eyes: Option<Eyes>,
    tables: Vec<(String, Weight)>,
    slots: Vec<IdSlot>,
    continuous: usize,
    trunks: Trunks,
    heads: Heads,
    notes: Value,
    /// Whether the weights have shapes and no values.
    is_outline: bool,
    turn: Mutex<()>,
    room: room::Room,
    recorded: recorded::Steps,
}

/// The last owner may drop the policy on any thread. The thread must be attached to the card so that its memory is
/// freed.
impl Drop for Policy {
    fn drop(&mut self) {
        device::attach(self.place.device());
    }
}

impl Policy {
    /// Creates a policy with new weights, drawn from `seed`.
    pub fn init(spec: &Spec, seed: u64) -> Result<Self> {
        Self::build(spec, Source::Seed(seed), Learns::Nothing, Value::Null)
    }

    /// Creates a policy with new weights, drawn from `seed`, whose dense layers are orthogonal matrices without biases,
    /// as PPO uses them (Saxe et al. 2014; Andrychowicz et al. 2021; Huang et al. 2022, "The 37 implementation details
    /// of PPO").
    ///
    /// The gain is sqrt(2) in the backbone and in the hidden layers of heads, 1 in each gate of an LSTM or a GRU and in
    /// the output of a value head, and 0.01 in the logits of heads that choose. Tables, norms, convolutions, layers
    /// that start as zero, and the parameters of state spaces (A, D, dt) start as in [`init`](Self::init).
    pub fn init_orthogonal(spec: &Spec, seed: u64) -> Result<Self> {
        Self::build(spec, Source::Orthogonal(seed), Learns::Nothing, Value::Null)
    }

    /// A policy with the same weights, which are trainable except those that are `frozen`.
    pub fn trainable(&self, frozen: Option<Frozen>) -> Result<Self> {
        self.check_weights()?;
        let source = Source::Stored(self.weights.clone());
        Self::build(&self.spec, source, Learns::But(frozen), self.notes.clone())
    }

    /// A policy with these weights, on the device of the weights.
    pub fn from_weights(spec: &Spec, weights: Weights) -> Result<Self> {
        Self::build(spec, Source::Stored(weights), Learns::Nothing, Value::Null)
    }

    /// Moves the policy to `device`, to which its weights are copied.
    pub fn on(self, device: &Device) -> Result<Self> {
        match self.device().same_device(device) {
            true => Ok(self),
            false => self.copy_on(device),
        }
    }

    /// A copy of the policy on `device`.
    pub fn copy_on(&self, device: &Device) -> Result<Self> {
        self.check_weights()?;
        let moved =
            |(name, weight): (&String, &Weight)| Ok((name.clone(), weight.copied_to(device)?));
        let all = || self.weights.iter().map(moved).collect::<Result<_>>();
        let weights = all().or_else(|error| {
            // On out of memory, free the buffers that the device caches and try again.
            if error.kind() != Kind::OutOfMemory {
                return Err(error);
            }
            device::shrink(device);
            all()
        });
        let bytes = size_of::<f32>() * self.num_weights();
        let weights = weights.map_err(|error| error.asking("a policy", bytes as u64))?;
        Self::build(&self.spec, Source::Stored(weights), Learns::Nothing, self.notes.clone())
    }

    /// Serialises passes on a card, because all passes share the card's stream and the state of its libraries.
    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let turn = || {
            device::attach(self.device());
            self.turn.lock().unwrap_or_else(|e| e.into_inner())
        };
        (!self.device().is_cpu()).then(turn)
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.place.device()
    }

    fn build(spec: &Spec, source: Source, learns: Learns, notes: Value) -> Result<Self> {
        spec.validate()?;
        let numbers = match &source {
            Source::Seed(_) | Source::Orthogonal(_) => {
                let sizes = Builder::new(Source::Sizes, false);
                Parts::new(spec, &sizes)?;
                sizes.total()
            }
            Source::Stored(weights) if matches!(learns, Learns::But(_)) => {
                weights.values().map(|w| w.elem_count()).sum()
            }
            // The memory of these weights is already allocated.
            Source::Sizes | Source::Stored(_) => 0,
        };
        memory::room("the weights of a policy", (size_of::<f32>() * numbers) as u64)?;
        memory::caught(|| Self::built(spec, source, learns, notes))
    }

    fn built(spec: &Spec, source: Source, learns: Learns, notes: Value) -> Result<Self> {
        let b = match learns {
            Learns::Nothing => Builder::new(source, false),
            Learns::But(frozen) => Builder::new(source, true).freezing(frozen),
        };
        let is_outline = b.has_sizes_only();
        let Parts { eyes, tables, trunks, heads } = Parts::new(spec, &b)?;
        let weights = b.finish()?;
        let place = weights.values().next().ok_or_else(|| Error::not_found("a weight"))?;
        eyes.iter().try_for_each(|eyes| eyes.check_place(place))?;
        Ok(Policy {
            _held: Held::of(Owner::Weights, weights.values().map(|weight| &**weight)),
            place: Tensor::clone(place),
            eyes,
            tables,
            slots: spec.embedding.id_slots().to_vec(),
            continuous: spec.embedding.continuous_width(),
            trunks,
            heads,
            weights,
            spec: spec.clone(),
            notes,
            is_outline,
            turn: Mutex::new(()),
            room: room::Room::default(),
            recorded: recorded::Steps::default(),
        })
    }

    pub(crate) fn backbone(&self) -> &dyn Backbone {
        self.trunks.first()
    }

    pub(crate) fn critic(&self) -> Option<&Critic> {
        self.trunks.critic()
    }

    /// The network of the embedding.
    pub(crate) fn eyes(&self) -> Option<&Eyes> {
        self.eyes.as_ref()
    }

    /// The trained tables of the embedding, in the order of the embedding.
    pub(crate) fn tables(&self) -> &[(String, Weight)] {
        &self.tables
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// The Spec of the policy.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// All weights by name.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Fewest bits of a weight: those of codes, or 32.
    pub fn bits(&self) -> u32 {
        let codes = self.weights.values().filter_map(|weight| weight.codes());
        codes.map(|codes| codes.bits()).min().unwrap_or(32)
    }

    /// Notes of the checkpoint's writer; null for a policy that was never saved.
    pub fn notes(&self) -> &Value {
        &self.notes
    }

    /// The same policy with other notes.
    #[must_use]
    pub fn noting(mut self, notes: Value) -> Self {
        self.notes = notes;
        self
    }

    /// A number that a training run stored in the notes of this policy. The last checkpoint of a run stores all
    /// options; the best checkpoint stores only the options that play needs.
    pub fn noted(&self, key: &str) -> Option<usize> {
        let noted = self.notes.get(key).or_else(|| self.notes.get("options")?.get(key))?;
        noted.as_u64().and_then(|number| usize::try_from(number).ok())
    }

    /// Number of f32 in all weights.
    pub fn num_weights(&self) -> usize {
        self.weights.values().map(|weight| weight.elem_count()).sum()
    }

    /// The initial state of `batch` games.
    pub fn zero_state(&self, batch: usize) -> Result<State> {
        device::apart(self.device(), || self.trunks.zero_state(batch)?.beside(&self.place))
    }

    /// Number of f32 in the state of one game.
    pub fn state_size(&self) -> Result<usize> {
        Ok(self.trunks.zero_state(1)?.0.iter().map(Tensor::elem_count).sum())
    }

    /// Embedded frames `[b, t, width]`: continuous features, then the looked-up row of each id slot.
    pub fn embed(&self, frames: &Frames) -> Result<Tensor> {
        self.embedded(&self.input(frames)?)
    }

    /// Width of a trunk vector.
    pub fn trunk_width(&self) -> usize {
        self.spec.backbone.output_size(self.spec.embedding.width())
    }

    /// The trunk vectors `[b, t, h]` and the state after the last frame.
    pub fn trunk(
        &self,
        frames: &Frames,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        self.check_room(frames, context)?;
        let pass = || self.passed(frames, state, context);
        let (trunk, state) = memory::caught(|| context.run(pass))?;
        Ok((trunk.vectors, state))
    }

    fn passed(&self, frames: &Frames, state: &State, context: &Context) -> Result<(Trunk, State)> {
        self.passed_of(&self.input(frames)?, state, context)
    }

    fn passed_of(
        &self,
        placed: &Placed,
        state: &State,
        context: &Context,
    ) -> Result<(Trunk, State)> {
        let x = self.embedded(placed)?;
        context.tap("embedding", &x);
        self.trunks.forward(&x, state, context)
    }

    /// Applies the projection of the context to the trunk vectors.
    fn seen(&self, trunk: Trunk, context: &Context) -> Result<Trunk> {
        match context.projection() {
            Some(projection) => Ok(Trunk { vectors: projection.apply(&trunk.vectors)?, ..trunk }),
            None => Ok(trunk),
        }
    }

    /// The input of the heads for the last frame of each window, `[b, h]`, and the state after that frame.
    fn last(&self, frames: &Frames, state: &State, context: &Context) -> Result<(Trunk, State)> {
        self.last_of(&self.input(frames)?, state, context)
    }

    fn last_of(&self, placed: &Placed, state: &State, context: &Context) -> Result<(Trunk, State)> {
        let (trunk, state) = self.passed_of(placed, state, &context.clone().of_last())?;
        let last = trunk.select(|of| Ok(of.narrow(1, of.dim(1)? - 1, 1)?.squeeze(1)?))?;
        Ok((self.seen(last, context)?, state))
    }

    /// Logits `[b * t, num_logits]` of every frame, and the state after the last frame. Autoregressive heads are
    /// conditioned on `labels`; independent heads ignore them.
    pub fn forward(
        &self,
        frames: &Frames,
        labels: Option<&[f32]>,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        self.admitted(frames, context, || self.pass(frames, labels, state, context))
    }

    /// Checks the memory that a pass needs and runs the pass; passes on one card run one at a time. A failed allocation
    /// is an error.
    fn admitted<T>(
        &self,
        frames: &Frames,
        context: &Context,
        pass: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _turn = self.turn();
        self.check_room(frames, context)?;
        memory::caught(|| context.run(pass))
    }

    /// [`forward`](Self::forward) without the check of memory.
    fn pass(
        &self,
        frames: &Frames,
        labels: Option<&[f32]>,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        let (trunk, state) = self.passed(frames, state, context)?;
        let trunk = self.seen(trunk, context)?;
        Ok((self.heads.forward(&trunk, labels, &frames.previous)?, state))
    }

    /// Logits `[b, num_logits]` of the last frame of each window.
    pub fn forward_last(
        &self,
        frames: &Frames,
        labels: Option<&[f32]>,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        self.admitted(frames, context, || {
            let (last, state) = self.last(frames, state, context)?;
            Ok((self.heads.forward(&last, labels, &self.last_previous(frames))?, state))
        })
    }

    /// One decision for the last frame of each window: embed, step the backbone, choose.
    ///
    /// # Errors
    /// `NonFinite` for a non-finite number in the logits or in the state after the last frame. The state is checked
    /// too, because the state can overflow before the logits do and would spoil the next step. The state is not checked
    /// in a [forgetting](Context::forgetting) pass.
    pub fn act(
        &self,
        frames: &Frames,
        state: &State,
        draw: Draw,
        context: &Context,
    ) -> Result<(Decision, State)> {
        if draw.rngs.len() != frames.batch {
            return Err(Error::mismatch("generators", frames.batch, draw.rngs.len()));
        }
        self.admitted(frames, context, || {
            let (last, state) = self.last(frames, state, context)?;
            let decision = self.heads.act(&last, &self.last_previous(frames), draw)?;
            check_logits(&decision.logits)?;
            if !context.is_forgetful() {
                state.check_finite()?;
            }
            Ok((decision, state))
        })
    }

    /// Chooses an action for each of these row-major indices of `[b, t]`, each with a generator of its own. Returns
    /// `[places, num_labels]`.
    pub fn choose(
        &self,
        frames: &Frames,
        places: &[usize],
        state: &State,
        draw: Draw,
        context: &Context,
    ) -> Result<Vec<f32>> {
        if draw.rngs.len() != places.len() {
            return Err(Error::mismatch("generators", places.len(), draw.rngs.len()));
        }
        self.admitted(frames, context, || {
            let (trunk, _) = self.passed(frames, state, context)?;
            let at: Vec<u32> = places.iter().map(|&place| place as u32).collect();
            let at = Tensor::from_vec(at, places.len(), self.device())?;
            let trunk = trunk.select(|of| Ok(of.flatten(0, 1)?.index_select(&at, 0)?))?;
            let trunk = self.seen(trunk, context)?;
            let width = self.spec.heads.num_labels();
            let previous: Vec<f32> = places
                .iter()
                .flat_map(|place| frames.previous.iter().skip(place * width).take(width))
                .copied()
                .collect();
            Ok(self.heads.act(&trunk, &previous, draw)?.choices)
        })
    }

    fn last_previous(&self, frames: &Frames) -> Vec<f32> {
        let width = self.spec.heads.num_labels();
        let windows = frames.previous.chunks_exact((frames.time * width).max(1));
        windows.flat_map(|w| &w[w.len() - width..]).copied().collect()
    }
}
