//! What the steps of a run learn from: windows of their own, or lanes that walk through games, made
//! ahead by a loader.

use std::sync::atomic::AtomicBool;

use sconce_core::backbone::State;
use sconce_core::checkpoint::Optimiser;
use sconce_core::{Error, Result, Spec};
use sconce_data::{
    Batch, Drawn, Draws, Flow, Lanes, Loader, LoaderOptions, Reader, Sampler, SamplerOptions, View,
};

use crate::options::{Mode, TrainOptions};

pub struct Source {
    /// What errors call it.
    name: String,
    draws: Draws,
    options: LoaderOptions,
    /// Runs from the first step that is asked for.
    loader: Option<Loader<Draws>>,
    /// Where lanes are after the last step.
    state: Option<State>,
}

/// The batch of a step, and the state before it.
pub struct Loaded {
    pub batch: Batch,
    pub state: State,
    /// Frames that are there: the windows at the end of games are shorter.
    pub frames: usize,
}

impl Source {
    pub fn new(
        name: String,
        views: Vec<View>,
        spec: &Spec,
        options: &TrainOptions,
    ) -> Result<Self> {
        let TrainOptions { batch_size, burn_in, .. } = *options;
        let sampling = sampling(options);
        let reader = Reader {
            neutral_weight: options.neutral_weight,
            transition_weight: options.transition_weight,
            ..Reader::new(spec.embedding.clone(), spec.heads.clone(), options.frame_delay)
        };
        let draws = match options.unroll {
            Mode::Window => {
                let sampler = Sampler::new(views, reader, sampling)?;
                Draws::Windows { sampler, batch_size, burn_in }
            }
            Mode::Carry => {
                let lanes = Lanes::new(views, reader, sampling, batch_size, burn_in)?;
                Draws::Lanes { lanes, burn_in }
            }
        };
        Ok(Source { name, draws, options: options.loader(), loader: None, state: None })
    }

    pub fn steps_per_epoch(&self) -> u64 {
        match &self.draws {
            Draws::Windows { sampler, batch_size, .. } => sampler.steps_per_epoch(*batch_size),
            Draws::Lanes { lanes, .. } => lanes.steps_per_epoch(),
        }
    }

    /// Views that are too short to learn from.
    pub fn short_views(&self) -> usize {
        match &self.draws {
            Draws::Windows { sampler, .. } => sampler.short_views(),
            Draws::Lanes { lanes, .. } => lanes.short_views(),
        }
    }

    /// The examples of step `step`; `zero` is the state of games that begin.
    pub fn draw(&mut self, step: u64, zero: State, cancel: &AtomicBool) -> Result<Loaded> {
        let Drawn { batch, lanes } = self.loader(step)?.next(cancel)?;
        if lanes.is_empty() {
            let frames = batch.weights.len();
            return Ok(Loaded { batch, state: zero, frames });
        }
        let fresh: Vec<bool> = lanes.iter().map(|lane| lane.fresh).collect();
        let state = match &self.state {
            Some(state) => state.renewed(&zero, &fresh)?,
            None => zero,
        };
        Ok(Loaded { batch, state, frames: lanes.iter().map(|lane| lane.frames).sum() })
    }

    /// The loader whose next batch is that of `step`.
    fn loader(&mut self, step: u64) -> Result<&mut Loader<Draws>> {
        let loader = match self.loader.take().filter(|loader| loader.step() == step) {
            Some(loader) => loader,
            None => Loader::start(self.name.as_str(), self.draws.clone(), &self.options, step)?,
        };
        Ok(self.loader.insert(loader))
    }

    /// Game and first frame of each window of batch `draw`.
    pub fn windows(&self, draw: u64) -> Vec<(String, i32)> {
        let (views, places) = match &self.draws {
            Draws::Windows { sampler, batch_size, .. } => {
                (sampler.views(), sampler.places(draw, *batch_size))
            }
            Draws::Lanes { lanes, .. } => {
                let at = lanes.clone().at(draw);
                (lanes.views(), at.iter().map(|lane| (lane.view, lane.start)).collect())
            }
        };
        let place = |(view, start): (usize, usize)| {
            let view = views.get(view)?;
            Some((view.info().source.clone(), view.frame_number(start)))
        };
        places.into_iter().filter_map(place).collect()
    }

    /// What has been loaded, since this process began with it.
    pub fn flow(&self) -> Flow {
        self.loader.as_ref().map(Loader::flow).unwrap_or_default()
    }

    /// The state after the last step, where the next one goes on.
    pub fn hand_on(&mut self, after: &State) -> Result<()> {
        if let Draws::Lanes { .. } = self.draws {
            self.state = Some(after.hand_on()?);
        }
        Ok(())
    }

    /// The states that the next step goes on from.
    pub fn carried(&self) -> Option<State> {
        self.state.clone()
    }

    /// Goes back to states that were [`carried`](Self::carried) before.
    pub fn carry(&mut self, before: Option<State>) {
        self.state = before;
    }

    /// Adds what a resumed run has to know: the states come from weights that are no more.
    pub fn save(&self, numbers: &mut Optimiser) -> Result<()> {
        if let Some(state) = &self.state
            && !state.0.is_empty()
        {
            numbers.insert(CARRIED.into(), state.to_vec()?);
        }
        Ok(())
    }

    /// Goes on after `steps` steps; `zero` has the shapes of the state.
    pub fn load(&mut self, numbers: &Optimiser, zero: State, steps: u64) -> Result<()> {
        let Draws::Lanes { .. } = self.draws else { return Ok(()) };
        self.state = match numbers.get(CARRIED) {
            Some(saved) => Some(zero.with_values(saved)?),
            None if steps == 0 || zero.0.is_empty() => None,
            None => return Err(Error::not_found("states of the lanes")),
        };
        Ok(())
    }
}

/// How the windows of a run are drawn.
pub fn sampling(options: &TrainOptions) -> SamplerOptions {
    SamplerOptions {
        window: options.window_size,
        stride: options.stride,
        sampling: options.sampling,
        weights: options.weights.clone(),
        action_oversample: options.action_oversample,
        mirror: options.mirror,
        noise: options.noise,
        noise_scale: options.noise_scale,
        previous_dropout: options.previous_dropout,
        frame_delay_max: options.frame_delay_max,
        seed: options.seed,
    }
}

/// Name of the lanes' states beside the moments.
const CARRIED: &str = "carried";
