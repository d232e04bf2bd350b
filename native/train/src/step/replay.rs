//! Training steps on a card that are recorded once and then replayed.
//!
//! The inputs of a step have fixed addresses: frames, labels and weights of the batch, which are uploaded while the
//! card computes the previous batch; the states before the windows; the learning rate, the denominators, and the
//! counter that seeds the dropout masks. Losses and norms stay on the card until the caller asks for them.

use sconce_data::Batch;
use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::{Frames, words_of};
use sconce_ops::dropout::counted;
use sconce_ops::rows::{Intake, copy};
use sconce_tensor::device::{Graph, Uploads, launch};
use sconce_tensor::{DType, Device, Error, Result, Tensor, tape};

use super::metrics::StepMetrics;
use super::recording::{Buffers, MOST_PENDING, Pending, Recording, STATE};
use super::stepper::Stepper;
use crate::objective::{Denominators, OnCard, PlacedRows, Sums};

impl Stepper<'_> {
    /// Whether a step of this batch can be recorded: kernels must compute the whole update.
    pub fn records(&self, batch: &Batch) -> bool {
        let (windows, time) = (batch.frames.batch, batch.frames.time);
        let same = |recorded: &Recording| recorded.shape == [windows, time];
        let refused = |recorded: &Recording| same(recorded) && recorded.graph.is_none();
        let whole = |each: Option<usize>, all: usize| each.is_none_or(|each| each >= all);
        self.policy.device().is_cuda()
            && self.form().is_ok()
            && !self.objectives.two_passes()
            && self.loss_scale.is_none()
            && self.optimiser.has_kernels()
            && self.unroll.recompute.is_none()
            && whole(self.unroll.truncate_bptt, time)
            && whole(self.unroll.micro_batch, windows)
            && self.learned == 0.0
            && self.masters.is_empty()
            && !self.recorded.as_ref().is_some_and(refused)
            && (self.pending.is_empty() || self.recorded.as_ref().is_some_and(same))
            && batch.weights.iter().any(|weight| *weight != 0.0)
    }

    /// Launches a step that can be recorded. [`results`](Self::results) returns the step's figures, and must be called
    /// before more than [`MOST_PENDING`] steps wait. Returns the state after the step, as
    /// [`step_from`](Self::step_from) does.
    pub fn begin(
        &mut self,
        batch: &Batch,
        state: &State,
        draw: u64,
        learning_rate: f64,
    ) -> Result<Option<State>> {
        let shape = [batch.frames.batch, batch.frames.time];
        self.objectives.check(batch)?;
        let denominators = self.objectives.denominators(batch, None)?;
        let numbers = [1.0, self.max_grad_norm, learning_rate];
        let after = match self.recorded.take().filter(|recorded| recorded.shape == shape) {
            Some(mut recorded) => {
                let from = (state, draw);
                let after = self.play(&mut recorded, Some(batch), from, &denominators, numbers);
                // The recording holds figures of earlier steps, so it is kept even if this step fails.
                self.recorded = Some(recorded);
                after?
            }
            None => {
                let recorded = self.record(batch, state, draw, &denominators, numbers)?;
                let after = self.keep(&recorded.buffers, 0)?;
                self.recorded = Some(recorded);
                after
            }
        };
        self.pending.push(Pending { denominators });
        Ok(after)
    }

    fn play(
        &mut self,
        recorded: &mut Recording,
        batch: Option<&Batch>,
        (state, draw): (&State, u64),
        denominators: &[Denominators],
        numbers: [f64; 3],
    ) -> Result<Option<State>> {
        let Recording { graph: Some(graph), buffers, uploads, gradients, .. } = recorded else {
            return Err(Error::not_found("a recorded step"));
        };
        if let Some(batch) = batch {
            let (frames, others) = self.policy.words(&batch.frames)?;
            uploads.send(&sent(batch, frames, &others), &buffers.words)?;
        }
        buffers.set(state, draw, self.unroll.carry)?;
        self.prepare(denominators)?;
        self.optimiser.at_once()?.point_at(gradients)?;
        self.optimiser.set_at_once(numbers)?;
        graph.play()?;
        self.keep(buffers, self.pending.len())
    }

    /// Launches a recorded step of the last batch once more, which is still on the card: to measure the card alone.
    pub fn again(
        &mut self,
        batch: &Batch,
        state: &State,
        draw: u64,
        learning_rate: f64,
    ) -> Result<()> {
        let denominators = self.objectives.denominators(batch, None)?;
        let none = || Error::not_found("a recorded step");
        let mut recorded = self.recorded.take().ok_or_else(none)?;
        let numbers = [1.0, self.max_grad_norm, learning_rate];
        let after = self.play(&mut recorded, None, (state, draw), &denominators, numbers);
        self.recorded = Some(recorded);
        after?;
        self.pending.push(Pending { denominators });
        Ok(())
    }

    /// Number of steps whose figures wait on the card.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Waits for the steps since the last call and returns their figures.
    ///
    /// # Errors
    /// `NonFinite` in the result of each step whose loss or gradient is not finite; such a step changed nothing.
    pub fn results(&mut self) -> Result<Vec<Result<StepMetrics>>> {
        let pending = std::mem::take(&mut self.pending);
        let Some(recorded) = self.recorded.as_ref().filter(|_| !pending.is_empty()) else {
            return Ok(vec![]);
        };
        let results = recorded.buffers.results.narrow(0, 0, pending.len())?;
        let rows: Vec<Vec<f64>> = results.to_vec2()?;
        if let Some([updates, ..]) = rows.last().map(|row| &row[row.len() - STATE..]) {
            let updates = self.optimiser.updates().max(*updates as u64);
            self.optimiser.updated_at_once(updates)?;
        }
        let stepped = pending.iter().zip(&rows).map(|(pending, row)| {
            let (totals, state) = row.split_at(row.len() - STATE);
            let sums = [Sums(totals.to_vec())];
            let figures = self.objectives.figures(&sums, &pending.denominators)?;
            if !state[1].is_finite() {
                return Err(Error::NonFinite { what: "gradient".into(), value: state[1] });
            }
            Ok(StepMetrics { figures, grad_norm: state[1], learned: true, gradients: vec![] })
        });
        Ok(stepped.collect())
    }

    /// Runs a step and records it.
    fn record(
        &mut self,
        batch: &Batch,
        state: &State,
        draw: u64,
        denominators: &[Denominators],
        numbers: [f64; 3],
    ) -> Result<Recording> {
        let Device::Cuda(card) = self.policy.device().clone() else {
            return Err(Error::mismatch("device", "a card", "another"));
        };
        let (frames, others) = self.policy.words(&batch.frames)?;
        let words = sent(batch, frames, &others);
        let len = words.iter().map(|part| part.len()).sum();
        let buffers = self.buffers(batch, len)?;
        let mut uploads = Uploads::new(&card, len)?;
        uploads.send(&words, &buffers.words)?;
        buffers.set(state, draw, self.unroll.carry)?;
        self.prepare(denominators)?;
        let shape = [batch.frames.batch, batch.frames.time];
        let mut gradients = vec![];
        let graph = Graph::record(&card, |recording| {
            let own = self.gradients(&buffers, shape)?;
            let weights = self.learning.values();
            let given: Vec<(&Tensor, Tensor)> = weights.map(|w| &**w).zip(own).collect();
            if recording {
                gradients = given
                    .iter()
                    .map(|(_, g)| launch::pointer(g))
                    .collect::<sconce_tensor::candle::Result<_>>()?;
                return self.optimiser.at_once()?.launch();
            }
            match self.optimiser.begin_at_once(&given, numbers)? {
                true => Ok(()),
                false => Err(Error::not_found("kernels of an update")),
            }
        })?;
        Ok(Recording { graph, shape, buffers, uploads, gradients })
    }

    fn buffers(&self, batch: &Batch, words: usize) -> Result<Buffers> {
        let frames: &Frames = &batch.frames;
        let placed = self.policy.place(frames)?;
        let device = self.policy.device();
        let before = self.policy.zero_state(frames.batch)?.hand_on()?;
        let sums = self.form()?.totals().elem_count();
        let labels = Tensor::zeros(batch.labels.len(), DType::F32, device)?;
        let weights = Tensor::zeros(batch.weights.len(), DType::F32, device)?;
        let tensors: Vec<&Tensor> = placed.tensors().chain([&labels, &weights]).collect();
        Ok(Buffers {
            words: Tensor::zeros(words, DType::U32, device)?,
            intake: Intake::new(0, &[], &tensors, 0)?,
            placed,
            labels,
            weights,
            after: before.hand_on()?,
            before,
            counter: Tensor::zeros(1, DType::I64, device)?,
            results: Tensor::zeros((MOST_PENDING, sums + STATE), DType::F64, device)?,
        })
    }

    /// Forward pass, loss and backward pass. Returns the gradient of each weight, in the order of their names.
    fn gradients(&self, buffers: &Buffers, [_, time]: [usize; 2]) -> Result<Vec<Tensor>> {
        let Buffers { words, intake, placed, labels, weights, before, after, counter, .. } =
            buffers;
        // SAFETY: without parts and an answer the intake only copies words, and `words` has as many as its tensors
        // take.
        unsafe { intake.take(launch::pointer(words)?, None) }?;
        let context = Context::training(self.seed, 0).in_precision(self.precision);
        let mut context = context.chunk(time, 0, time).from_window(0);
        if !self.unroll.carry {
            context = context.forgetting();
        }
        let _tape = tape::record();
        let forward = || self.policy.forward_placed(placed, Some(labels), before, &context);
        let (logits, next) = counted(counter, forward)?;
        let logits = logits.contiguous()?;
        let rows = PlacedRows { logits: &logits.detach(), labels, weights };
        let gradient = self.form()?.gradient(rows, false)?;
        let store = tape::backward(&logits, gradient)?;
        if self.unroll.carry {
            for (from, to) in next.0.iter().zip(&after.0) {
                copy(&from.detach(), to)?;
            }
        }
        let mut missing = vec![];
        let mut all = vec![];
        for (name, weight) in &self.learning {
            match store.get(weight) {
                Some(gradient) => all.push(gradient.contiguous()?),
                None => missing.push(name.clone()),
            }
        }
        match missing.is_empty() {
            true => Ok(all),
            false => Err(Error::NoGradient { weights: missing }),
        }
    }

    /// The objective's form on the card.
    fn form(&self) -> Result<&dyn OnCard> {
        let weight = self.learning.values().next();
        let form = weight.map(|weight| self.objectives.on_card(weight)).transpose()?.flatten();
        form.ok_or_else(|| Error::not_found("a form of the objective on a card"))
    }

    fn prepare(&self, denominators: &[Denominators]) -> Result<()> {
        denominators.iter().try_for_each(|whole| self.form()?.prepare(whole))
    }

    /// Copies the figures of the last step to row `row` of the results. Returns the state after the step if windows
    /// carry on.
    fn keep(&self, buffers: &Buffers, row: usize) -> Result<Option<State>> {
        let row = buffers.results.narrow(0, row, 1)?.squeeze(0)?;
        let sums = row.elem_count() - STATE;
        copy(self.form()?.totals(), &row.narrow(0, 0, sums)?)?;
        let state = self.optimiser.known_at_once()?.state_there();
        copy(state, &row.narrow(0, sums, STATE)?)?;
        match self.unroll.carry {
            true => Ok(Some(buffers.after.hand_on()?)),
            false => Ok(None),
        }
    }
}

/// The words of a batch for the card: those of the frames, then labels and weights, none of them copied.
fn sent<'a>(batch: &'a Batch, frames: &'a [u32], others: &'a [u32]) -> [&'a [u32]; 4] {
    [frames, others, words_of(&batch.labels), words_of(&batch.weights)]
}
