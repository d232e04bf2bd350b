//! One training step: forward, loss, backward, clip, update.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use candle_core::Tensor;
use sconce_core::backbone::{Context, State};
use sconce_core::checkpoint;
use sconce_core::ops::card;
use sconce_core::ops::simd::non_finite;
use sconce_core::ops::tape::{self, Gradients};
use sconce_core::ops::tensor;
use sconce_core::policy::{Frames, part};
use sconce_core::weights::{Weight, Weights};
use sconce_core::{Error, Policy, Precision, Result, memory, pool};
use serde::{Deserialize, Serialize};

use crate::gradients::WeightGradient;
use crate::loss::Table;
use crate::loss::{Denominators, LossOptions, Objective, Rows, SHARD_ROWS, Sums};
use crate::loss_scale::LossScale;
use crate::optimiser::{
    Next, Optimiser, OptimiserConfig, Parameter, clip, squared_norm, squares_of,
};
use crate::stop::{NEVER, go_on};
use crate::lesson::Lesson;
use crate::teacher::Teacher;
use crate::unroll::stretches;
pub use crate::unroll::Unroll;

mod recorded;

/// Steps whose figures may wait on a card.
pub const MOST_PENDING: usize = 16;

/// Weights, and all that is needed to change them.
pub struct Stepper<'s> {
    policy: Policy,
    optimiser: Optimiser,
    objective: Objective,
    max_grad_norm: f64,
    /// Dropout is drawn from it.
    seed: u64,
    unroll: Unroll,
    /// Of the products of forward and backward pass.
    precision: Precision,
    /// Where gradients leave the range of the precision.
    loss_scale: Option<LossScale>,
    /// How much of what was learned waits for an update.
    learned: f64,
    /// Set to end a step before its next part.
    cancel: &'s AtomicBool,
    /// The objective, where logits are on a card.
    on_card: OnceLock<card::loss::Loss>,
    recorded: Option<recorded::Recorded>,
    pending: Vec<recorded::Pending>,
}

/// What a step learns from.
#[derive(Debug, Clone, Copy)]
pub struct Examples<'a> {
    pub frames: &'a Frames,
    /// `[b, t, num_labels]`
    pub labels: &'a [u16],
    /// `[b, t]`, how much a frame counts.
    pub weights: &'a [f32],
}

/// What a stepper knows of a batch of which it has some windows and others have the rest. What they learn,
/// and its losses, add up to those of the whole.
#[derive(Debug, Clone, Copy)]
pub struct Among<'a> {
    /// The first of its windows: dropout falls as it would in all of them together.
    pub first: usize,
    /// Of the whole batch.
    pub denominators: &'a Denominators,
}

impl Examples<'_> {
    /// How much a frame counts on average.
    pub fn mean_weight(&self) -> f64 {
        mean_weight(self.weights)
    }
}

pub(crate) fn mean_weight(weights: &[f32]) -> f64 {
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    total / weights.len().max(1) as f64
}

/// What learning from a batch cost, in nats.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    pub total: f64,
    /// The mean of each head, see [`Loss::per_head`](crate::loss::Loss::per_head).
    pub heads: Vec<f64>,
    /// The mean divergence from the teacher, which times its weight is in the total.
    pub teacher_kl: Option<f64>,
}

impl Losses {
    /// Adds so many times those of another batch.
    pub fn add(&mut self, other: &Losses, times: f64) {
        self.total += times * other.total;
        self.heads.resize(self.heads.len().max(other.heads.len()), 0.0);
        self.heads.iter_mut().zip(&other.heads).for_each(|(sum, loss)| *sum += times * loss);
        if let Some(kl) = other.teacher_kl {
            *self.teacher_kl.get_or_insert_default() += times * kl;
        }
    }

    /// The mean, of a sum of so many.
    pub fn over(mut self, count: f64) -> Losses {
        self.total /= count;
        self.heads.iter_mut().for_each(|sum| *sum /= count);
        self.teacher_kl = self.teacher_kl.map(|sum| sum / count);
        self
    }
}

/// Losses, and the states of the learner and of a teacher after a batch.
pub type Learned = (Losses, Option<State>, Option<State>);

/// One step's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Stepped {
    pub losses: Losses,
    /// Before the clip. Of a gradient that overflowed f16, by which no weight was changed, infinite.
    pub grad_norm: f64,
    /// Whether any frame counted. Where all weigh nothing, losses and norm are 0 and no weight changes.
    pub learned: bool,
    /// Of each weight, if it was asked for.
    pub gradients: Vec<WeightGradient>,
}

impl<'s> Stepper<'s> {
    /// Trains a copy of `policy`.
    pub fn new(
        policy: &Policy,
        loss: &LossOptions,
        config: OptimiserConfig,
        max_grad_norm: f64,
        seed: u64,
    ) -> Result<Self> {
        let policy = policy.trainable()?;
        let parameter = |(name, weight): (&String, &Weight)| Parameter::new(name, weight.dims());
        let optimiser = Optimiser::new(config, policy.weights().iter().map(parameter).collect());
        let objective = Objective::new(&policy.spec().heads, loss)?;
        Ok(Stepper {
            policy,
            optimiser,
            objective,
            max_grad_norm,
            seed,
            unroll: Unroll::default(),
            precision: Precision::F32,
            loss_scale: None,
            learned: 0.0,
            cancel: &NEVER,
            on_card: OnceLock::new(),
            recorded: None,
            pending: vec![],
        })
    }

    /// Learns with products of this precision. Weights, loss, norms and moments are f32 in each; in f16 the
    /// gradient is that of a loss that is scaled.
    pub fn in_precision(self, precision: Precision) -> Self {
        let loss_scale = (precision == Precision::F16).then(LossScale::default);
        Stepper { precision, loss_scale, ..self }
    }

    /// Goes on with the scale of an earlier run in the same precision.
    pub fn load_loss_scale(&mut self, scale: Option<LossScale>) {
        self.loss_scale = scale;
    }

