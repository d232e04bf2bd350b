//! Updates of all parameters at once, on the card that holds them.

use sconce_tensor::device::{Held, Owner};
use sconce_tensor::{DType, Error, Result, Tensor};

use super::Optimiser;
use super::config::{Decay, Kind};
use super::kernels::{AdamW, Parameter, Settings, State};
use super::memory::Memory;

impl Optimiser {
    /// Runs one update of all parameters, in the order given to `new`. `numbers` are `[learned, max_norm, lr]`; each
    /// gradient is a sum, and the mean gradient is this sum divided by `learned`. Returns the norm of the mean gradient
    /// before the clip; a norm that is not finite changes nothing. Returns `None` and does nothing if no kernel
    /// supports the update.
    pub fn update_at_once(
        &mut self,
        parameters: &[(&Tensor, Tensor)],
        numbers: [f64; 3],
    ) -> Result<Option<f64>> {
        if !self.begin_at_once(parameters, numbers)? {
            return Ok(None);
        }
        let State { updates, norm } = self.at_once()?.state()?;
        self.updates = updates;
        Ok(Some(norm))
    }

    /// Whether there are kernels for updates of this kind.
    pub fn has_kernels(&self) -> bool {
        matches!(self.config.kind, Kind::AdamW | Kind::Adam)
    }

    /// Launches [`update_at_once`](Self::update_at_once) without waiting for the result. Returns whether it was
    /// launched.
    pub fn begin_at_once(
        &mut self,
        parameters: &[(&Tensor, Tensor)],
        [learned, max_norm, lr]: [f64; 3],
    ) -> Result<bool> {
        if parameters.len() != self.parameters.len()
            || !self.has_kernels()
            || !parameters.iter().all(|(p, g)| has_kernels(p, g))
        {
            return Ok(false);
        }
        for (i, (p, g)) in parameters.iter().enumerate() {
            self.check(i, p.elem_count(), g.elem_count())?;
        }
        let mut kept = vec![];
        for (memory, (p, _)) in self.memory.iter_mut().zip(parameters) {
            let Memory { moments: [mean, square], average, held } = memory;
            let own = (mean.beside(p)?, square.beside(p)?, average.beside(p)?);
            *held = Held::of(Owner::Optimiser, own.0.iter().chain(&own.1).chain(&own.2));
            kept.push(own);
        }
        let all = parameters.iter().zip(&kept).zip(&self.parameters);
        let all = all.filter_map(|(((p, g), (mean, square, average)), known)| {
            let (mean, square) = (mean.as_ref()?, square.as_ref()?);
            Some(Parameter { p, g, mean, square, average: average.as_ref(), decays: known.decay })
        });
        let all: Vec<Parameter> = all.collect();
        let settings = self.settings([learned, max_norm, lr]);
        let known = self.card.take().filter(|card| card.fits(&all));
        let Some(mut card) = known.map_or_else(|| AdamW::new(&all), |card| Ok(Some(card)))? else {
            return Ok(false);
        };
        card.prepare(&all, &settings, self.updates)?;
        card.launch()?;
        self.card = Some(card);
        Ok(true)
    }

    /// The latest launched update of all parameters: to record it, or to set gradients and settings of a recorded
    /// update.
    pub fn at_once(&mut self) -> Result<&mut AdamW> {
        self.card.as_mut().ok_or_else(|| Error::not_found("an update on the card"))
    }

    /// The latest launched update of all parameters, read only.
    pub fn known_at_once(&self) -> Result<&AdamW> {
        self.card.as_ref().ok_or_else(|| Error::not_found("an update on the card"))
    }

    /// Sets `[learned, max_norm, lr]`, see [`update_at_once`](Self::update_at_once), for updates replayed from now on.
    pub fn set_at_once(&mut self, numbers: [f64; 3]) -> Result<()> {
        let (settings, updates) = (self.settings(numbers), self.updates);
        self.at_once()?.set(&settings, updates)
    }

    /// Sets the number of updates, after recorded updates were replayed.
    pub fn updated_at_once(&mut self, updates: u64) -> Result<()> {
        self.updates = updates;
        self.at_once()?.made(updates);
        Ok(())
    }

    fn settings(&self, [learned, max_norm, learning_rate]: [f64; 3]) -> Settings {
        let config = &self.config;
        let (decoupled_decay, coupled_decay) = match config.decay() {
            Decay::Coupled => (0.0, config.weight_decay),
            _ => (config.weight_decay, 0.0),
        };
        Settings {
            learning_rate,
            learned,
            max_norm,
            beta1: config.beta1.unwrap_or(0.0),
            beta2: config.beta2.unwrap_or(0.0),
            eps: config.eps.unwrap_or(0.0),
            decoupled_decay,
            coupled_decay,
            ema_decay: self.ema_decay.unwrap_or(0.0),
        }
    }
}

fn has_kernels(p: &Tensor, g: &Tensor) -> bool {
    let on_card = p.device().is_cuda() && g.device().same_device(p.device());
    on_card && p.dtype() == DType::F32 && matches!(g.dtype(), DType::F32 | DType::BF16)
}
