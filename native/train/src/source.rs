//! What the steps of a run learn from: windows of their own, or lanes that walk through games.

use sconce_core::backbone::State;
use sconce_core::checkpoint::Optimiser;
use sconce_core::{Error, Result, Spec};
use sconce_data::{Batch, Lanes, Reader, Sampler, SamplerOptions, View};

use crate::options::{Mode, TrainOptions};

pub enum Source {
    Windows { sampler: Sampler, batch_size: usize, burn_in: usize },
    Carried { lanes: Lanes, burn_in: usize, state: Option<State> },
}

/// The examples of a step, and the state before them.
pub struct Drawn {
    pub batch: Batch,
    pub state: State,
    /// Frames that are there: the windows at the end of games are shorter.
    pub frames: usize,
}

impl Source {
    pub fn new(views: Vec<View>, spec: &Spec, options: &TrainOptions) -> Result<Self> {
        let TrainOptions { window_size: window, stride, mirror, seed, .. } = *options;
        let TrainOptions { batch_size, burn_in, .. } = *options;
        let sampling = SamplerOptions { window, stride, mirror, seed };
        let reader = Reader {
            neutral_weight: options.neutral_weight,
            transition_weight: options.transition_weight,
            ..Reader::new(spec.embedding.clone(), spec.heads.clone(), options.frame_delay)
        };
        Ok(match options.unroll {
            Mode::Window => {
                let sampler = Sampler::new(views, reader, sampling)?;
                Source::Windows { sampler, batch_size, burn_in }
            }
            Mode::Carry => {
                let lanes = Lanes::new(views, reader, sampling, batch_size, burn_in)?;
                Source::Carried { lanes, burn_in, state: None }
            }
        })
    }

    pub fn steps_per_epoch(&self) -> u64 {
        match self {
            Source::Windows { sampler, batch_size, .. } => sampler.steps_per_epoch(*batch_size),
            Source::Carried { lanes, .. } => lanes.steps_per_epoch(),
        }
    }

    /// Views that are too short to learn from.
    pub fn short_views(&self) -> usize {
        match self {
            Source::Windows { sampler, .. } => sampler.short_views(),
            Source::Carried { lanes, .. } => lanes.short_views(),
        }
    }

    /// The examples of step `step`; `zero` is the state of games that begin.
    pub fn draw(&mut self, step: u64, zero: State) -> Result<Drawn> {
        match self {
            Source::Windows { sampler, batch_size, burn_in } => {
                let mut batch = sampler.batch(step, *batch_size)?;
                let window = batch.window.max(1);
                for window in batch.weights.chunks_exact_mut(window) {
                    window.iter_mut().take(*burn_in).for_each(|w| *w = 0.0);
                }
                let frames = batch.weights.len();
                Ok(Drawn { batch, state: zero, frames })
            }
            Source::Carried { lanes, burn_in, state } => {
                let (batch, lanes) = lanes.batch(step, *burn_in)?;
                let fresh: Vec<bool> = lanes.iter().map(|lane| lane.fresh).collect();
                let state = match state {
                    Some(state) => state.renewed(&zero, &fresh)?,
                    None => zero,
                };
                Ok(Drawn { batch, state, frames: lanes.iter().map(|lane| lane.frames).sum() })
            }
        }
    }

    /// The state after the last step, where the next one goes on.
    pub fn hand_on(&mut self, after: &State) -> Result<()> {
        if let Source::Carried { state, .. } = self {
            *state = Some(after.hand_on()?);
        }
        Ok(())
    }

    /// The states that the next step goes on from.
    pub fn carried(&self) -> Option<State> {
        match self {
            Source::Windows { .. } => None,
            Source::Carried { state, .. } => state.clone(),
        }
    }

    /// Goes back to states that were [`carried`](Self::carried) before.
    pub fn carry(&mut self, before: Option<State>) {
        if let Source::Carried { state, .. } = self {
            *state = before;
        }
    }

    /// Adds what a resumed run has to know: the states come from weights that are no more.
    pub fn save(&self, numbers: &mut Optimiser) -> Result<()> {
        if let Source::Carried { state: Some(state), .. } = self
            && !state.0.is_empty()
        {
            numbers.insert(CARRIED.into(), state.to_vec()?);
        }
        Ok(())
    }

    /// Goes on after `steps` steps; `zero` has the shapes of the state.
    pub fn load(&mut self, numbers: &Optimiser, zero: State, steps: u64) -> Result<()> {
        let Source::Carried { state, .. } = self else { return Ok(()) };
        *state = match numbers.get(CARRIED) {
            Some(saved) => Some(zero.with_values(saved)?),
            None if steps == 0 || zero.0.is_empty() => None,
            None => return Err(Error::not_found("states of the lanes")),
        };
        Ok(())
    }
}

/// Name of the lanes' states beside the moments.
const CARRIED: &str = "carried";