    /// In f16.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.loss_scale
    }

    /// Ends a step with `Cancelled` before its next part (a micro-batch, a chunk of frames) once `cancel` is
    /// set. No weight has changed then; [`forget`](Self::forget) drops the gradients of the parts before.
    pub fn stopped_by(self, cancel: &'s AtomicBool) -> Self {
        Stepper { cancel, ..self }
    }

    /// # Errors
    /// `Cancelled` once the step is asked to end.
    pub(crate) fn go_on(&self) -> Result<()> {
        go_on(self.cancel)
    }

    pub fn unrolling(self, unroll: Unroll) -> Self {
        Stepper { unroll, ..self }
    }

    /// Works from now on through so many windows of a batch together.
    pub fn set_micro_batch(&mut self, windows: usize) {
        self.unroll.micro_batch = Some(windows);
    }

    /// Keeps an average of the weights, see [`Optimiser::averaging`].
    pub fn averaging(self, decay: Option<f64>) -> Self {
        Stepper { optimiser: self.optimiser.averaging(decay), ..self }
    }

    /// Takes over the moments and averages of an earlier run after so many updates.
    pub fn load_moments(&mut self, updates: u64, moments: &checkpoint::Optimiser) -> Result<()> {
        self.optimiser.load_state(updates, |name| moments.get(name).map(Vec::as_slice))
    }

    /// How many those are, if not all.
    pub fn micro_batch(&self) -> Option<usize> {
        self.unroll.micro_batch
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn optimiser(&self) -> &Optimiser {
        &self.optimiser
    }

    /// The policy as it is now, without the autograd.
    pub fn frozen(&self) -> Result<Policy> {
        Policy::from_weights(self.policy.spec(), self.policy.weights().clone())
    }

    /// The policy to play and to measure, without the autograd, which would keep a whole game's graph
    /// for no backward pass. Its weights are the averages, where they are kept.
    pub fn averaged(&self) -> Result<Policy> {
        let mut weights = self.policy.weights().clone();
        if let Some(averages) = self.optimiser.averages()? {
            for (weight, average) in weights.values_mut().zip(averages) {
                *weight = tensor::beside(weight, average.into_owned(), weight.dims())?.into();
            }
        }
        Policy::from_weights(self.policy.spec(), weights)
    }

    /// Step `step` of a run, counted from 0. A weight that no gradient reaches is an error that
    /// names it, and nothing changes.
    pub fn step(&mut self, x: Examples<'_>, step: u64, learning_rate: f64) -> Result<Stepped> {
        let state = self.policy.zero_state(x.frames.batch)?;
        Ok(self.step_from(x, &state, step, learning_rate)?.0)
    }

    /// A step of windows that begin with `state`; gives the one after them, cut from the graph, where
    /// windows [`carry`](Unroll::carry) theirs on.
    pub fn step_from(
        &mut self,
        x: Examples<'_>,
        state: &State,
        step: u64,
        learning_rate: f64,
    ) -> Result<(Stepped, Option<State>)> {
        let (losses, state) = self.learn(x, state, step, 1.0)?;
        let learned = self.learned > 0.0;
        let grad_norm = self.update(learning_rate)?;
        Ok((Stepped { losses, grad_norm, learned, gradients: vec![] }, state))
    }

    /// Adds `share` times the gradient of a batch to what the next [`update`](Self::update) takes; gives
    /// the batch's losses, and the state after it as [`step_from`](Self::step_from). Dropout is drawn from
    /// `draw`.
    ///
    /// Batches whose shares are their [`mean_weight`](Examples::mean_weight)s have together the
    /// gradient of one batch of all their rows, up to the order of sums; but what a loss takes from the
    /// whole of a batch, `head_normalize` and the entropy of rows of other weights, it takes from each.
    /// One whose frames all weigh nothing adds nothing, and has the loss 0.
    pub fn learn(
        &mut self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        share: f64,
    ) -> Result<(Losses, Option<State>)> {
        let (losses, state, _) = self.learn_from(x, state, draw, share, None)?;
        Ok((losses, state))
    }

    /// As [`learn`](Self::learn), beside a teacher; gives the teacher's state after the batch too.
    pub fn learn_from(
        &mut self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        share: f64,
        lesson: Option<Lesson<'_>>,
    ) -> Result<Learned> {
        self.learn_among(x, state, draw, share, lesson, None)
    }

    /// As [`learn_from`](Self::learn_from), from windows among those of a batch, which counts for `share`.
    pub fn learn_among(
        &mut self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        share: f64,
        lesson: Option<Lesson<'_>>,
        among: Option<Among<'_>>,
    ) -> Result<Learned> {
        if x.weights.iter().all(|weight| *weight == 0.0) {
            let first = among.map_or(0, |among| among.first);
            let pass = || self.pass(x, state, draw, first, lesson, |_, _, _| Ok(()));
            let (state, taught) = match self.unroll.carry {
                true => self.precision.during(pass)?,
                false => (None, None),
            };
            // Other windows of the batch count.
            self.learned += among.map_or(0.0, |_| share);
            return Ok((Losses::default(), state, taught));
        }
        let backward = || self.backward(x, state, draw, share * self.scale(), lesson, among);
        let learned = memory::caught(|| self.precision.during(backward));
        let learned = learned.and_then(|(losses, store, after, taught)| {
            census(self.policy.weights(), &store)?;
            Ok((losses, after, taught))
        });
        match learned {
            Ok(_) => self.learned += share,
            Err(_) => self.forget(),
        }
        learned
    }

    /// Losses of the heads of some windows of a batch, from window `first` on, added over the rows: what
    /// an objective that [normalises](Objective::normalises) wants to know of all windows beforehand.
    pub(crate) fn head_sums(
        &self,
        x: Examples<'_>,
        state: &State,
        draw: u64,
        first: usize,
    ) -> Result<Sums> {
        let mut total = None;
        memory::caught(|| {
            self.precision.during(|| {
                self.pass(x, state, draw, first, None, |x, logits, _| {
                    add(&mut total, self.sums(&logits, x)?);
                    Ok(())
                })
            })
        })?;
        total.ok_or_else(|| Error::not_found("rows of a batch"))
    }

    pub(crate) fn objective(&self) -> &Objective {
        &self.objective
    }

    /// How much of what was learned waits for an update.
    pub fn learned(&self) -> f64 {
        self.learned
    }

    /// The next batch is the first of an update.
    pub fn forget(&mut self) {
        self.policy.weights().values().for_each(Weight::forget);
        self.learned = 0.0;
    }

    /// Clips the mean of the gradients since the last update, changes the weights by it, and gives its
    /// norm before the clip. Without a gradient nothing changes, and the norm is 0; nor does anything by one
    /// that overflowed f16, whose norm is infinite.
    pub fn update(&mut self, learning_rate: f64) -> Result<f64> {
        let updated = self.descend(learning_rate, None);
        self.forget();
        updated
    }

    /// As [`update`](Self::update), with a look at the gradient and the change of each weight.
    pub fn update_observed(&mut self, learning_rate: f64) -> Result<(f64, Vec<WeightGradient>)> {
        let mut seen = vec![];
        let updated = self.descend(learning_rate, Some(&mut seen));
        self.forget();
        Ok((updated?, seen))
    }

    fn descend(
        &mut self,
        learning_rate: f64,
        seen: Option<&mut Vec<WeightGradient>>,
    ) -> Result<f64> {
        if self.learned == 0.0 {
            return Ok(0.0);
        }
        let sum = self.learned * self.scale();
        let at_once = match seen {
            Some(_) => None,
            None => self.update_at_once([sum, self.max_grad_norm, learning_rate])?,
        };
        let weights = self.policy.weights();
        let clipped = match at_once {
            Some(norm) => clip(norm * norm, 1.0, self.max_grad_norm),
            None => clip(squares(weights)?, sum, self.max_grad_norm),
        };
        let (norm, factor) = match clipped {
            Err(_) if self.loss_scale.as_mut().is_some_and(LossScale::halve) => {
                return Ok(f64::INFINITY);
            }
            Err(error) => return Err(culprit(weights, error)?),
            Ok(clipped) => clipped,
        };
        if at_once.is_none() {
            self.update_each(sum, factor, learning_rate, seen)?;
        }
        if let Some(scale) = &mut self.loss_scale {
            scale.updated();
        }
        Ok(norm)
    }

    /// By `factor` times its gradient, a sum of which `sum` is the weight, one weight after the other.
    fn update_each(
        &mut self,
        sum: f64,
        factor: f64,
        learning_rate: f64,
        mut seen: Option<&mut Vec<WeightGradient>>,
    ) -> Result<()> {
        let weights = self.policy.weights();
        self.optimiser.begin();
        let nexts = nexts(&mut self.optimiser, weights, factor, learning_rate);
        let nexts = nexts.inspect_err(|_| self.optimiser.give_up())?;
        for (i, ((name, weight), next)) in weights.iter().zip(nexts).enumerate() {
            let before = seen.is_some().then(|| tensor::to_vec(weight)).transpose()?;
            let optimiser = &mut self.optimiser;
            match next {
                Some(next) => optimiser.take(i, weight, next)?,
                None => weight.gradient(|gradient| {
                    let update =
                        |w: &mut [f32]| optimiser.update(i, w, gradient, factor, learning_rate);
                    tensor::update(weight, update)
                })??,
            }
            if let (Some(seen), Some(before)) = (seen.as_deref_mut(), before) {
                let after = tensor::to_vec(weight)?;
                let look = |g: &[f32]| WeightGradient::new(name, g, sum, &before, &after);
                seen.push(weight.read_gradient(look)?);
            }
        }
        Ok(())
    }

    /// An update of all weights together by gradients that are a sum of so much, clipped to a norm, at a learning
    /// rate, where there are kernels for it: the norm of the mean gradient, which may not be finite.
    fn update_at_once(&mut self, numbers: [f64; 3]) -> Result<Option<f64>> {
        let weights = self.policy.weights().values();
        let given = weights.map(|weight| {
            let gradient = weight.gradient_tensor()?;
            Some((&**weight, gradient))
        });
        let Some(given) = given.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let contiguous = given.into_iter().map(|(p, g)| Ok((p, g.contiguous()?)));
        self.optimiser.update_at_once(&contiguous.collect::<Result<Vec<_>>>()?, numbers)
    }

    /// What gradients are multiplied by beside their share.
    fn scale(&self) -> f64 {
        self.loss_scale.map_or(1.0, |scale| scale.factor())
    }

    /// Forward and backward, part by part. Gradients are left with the weights, but for candle's of
    /// the last part.
    fn backward(
        &self,
        x: Examples<'_>,
        state: &State,
        step: u64,
        share: f64,
        lesson: Option<Lesson<'_>>,
        among: Option<Among<'_>>,
    ) -> Result<(Losses, Gradients, Option<State>, Option<State>)> {
        let (first, mut denominators) = match among {
            Some(among) => (among.first, Some(among.denominators.clone())),
            None => (0, self.denominators(x, state, step)?),
        };
        let (mut total, mut last, mut divergence) = (Total::default(), None::<Gradients>, 0.0);
        let tape = tape::record();
        let (after, taught) = self.pass(x, state, step, first, lesson, |x, logits, advice| {
            let denominators = match &denominators {
                Some(known) => known,
                None => denominators.insert(self.normalised(&logits, x)?),
            };
            let advice = lesson.map(|lesson| lesson.teacher).zip(advice);
            let denominators = denominators.times(share);
            let (kl, gradient) = self.part(&logits, x, &denominators, advice, &mut total)?;
            divergence += kl;
            // Of a chunk of burn-in only the state is wanted.
            if x.weights.iter().all(|weight| *weight == 0.0) {
                tape.forget();
                return Ok(());
            }
            if let Some(store) = last.take() {
                self.policy.weights().values().try_for_each(|w| w.gather(&store).map(drop))?;
            }
            // The loss is not a node of the graph: its gradient at the logits starts the backward pass.
            last = Some(tape::backward(&logits, gradient)?);
            Ok(())
        })?;
        let rows = || Error::not_found("rows of a batch");
        let denominators = denominators.ok_or_else(rows)?;
        let loss = self.objective.finish(&self.sums_of(total)?, &denominators)?;
        let teacher_kl = lesson.map(|_| divergence * denominators.mean());
        let pull = lesson.zip(teacher_kl).map_or(0.0, |(lesson, kl)| lesson.teacher.weight() * kl);
        let losses = Losses { total: loss.value + pull, heads: loss.per_head, teacher_kl };
        Ok((losses, last.ok_or_else(rows)?, after, taught))
    }

    /// Forward, part by part, of windows from `first` on of a batch: `each` gets the examples of a part, its
    /// logits and a teacher's of them. Gives the states after the windows, where they are carried on.
    fn pass(
        &self,
        x: Examples<'_>,
        state: &State,
        step: u64,
        first: usize,
        lesson: Option<Lesson<'_>>,
        mut each: impl FnMut(Examples<'_>, Tensor, Option<Tensor>) -> Result<()>,
    ) -> Result<(Option<State>, Option<State>)> {
        let (mut after, mut taught_after) = (vec![], vec![]);
        for rows in self.micro_batches(x.frames.batch) {
            let mut state = state.rows(&rows)?;
            let mut taught = lesson.map(|lesson| lesson.state.rows(&rows)).transpose()?;
            for range in self.chunks(x.frames.time) {
                self.go_on()?;
                let part = Part::cut(x, rows.clone(), range.clone());
                let goes_on = self.goes_on(&part);
                let (logits, next) = self.forward(&part, &state, step, first)?;
                state = if goes_on { next.hand_on()? } else { next.detach() };
                let mut advice = None;
                if let (Some(lesson), Some(state)) = (lesson, &mut taught) {
                    let frames = lesson.part(&rows, &range);
                    let (logits, next) =
                        lesson.teacher.logits(&frames, &part.labels, state, goes_on)?;
                    (advice, *state) = (Some(logits), next);
                }
                each(part.examples(), logits, advice)?;
            }
            if self.unroll.carry {
                after.push(state);
                taught_after.extend(taught);
            }
        }
        Ok((joined(&after)?, joined(&taught_after)?))
    }

    /// Whether somebody goes on where a part ends.
    fn goes_on(&self, part: &Part<'_>) -> bool {
        self.unroll.carry || part.range.end < part.window
    }

    fn chunks(&self, time: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        stretches(time, self.unroll.truncate_bptt)
    }

    fn micro_batches(&self, batch: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        stretches(batch, self.unroll.micro_batch)
    }

    /// What every part has to know of the whole batch; none if the only part can tell itself.
    fn denominators(
        &self,
        x: Examples<'_>,
        state: &State,
        step: u64,
    ) -> Result<Option<Denominators>> {
        let (batch, time) = (x.frames.batch, x.frames.time);
        let mut first = None;
        if self.objective.normalises() {
            if self.micro_batches(batch).count() * self.chunks(time).count() == 1 {
                return Ok(None);
            }
            // A pass of its own, with the same dropout and without a backward pass.
            first = Some(self.head_sums(x, state, step, 0)?);
        }
        let weights = Some(x.weights);
        self.objective.denominators(x.weights.len(), weights, first.as_ref()).map(Some)
    }

    fn normalised(&self, logits: &Tensor, x: Examples<'_>) -> Result<Denominators> {
        let first = self.sums(logits, x)?;
        self.objective.denominators(x.weights.len(), Some(x.weights), Some(&first))
    }

    /// Losses of the heads, added over the rows.
    fn sums(&self, logits: &Tensor, x: Examples<'_>) -> Result<Sums> {
        if card::wanted(logits) {
            let (loss, rows) = self.there(logits, x)?;
            loss.sums(rows, false)?;
            return Ok(Sums::of_totals(&loss.totals()?));
        }
        let (n, width) = logits.dims2()?;
        tensor::read(logits, |logits| Ok(self.objective.sums(rows(logits, width, x)(0, n))))?
    }

    /// As [`loss_and_gradient`], with what a part adds to the loss in the total.
    fn part(
        &self,
        logits: &Tensor,
        x: Examples<'_>,
        denominators: &Denominators,
        advice: Option<(&Teacher, Tensor)>,
        total: &mut Total,
    ) -> Result<(f64, Tensor)> {
        if card::wanted(logits) && advice.is_none() {
            let (loss, rows) = self.there(logits, x)?;
            let gradient = loss.gradient(rows, &denominators.numbers(), total.there)?;
            total.there = true;
            return Ok((0.0, gradient));
        }
        let (sums, kl, gradient) =
            loss_and_gradient(&self.objective, logits, x, denominators, advice)?;
        add(&mut total.here, sums);
        Ok((kl, gradient))
    }

    fn sums_of(&self, total: Total) -> Result<Sums> {
        if let (true, Some(loss)) = (total.there, self.on_card.get()) {
            return Ok(Sums::of_totals(&loss.totals()?));
        }
        total.here.ok_or_else(|| Error::not_found("rows of a batch"))
    }

    /// The objective on the card of these logits, and rows for it whose labels have been looked at.
    fn there<'a>(
        &self,
        logits: &'a Tensor,
        x: Examples<'a>,
    ) -> Result<(&card::loss::Loss, card::loss::Rows<'a>)> {
        let Examples { labels, weights, .. } = x;
        self.objective.check_labels(labels, weights)?;
        let rows = card::loss::Rows { logits, labels, weights };
        Ok((self.loss_on_card(logits)?, rows))
    }

    /// The objective on the card of `x`.
    fn loss_on_card(&self, x: &Tensor) -> Result<&card::loss::Loss> {
        if let Some(loss) = self.on_card.get() {
            return Ok(loss);
        }
        let Table { places, terms, pos_weights, num_labels, entropy_weight, clamp } =
            &self.objective.table();
        let (num_labels, entropy_weight, clamp) = (*num_labels, *entropy_weight, *clamp);
        let heads =
            card::loss::Heads { places, terms, pos_weights, num_labels, entropy_weight, clamp };
        let loss = card::loss::Loss::new(&heads, x)?;
        Ok(self.on_card.get_or_init(|| loss))
    }

    /// Logits of a part of windows from `first` on.
    fn forward(
        &self,
        part: &Part<'_>,
        state: &State,
        step: u64,
        first: usize,
    ) -> Result<(Tensor, State)> {
        let context = Context::training(self.seed, step);
        let mut context = context
            .chunk(part.window, part.range.start, part.range.len())
            .from_window(first + part.rows.start);
        if let Some(every) = self.unroll.recompute {
            context = context.recomputing(every);
        }
        if !self.goes_on(part) {
            context = context.forgetting();
        }
        self.policy.forward(&part.frames, Some(&part.labels), state, &context)
    }
}

