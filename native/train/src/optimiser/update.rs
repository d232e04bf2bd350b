//! One update of one parameter: its rule, its constants, and its pass over the parameter.

use sconce_tensor::{Result, Tensor};

use super::adam::{AdaBelief, Adam, Yogi};
use super::composed::{Tensors, squares_of};
use super::config::{Decay, Kind, OptimiserConfig};
use super::fused::{self, Numbers};
use super::lamb::{self, Lamb};
use super::moments::Moments;
use super::one_moment::{Lion, RmsProp, Sgd};
use super::rule::{Composed, Pull, Rule, scaled};

/// Update `t` of one parameter.
#[derive(Clone, Copy)]
pub(super) struct Update {
    pub config: OptimiserConfig,
    pub t: i32,
    pub decay: f64,
    pub lr: f64,
    pub pull: Pull,
}

impl Update {
    pub(super) fn go(&self, pass: impl Pass) -> Result<()> {
        let (config, lr) = (&self.config, self.lr);
        let moments = |lr| Moments::new(config, self.t, lr);
        match config.kind {
            Kind::Adam | Kind::AdamW | Kind::RAdam => pass.run(Adam(moments(lr))),
            Kind::AdaBelief => pass.run(AdaBelief(moments(lr))),
            Kind::Yogi => pass.run(Yogi(moments(lr))),
            Kind::Sgd => pass.run(Sgd::new(config, lr)),
            Kind::RmsProp => pass.run(RmsProp::new(config, lr)),
            Kind::Lion => pass.run(Lion::new(config, lr)),
            Kind::Lamb => pass.lamb(moments(1.0), self.decay, lr),
        }
    }
}

/// The way in which an update passes over a parameter.
pub(super) trait Pass {
    fn run(self, rule: impl Rule + Composed) -> Result<()>;

    /// Updates by LAMB, which first reads the whole parameter; `unit` are Adam's constants for a rate of 1.
    fn lamb(self, unit: Moments, decay: f64, lr: f64) -> Result<()>;
}

impl Pass for (Numbers<'_>, Pull) {
    fn run(self, rule: impl Rule + Composed) -> Result<()> {
        fused::update(self.0, self.1, rule);
        Ok(())
    }

    fn lamb(self, unit: Moments, decay: f64, lr: f64) -> Result<()> {
        lamb::update(self.0, self.1, unit, decay, lr);
        Ok(())
    }
}

impl Pass for Tensors<'_> {
    fn run(self, rule: impl Rule + Composed) -> Result<()> {
        let (p, g) = self.read()?;
        let next = rule.composed(&scaled(&p, self.pull.keep)?, &g, self.moments)?;
        self.write(next)
    }

    fn lamb(self, unit: Moments, decay: f64, lr: f64) -> Result<()> {
        let (p, g) = self.read()?;
        let lamb = Lamb::new(unit, decay);
        let r = lamb.composed_direction(&p, &g, self.moments)?;
        let norm = |x: &Tensor| -> Result<f64> { Ok(squares_of(x)?.sqrt()?.to_scalar()?) };
        let rate = Lamb::rate(lr, [norm(&p)?, norm(&r)?]);
        let next = (&p - scaled(&r, rate)?)?;
        self.write(next)
    }
}

/// Combines the factors of the decay, of the clip and of the mean over batches.
pub(super) fn pull(kind: Decay, factor: f64, decay: f64, lr: f64) -> Pull {
    let (coupled, decoupled) = match kind {
        Decay::Coupled => (decay, 0.0),
        Decay::Decoupled => (0.0, decay),
        Decay::Own => (0.0, 0.0),
    };
    Pull {
        factor: factor as f32,
        coupled: coupled as f32,
        keep: (1.0 - lr * decoupled) as f32,
        blend: 0.0,
    }
}
