//! Checks that a pass fits in memory before the pass begins.
//!
//! For nearly every pass, an upper bound from the shapes of the weights shows that the pass fits. Otherwise the memory
//! is measured: three passes over a few frames determine a plane over games and frames, because every op needs a
//! constant amount per game and per frame.

use std::sync::OnceLock;

use super::{Frames, Policy};
use crate::backbone::Context;
use crate::heads::NONE;
use crate::memory::{self, Meter};
use crate::{Result, pool};

/// Number of frames of the smallest measured pass: enough rows to select the same matrix products as large passes.
const FRAMES: usize = 32;
/// Bound of the f32 values that a pass holds per input or output value of a weight, if nothing is freed.
const HELD: u64 = 4;
/// Bound of the f32 values that a pass with a graph and its backward pass hold per input or output value of a weight.
const STEP: u64 = 12;
/// Number of frames per stored state in a graph.
const STATE: u64 = 8;
/// Number of f32 values that training keeps per weight: gradient, moments, average, copies for checkpoints.
const WEIGHTS: u64 = 16;
/// Number of buffers as wide as the widest layer that a pass holds at once.
const LAYER: u64 = 32;

/// Bytes of a pass as a linear function of games and frames.
#[derive(Debug, Clone, Copy)]
struct Plane {
    pass: f64,
    game: f64,
    frame: f64,
}

/// Known sizes of a policy's passes.
#[derive(Default)]
pub(super) struct Room {
    sizes: OnceLock<Sizes>,
    /// Planes without taps and with all taps.
    planes: [OnceLock<Option<Plane>>; 2],
}

/// Sizes of a policy that bound the memory of a pass.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Sum of all dimensions of all weights, and the largest dimension.
    widths: u64,
    widest: u64,
    /// Number of f32 in the state of one game, and in all weights.
    state: u64,
    weights: u64,
}

impl Policy {
    /// Returns an error if a pass without a graph does not fit in memory.
    pub(super) fn check_room(&self, frames: &Frames, context: &Context) -> Result<()> {
        // Memory on a card is counted separately, and training plans its own memory.
        if !self.device().is_cpu() || self.place.is_variable() {
            return Ok(());
        }
        let (batch, time, tapped) = (frames.batch, frames.time, context.is_tapped());
        let is_measured = self.room.planes[usize::from(tapped)].get().is_some();
        if !is_measured && memory::fits(self.most_bytes(batch, time, tapped)) {
            return Ok(());
        }
        match self.pass_bytes(batch, time, tapped)? {
            Some(bytes) => memory::room(&format!("a pass over {batch} x {time} frames"), bytes),
            None => Ok(()),
        }
    }

    /// Upper bound of the bytes of a pass without a graph, from the shapes of the weights.
    pub fn most_bytes(&self, batch: usize, time: usize, tapped: bool) -> u64 {
        let (batch, rows) = (batch as u64, (batch as u64).saturating_mul(time as u64));
        let Sizes { widths, widest, state, weights } =
            *self.room.sizes.get_or_init(|| self.sizes());
        // Layers run one after the other, and only taps keep the outputs of earlier layers.
        let held = match tapped {
            true => HELD.saturating_mul(widths),
            false => widths.min(LAYER.saturating_mul(widest)),
        };
        let numbers = rows.saturating_mul(held).saturating_add(batch.saturating_mul(HELD * state));
        4u64.saturating_mul(numbers.saturating_add(2 * weights))
    }

    /// Upper bound of the bytes of a training step, with gradients, moments and average.
    pub fn most_step_bytes(&self, batch: usize, time: usize) -> u64 {
        let Sizes { widths, state, weights, .. } = *self.room.sizes.get_or_init(|| self.sizes());
        let rows = (batch as u64).saturating_mul(time as u64);
        let kept = rows.saturating_mul(STEP.saturating_mul(widths).saturating_add(state / STATE));
        let numbers = kept.saturating_add((batch as u64).saturating_mul(HELD * state));
        4u64.saturating_mul(numbers.saturating_add(WEIGHTS * weights))
    }

    fn sizes(&self) -> Sizes {
        let all = || self.weights.values().flat_map(|weight| weight.dims()).map(|&n| n as u64);
        let (values, widest) =
            self.eyes.as_ref().map_or((0, 1), |eyes| (eyes.values(), eyes.widest()));
        Sizes {
            widths: all().chain([self.continuous as u64, values]).sum(),
            widest: all().chain([widest]).max().unwrap_or(1),
            state: self.state_size().unwrap_or(0) as u64,
            weights: self.num_weights() as u64,
        }
    }

    /// Bytes of a pass without a graph, extrapolated from passes over a few frames. None if the process does not count
    /// its memory.
    pub fn pass_bytes(&self, batch: usize, time: usize, tapped: bool) -> Result<Option<u64>> {
        let known = &self.room.planes[usize::from(tapped)];
        let plane = match known.get() {
            Some(plane) => *plane,
            None => {
                let plane = memory::caught(|| pool::serial(|| self.plane(tapped)))?;
                *known.get_or_init(|| plane)
            }
        };
        let rows = batch as f64 * time as f64;
        Ok(plane.map(|of| (of.pass + of.game * batch as f64 + of.frame * rows) as u64))
    }

    fn plane(&self, tapped: bool) -> Result<Option<Plane>> {
        if Meter::start().is_err() {
            return Ok(None);
        }
        let packed = size_of::<f32>() * self.num_weights();
        memory::room("the packed weights of a pass", packed as u64)?;
        let pass = |batch, time| -> Result<f64> {
            let (frames, labels) = self.blank(batch, time);
            let context = if tapped { Context::tapped() } else { Context::default() };
            let meter = Meter::start()?;
            let zero = self.zero_state(batch)?;
            drop(self.pass(&frames, Some(&labels), &zero, &context)?);
            Ok(meter.peak() as f64)
        };
        // The first pass packs weights, which later passes reuse; it is not measured.
        pass(1, FRAMES)?;
        let [one, longer, more] = [pass(1, FRAMES)?, pass(1, 2 * FRAMES)?, pass(2, FRAMES)?];
        let frame = (longer - one).max(0.0) / FRAMES as f64;
        let game = (more - one - frame * FRAMES as f64).max(0.0);
        let rest = (one - game - frame * FRAMES as f64).max(0.0);
        Ok(Some(Plane { pass: rest, game, frame }))
    }

    /// Returns frames of zeros, and the smallest valid labels.
    fn blank(&self, batch: usize, time: usize) -> (Frames, Vec<f32>) {
        let rows = batch * time;
        let labels = self.spec.heads.least_labels().repeat(rows);
        let frames = Frames {
            batch,
            time,
            continuous: memory::zeros(rows * self.continuous),
            ids: vec![0; rows * self.slots.len()],
            previous: vec![NONE; labels.len()],
        };
        (frames, labels)
    }
}