/// The states of some rows and of those after them, if there are any.
fn joined(parts: &[State]) -> Result<Option<State>> {
    if parts.is_empty() { Ok(None) } else { State::joined(parts).map(Some) }
}

/// Gathers the gradients, and refuses a model of which some weight would never learn, by the names of
/// those weights.
fn census(weights: &Weights, store: &Gradients) -> Result<()> {
    let mut missing = vec![];
    for (name, weight) in weights {
        if !weight.gather(store)? {
            missing.push(name.clone());
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::NoGradient { weights: missing }),
    }
}

/// What an update will make of the weights on another device than a CPU, of all before any changes: there may be no
/// room for them.
fn nexts(
    optimiser: &mut Optimiser,
    weights: &Weights,
    factor: f64,
    lr: f64,
) -> Result<Vec<Option<Next>>> {
    let mut next = |(i, weight): (usize, &Weight)| {
        let gradient = weight.gradient_tensor();
        gradient.map(|g| optimiser.next(i, weight, &g, factor, lr)).transpose()
    };
    weights.values().enumerate().map(&mut next).collect()
}

/// Sum of the squares of all gradients. Those of another device are read from there at once.
fn squares(weights: &Weights) -> Result<f64> {
    let (mut here, mut there) = (0.0, vec![]);
    for weight in weights.values() {
        match weight.gradient_tensor() {
            Some(gradient) => there.push(squares_of(&gradient)?),
            None => here += weight.gradient(|g| squared_norm(g)),
        }
    }
    if there.is_empty() {
        return Ok(here);
    }
    Ok(here + Tensor::stack(&there, 0)?.sum_all()?.to_scalar::<f64>()?)
}

/// The weight whose gradient is not finite, if the norm is not because of one.
fn culprit(weights: &Weights, error: Error) -> Result<Error> {
    for (name, weight) in weights {
        if let Some(value) = weight.read_gradient(non_finite)? {
            let what = format!("gradient of {name}");
            return Ok(Error::NonFinite { what, value: value.into() });
        }
    }
    Ok(error)
}

/// Some frames of some windows of a batch, or all of it.
struct Part<'a> {
    rows: Range<usize>,
    range: Range<usize>,
    /// Frames of a whole window.
    window: usize,
    frames: Cow<'a, Frames>,
    labels: Cow<'a, [u16]>,
    weights: Cow<'a, [f32]>,
}

impl<'a> Part<'a> {
    fn cut(x: Examples<'a>, rows: Range<usize>, range: Range<usize>) -> Self {
        let shape @ [batch, window] = [x.frames.batch, x.frames.time];
        if (&rows, &range) == (&(0..batch), &(0..window)) {
            let (labels, weights) = (Cow::Borrowed(x.labels), Cow::Borrowed(x.weights));
            return Part { rows, range, window, frames: Cow::Borrowed(x.frames), labels, weights };
        }
        Part {
            labels: Cow::Owned(part(x.labels, shape, &rows, &range)),
            weights: Cow::Owned(part(x.weights, shape, &rows, &range)),
            frames: Cow::Owned(x.frames.part(&rows, &range)),
            rows,
            range,
            window,
        }
    }

    fn examples(&self) -> Examples<'_> {
        Examples { frames: &self.frames, labels: &self.labels, weights: &self.weights }
    }
}

/// Sums of the parts of a batch, added up here or on the card of their logits.
#[derive(Default)]
struct Total {
    here: Option<Sums>,
    there: bool,
}

fn add(total: &mut Option<Sums>, sums: Sums) {
    match total {
        Some(total) => total.add(&sums),
        None => *total = Some(sums),
    }
}

/// Rows `first..first + count` of examples whose logits are `[n, width]`.
fn rows<'a>(
    logits: &'a [f32],
    width: usize,
    x: Examples<'a>,
) -> impl Fn(usize, usize) -> Rows<'a> + Sync {
    let labels = x.labels.len() / x.weights.len().max(1);
    move |first, count| Rows {
        logits: &logits[first * width..(first + count) * width],
        labels: &x.labels[first * labels..(first + count) * labels],
        weights: Some(&x.weights[first..first + count]),
    }
}

/// What a chunk adds to the loss and to the divergence from a teacher with these logits, and the gradient
/// of the whole at its own, in fixed shards of rows. Computed here, whatever the logits' device.
fn loss_and_gradient(
    objective: &Objective,
    logits: &Tensor,
    x: Examples<'_>,
    denominators: &Denominators,
    advice: Option<(&Teacher, Tensor)>,
) -> Result<(Sums, f64, Tensor)> {
    let (n, width) = logits.dims2()?;
    let (sums, kl, gradient) = tensor::read(logits, |logits| {
        let rows = rows(logits, width, x);
        let alone = |first, gradient: &mut [f32]| {
            objective.backward(rows(first, gradient.len() / width), denominators, gradient, None)
        };
        let Some((teacher, advice)) = advice else {
            return Ok(shards(n, width, |first, gradient| Ok((alone(first, gradient)?, 0.0))));
        };
        tensor::read(&advice, |advice| {
            Ok(shards(n, width, |first, gradient| {
                let sums = alone(first, gradient)?;
                let (count, scale) = (gradient.len() / width, denominators.mean());
                let advice = &advice[first * width..][..gradient.len()];
                let logits = &logits[first * width..][..gradient.len()];
                let weights = &x.weights[first..first + count];
                Ok((sums, teacher.pull(logits, advice, weights, scale, gradient)))
            }))
        })
    })??;
    Ok((sums, kl, tensor::beside(logits, gradient, (n, width))?))
}

/// What `backward(first row, its gradient)` of each shard gives, added in order, and the gradient.
fn shards(
    n: usize,
    width: usize,
    backward: impl Fn(usize, &mut [f32]) -> Result<(Sums, f64)> + Sync,
) -> Result<(Sums, f64, Vec<f32>)> {
    let mut gradient = vec![0.0; n * width];
    let sums: Vec<std::sync::OnceLock<Result<(Sums, f64)>>> =
        (0..n.div_ceil(SHARD_ROWS)).map(|_| std::sync::OnceLock::new()).collect();
    pool::for_each_rows(&mut gradient, width, SHARD_ROWS, |first, gradient| {
        let _ = sums[first / SHARD_ROWS].set(backward(first, gradient));
    });
    let (mut total, mut divergence) = (None, 0.0);
    for sum in sums.into_iter().filter_map(std::sync::OnceLock::into_inner) {
        let (sums, kl) = sum?;
        add(&mut total, sums);
        divergence += kl;
    }
    let total = total.ok_or_else(|| Error::not_found("rows of a batch"))?;
    Ok((total, divergence, gradient))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};
    use sconce_core::Spec;
    use sconce_core::heads::NONE;
    use sconce_core::rng::Rng;
    use sconce_core::spec::{self, HeadKind, RecurrentConfig};

    #[test]
    fn a_weight_that_no_gradient_reaches_is_named() {
        let variable = || Var::ones(2, candle_core::DType::F32, &Device::Cpu).unwrap().into_inner();
        let (used, forgotten) = (variable(), variable());
        let _tape = tape::record();
        let store = tape::backward(&used, used.ones_like().unwrap()).unwrap();
        let weights =
            Weights::from([("used".into(), used.into()), ("forgotten".into(), forgotten.into())]);
        let Err(Error::NoGradient { weights }) = census(&weights, &store) else {
            panic!("no error")
        };
        assert_eq!(weights, ["forgotten"]);
    }

    const BATCH: usize = 3;
    const TIME: usize = 10;

    fn spec() -> Spec {
        let config = RecurrentConfig {
            hidden_size: 9,
            num_layers: 2,
            layer_norm: true,
            input_norm: true,
            dropout: 0.3,
            input_dropout: 0.2,
        };
        let part = |name: &str, kind| spec::Head { name: name.into(), kind, hidden_size: 6 };
        let parts = vec![part("go", HeadKind::Bernoulli(2)), part("to", HeadKind::Categorical(3))];
        let kind = spec::HeadsKind::Autoregressive;
        let heads = spec::Heads { kind, parts, stream_size: 5, prior: false };
        let (embedding, backbone) = (spec::Embedding::Vector(4), spec::Backbone::Gru(config));
        Spec { embedding, backbone, heads }
    }

    fn examples() -> (Frames, Vec<u16>, Vec<f32>) {
        let (rng, n) = (Rng::new(2, "examples", 0), BATCH * TIME);
        let continuous = (0..4 * n as u64).map(|i| rng.normal(i)).collect();
        let previous = vec![NONE; 3 * n];
        let frames = Frames { batch: BATCH, time: TIME, continuous, ids: vec![], previous };
        let labels = (0..n as u64)
            .flat_map(|i| [rng.below(3 * i, 2), rng.below(3 * i + 1, 2), rng.below(3 * i + 2, 3)])
            .map(|label| label as u16)
            .collect();
        // A burn-in of two frames, and some frames that count for more.
        let weights =
            (0..n).map(|i| if i % TIME < 2 { 0.0 } else { 1.0 + (i % 3) as f32 }).collect();
        (frames, labels, weights)
    }

    fn stepper(loss: &LossOptions, unroll: Unroll) -> Stepper<'static> {
        let policy = Policy::init(&spec(), 4).unwrap();
        Stepper::new(&policy, loss, OptimiserConfig::default(), 1.0, 7).unwrap().unrolling(unroll)
    }

    fn gathered(stepper: &Stepper, store: &Gradients) -> Vec<(String, Vec<f32>)> {
        let weights = stepper.policy.weights().iter();
        let all = weights.map(|(name, weight)| {
            weight.gather(store).unwrap();
            let gradient = weight.gradient(|g| g.to_vec());
            weight.forget();
            (name.clone(), gradient)
        });
        all.collect()
    }

    /// Loss and gradients of a step in chunks of so many frames.
    fn learned(loss: &LossOptions, unroll: Unroll) -> (f64, Vec<(String, Vec<f32>)>) {
        let stepper = stepper(loss, unroll);
        let (frames, labels, weights) = examples();
        let x = Examples { frames: &frames, labels: &labels, weights: &weights };
        let zero = stepper.policy.zero_state(BATCH).unwrap();
        let (loss, store, ..) = stepper.backward(x, &zero, 5, 1.0, None, None).unwrap();
        (loss.total, gathered(&stepper, &store))
    }

    /// The same from one graph over the whole window, in which the states are detached.
    fn reference(loss: &LossOptions, chunk: usize) -> (f64, Vec<(String, Vec<f32>)>) {
        let stepper = stepper(loss, Unroll::default());
        let (frames, labels, weights) = examples();
        let mut state = stepper.policy.zero_state(BATCH).unwrap();
        let (_tape, mut logits) = (tape::record(), vec![]);
        for from in (0..TIME).step_by(chunk) {
            let range = from..(from + chunk).min(TIME);
            let context = Context::training(7, 5).chunk(TIME, from, range.len());
            let labels = part(&labels, [BATCH, TIME], &(0..BATCH), &range);
            let frames = frames.part(&(0..BATCH), &range);
            let (part, next) =
                stepper.policy.forward(&frames, Some(&labels), &state, &context).unwrap();
            logits.push(part.reshape((BATCH, range.len(), part.dim(1).unwrap())).unwrap());
            state = next.detach();
        }
        let logits = Tensor::cat(&logits, 1).unwrap().flatten(0, 1).unwrap();
        let x = Examples { frames: &frames, labels: &labels, weights: &weights };
        let denominators = stepper.normalised(&logits, x).unwrap();
        let (sums, _, gradient) =
            loss_and_gradient(&stepper.objective, &logits, x, &denominators, None).unwrap();
        let store = tape::backward(&logits, gradient).unwrap();
        let loss = stepper.objective.finish(&sums, &denominators).unwrap().value;
        (loss, gathered(&stepper, &store))
    }

    fn losses() -> [LossOptions; 2] {
        let full = LossOptions { head_normalize: true, ..LossOptions::default() };
        [LossOptions::plain(), full.with_press_rates(&[0.3, 0.6])]
    }

    #[test]
    fn chunks_have_the_gradients_of_the_window_without_the_paths_that_are_cut() {
        for loss in losses() {
            for chunk in [1, 2, 4, 10] {
                let truncated = Unroll { truncate_bptt: Some(chunk), ..Unroll::default() };
                let (got, want) = (learned(&loss, truncated), reference(&loss, chunk));
                assert!((got.0 - want.0).abs() < 1e-6, "{} is not {}", got.0, want.0);
                for ((name, got), (_, want)) in got.1.iter().zip(&want.1) {
                    let scale = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
                    for (got, want) in got.iter().zip(want) {
                        let error = (got - want).abs() / scale;
                        assert!(error < 1e-5, "{name}, chunks of {chunk}: {got} is not {want}");
                    }
                }
            }
        }
    }

    fn unroll(truncate_bptt: Option<usize>, recompute: Option<usize>) -> Unroll {
        Unroll { truncate_bptt, recompute, ..Unroll::default() }
    }

    #[test]
    fn micro_batches_have_the_gradients_and_the_states_of_the_batch() {
        for loss in losses() {
            for truncate_bptt in [None, Some(4)] {
                let after = |micro_batch| {
                    let unroll = Unroll { micro_batch, carry: true, ..unroll(truncate_bptt, None) };
                    let stepper = stepper(&loss, unroll);
                    let (frames, labels, weights) = examples();
                    let x = Examples { frames: &frames, labels: &labels, weights: &weights };
                    let zero = stepper.policy.zero_state(BATCH).unwrap();
                    let (losses, store, state, _) =
                        stepper.backward(x, &zero, 5, 0.5, None, None).unwrap();
                    let state = ("state".to_string(), state.unwrap().to_vec().unwrap());
                    (losses.total, [gathered(&stepper, &store), vec![state]].concat())
                };
                let want = after(None);
                assert!(after(Some(BATCH)) == want);
                for micro_batch in [1, 2] {
                    let got = after(Some(micro_batch));
                    assert!((got.0 - want.0).abs() < 1e-6, "{} is not {}", got.0, want.0);
                    for ((name, got), (_, want)) in got.1.iter().zip(&want.1) {
                        let scale = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
                        for (got, want) in got.iter().zip(want) {
                            let error = (got - want).abs() / scale;
                            assert!(error < 1e-5, "{name}, {micro_batch}: {got} is not {want}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_chunk_as_long_as_the_window_and_recomputed_blocks_change_no_bit() {
        for loss in losses() {
            let whole = learned(&loss, Unroll::default());
            for truncate_bptt in [None, Some(TIME), Some(TIME + 1)] {
                for recompute in [None, Some(1), Some(2)] {
                    assert!(whole == learned(&loss, unroll(truncate_bptt, recompute)));
                }
            }
            let cut = |recompute| learned(&loss, unroll(Some(3), recompute));
            assert!(cut(None) == cut(Some(1)));
            assert!(cut(None) != whole);
        }
    }

    /// Rows `rows` of the examples.
    fn some(rows: Range<usize>) -> (Frames, Vec<u16>, Vec<f32>) {
        let (frames, labels, weights) = examples();
        let all = rows.start * TIME..rows.end * TIME;
        let continuous = frames.continuous[4 * all.start..4 * all.end].to_vec();
        let previous = frames.previous[3 * all.start..3 * all.end].to_vec();
        let frames = Frames { batch: rows.len(), continuous, previous, ..frames };
        let labels = labels[3 * all.start..3 * all.end].to_vec();
        (frames, labels, weights[all].to_vec())
    }

    #[test]
    fn batches_that_are_accumulated_have_the_gradient_of_one_of_all_their_rows() {
        let mut without_dropout = spec();
        if let spec::Backbone::Gru(config) = &mut without_dropout.backbone {
            (config.dropout, config.input_dropout) = (0.0, 0.0);
        }
        let policy = Policy::init(&without_dropout, 4).unwrap();
        let kept = |parts: &[Range<usize>]| {
            let config = OptimiserConfig::default();
            let mut stepper = Stepper::new(&policy, &LossOptions::plain(), config, 0.1, 7).unwrap();
            for rows in parts {
                let (frames, labels, mut weights) = some(rows.clone());
                // Rows of one batch count for more than those of another.
                let first = weights.iter_mut().zip(rows.start * TIME..);
                first.filter(|(_, i)| *i < TIME).for_each(|(w, _)| *w *= 3.0);
                let x = Examples { frames: &frames, labels: &labels, weights: &weights };
                let zero = stepper.policy.zero_state(rows.len()).unwrap();
                stepper.learn(x, &zero, 0, x.mean_weight()).unwrap();
            }
            let gradients = stepper.policy.weights().iter();
            let gradients = gradients.map(|(name, weight)| {
                let mean = |g: &f32| f64::from(*g) / stepper.learned;
                (name.clone(), weight.gradient(|g| g.iter().map(mean).collect::<Vec<_>>()))
            });
            let gradients: Vec<_> = gradients.collect();
            let norm = stepper.update(1e-3).unwrap();
            (gradients, norm)
        };
        let (want, norm) = kept(std::slice::from_ref(&(0..BATCH)));
        let (got, other_norm) = kept(&[0..1, 1..2, 2..3]);
        assert!((norm - other_norm).abs() < 1e-6 * norm, "{norm} is not {other_norm}");
        for ((name, want), (_, got)) in want.iter().zip(&got) {
            let scale = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
            for (want, got) in want.iter().zip(got) {
                assert!((want - got).abs() < 2e-6 * scale, "{name}: {got} is not {want}");
            }
        }
    }

    fn numbers(policy: &Policy) -> Vec<f32> {
        policy.weights().values().flat_map(|w| tensor::to_vec(w).unwrap()).collect()
    }

    #[test]
    fn a_batch_whose_frames_weigh_nothing_adds_nothing_and_hands_its_state_on() {
        let (frames, labels, weights) = examples();
        let x = Examples { frames: &frames, labels: &labels, weights: &weights };
        let nothing = vec![0.0; weights.len()];
        let empty = Examples { weights: &nothing, ..x };
        let numbers_of = |state: &Option<State>| state.as_ref().unwrap().to_vec().unwrap();
        for unroll in [unroll(None, None), unroll(Some(3), None)] {
            let unroll = Unroll { carry: true, ..unroll };
            let after = |all: &[Examples]| {
                let mut stepper = stepper(&LossOptions::plain(), unroll);
                let zero = stepper.policy.zero_state(BATCH).unwrap();
                let mut states = vec![];
                for x in all {
                    states.push(stepper.learn(*x, &zero, 2, x.mean_weight()).unwrap());
                }
                let norm = stepper.update(1e-2).unwrap();
                (states, norm, numbers(&stepper.policy), stepper.optimiser.updates())
            };
            let (alone, norm, changed, updates) = after(&[x]);
            for all in [[empty, x], [x, empty]] {
                let (both, other, weights, _) = after(&all);
                assert_eq!((other, &weights), (norm, &changed));
                let (losses, state) = &both[usize::from(all[0].weights[TIME - 1] != 0.0)];
                assert_eq!(*losses, Losses::default());
                assert_eq!(numbers_of(state), numbers_of(&alone[0].1));
            }

            // A step of nothing else: no decay, no moment, no count.
            let first = numbers(&stepper(&LossOptions::plain(), unroll).policy);
            let (_, norm, same, none) = after(&[empty, empty]);
            assert_eq!((norm, none, updates), (0.0, 0, 1));
            assert!(same == first && changed != first);
        }
    }

    #[test]
    fn the_plain_losses_of_the_heads_add_up_to_the_loss() {
        let (frames, labels, weights) = examples();
        let alike: Vec<f32> = weights.iter().map(|w| w.min(1.0)).collect();
        let x = Examples { frames: &frames, labels: &labels, weights: &alike };
        for truncate_bptt in [None, Some(3)] {
            let losses = stepper(&LossOptions::plain(), unroll(truncate_bptt, None))
                .step(x, 0, 1e-2)
                .unwrap()
                .losses;
            assert_eq!(losses.heads.len(), 2);
            assert!((losses.heads.iter().sum::<f64>() - losses.total).abs() < 1e-9, "{losses:?}");
        }
    }

    #[test]
    fn a_step_that_is_asked_to_end_goes_through_no_further_part() {
        let (frames, labels, weights) = examples();
        let x = Examples { frames: &frames, labels: &labels, weights: &weights };
        let cut = |micro_batch, truncate_bptt| Unroll {
            micro_batch,
            truncate_bptt,
            ..unroll(None, None)
        };
        for unroll in [cut(Some(1), None), cut(None, Some(3))] {
            let cancel = AtomicBool::new(false);
            let stepper = stepper(&LossOptions::plain(), unroll).stopped_by(&cancel);
            let zero = stepper.policy.zero_state(BATCH).unwrap();
            let mut parts = 0;
            let passed = stepper.pass(x, &zero, 0, 0, None, |_, _, _| {
                parts += 1;
                cancel.store(true, std::sync::atomic::Ordering::Relaxed);
                Ok(())
            });
            assert!(matches!(passed, Err(Error::Cancelled)));
            assert_eq!(parts, 1);
        }
    }

    #[test]
    fn a_batch_that_fails_leaves_nothing_to_the_next_update() {
        let (frames, labels, weights) = examples();
        let x = Examples { frames: &frames, labels: &labels, weights: &weights };
        let after = |fail: bool| {
            let mut stepper = stepper(&LossOptions::plain(), Unroll::default());
            let zero = stepper.policy.zero_state(BATCH).unwrap();
            if fail {
                stepper.learn(x, &zero, 0, 1.0).unwrap();
                let wild = vec![f32::NAN; weights.len()];
                assert!(stepper.learn(Examples { weights: &wild, ..x }, &zero, 1, 1.0).is_err());
            }
            stepper.step(x, 2, 1e-2).unwrap().grad_norm
        };
        assert_eq!(after(true), after(false));
    }

    #[test]
    fn the_averaged_policy_has_the_mean_of_the_weights_so_far() {
        let (frames, labels, weights) = examples();
        let x = Examples { frames: &frames, labels: &labels, weights: &weights };
        let mut stepper = stepper(&LossOptions::plain(), Unroll::default()).averaging(Some(0.5));
        assert_eq!(numbers(&stepper.averaged().unwrap()), numbers(&stepper.policy));
        let after: Vec<Vec<f32>> = (0..3)
            .map(|step| {
                stepper.step(x, step, 1e-2).unwrap();
                numbers(&stepper.policy)
            })
            .collect();
        for (i, got) in numbers(&stepper.averaged().unwrap()).iter().enumerate() {
            let want = (after[0][i] + 2.0 * after[1][i] + 4.0 * after[2][i]) / 7.0;
            assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        }
    }
}
