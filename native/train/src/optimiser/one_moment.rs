//! Optimisers with one moment: SGD, RMSprop and Lion.

use sconce_tensor::{Result, Tensor};

use super::config::OptimiserConfig;
use super::rule::{Composed, Rule, parts, scaled, sign};

#[derive(Debug, Clone, Copy)]
pub(super) struct Sgd {
    rate: f32,
    momentum: f32,
    /// Factors on the gradient and on the new momentum, whose sum is the step.
    ahead: (f32, f32),
}

impl Sgd {
    pub(super) fn new(config: &OptimiserConfig, lr: f64) -> Self {
        let momentum = config.momentum.unwrap_or(0.0) as f32;
        let ahead = if config.nesterov.unwrap_or(false) { (1.0, momentum) } else { (0.0, 1.0) };
        Sgd { rate: lr as f32, momentum, ahead }
    }
}

impl Rule for Sgd {
    const SECOND: bool = false;

    #[inline(always)]
    fn next(self, p: f32, g: f32, m: &mut f32, _: &mut f32) -> f32 {
        *m = self.momentum * *m + g;
        p - self.rate * (self.ahead.0 * g + self.ahead.1 * *m)
    }
}

impl Composed for Sgd {
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor> {
        let [m] = parts(moments)?;
        *m = (scaled(m, self.momentum)? + g)?;
        let step = (scaled(g, self.ahead.0)? + scaled(m, self.ahead.1)?)?;
        Ok((p - scaled(&step, self.rate)?)?)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RmsProp {
    rate: f32,
    beta2: f32,
    fresh: f32,
    eps: f32,
}

impl RmsProp {
    pub(super) fn new(config: &OptimiserConfig, lr: f64) -> Self {
        let beta2 = config.beta2.unwrap_or(0.0);
        let eps = config.eps.unwrap_or(0.0) as f32;
        RmsProp { rate: lr as f32, beta2: beta2 as f32, fresh: (1.0 - beta2) as f32, eps }
    }
}

impl Rule for RmsProp {
    const SECOND: bool = false;

    #[inline(always)]
    fn next(self, p: f32, g: f32, square: &mut f32, _: &mut f32) -> f32 {
        *square = self.beta2 * *square + self.fresh * (g * g);
        p - self.rate * g / (square.sqrt() + self.eps)
    }
}

impl Composed for RmsProp {
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor> {
        let [square] = parts(moments)?;
        *square = (scaled(square, self.beta2)? + scaled(&g.sqr()?, self.fresh)?)?;
        let root = (square.sqrt()? + f64::from(self.eps))?;
        Ok((p - (scaled(g, self.rate)? / root)?)?)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Lion {
    rate: f32,
    beta1: f32,
    fresh1: f32,
    beta2: f32,
    fresh2: f32,
}

impl Lion {
    pub(super) fn new(config: &OptimiserConfig, lr: f64) -> Self {
        let (beta1, beta2) = (config.beta1.unwrap_or(0.0), config.beta2.unwrap_or(0.0));
        Lion {
            rate: lr as f32,
            beta1: beta1 as f32,
            fresh1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            fresh2: (1.0 - beta2) as f32,
        }
    }
}

impl Rule for Lion {
    const SECOND: bool = false;

    #[inline(always)]
    fn next(self, p: f32, g: f32, m: &mut f32, _: &mut f32) -> f32 {
        let direction = sign(self.beta1 * *m + self.fresh1 * g);
        *m = self.beta2 * *m + self.fresh2 * g;
        p - self.rate * direction
    }
}

impl Composed for Lion {
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor> {
        let [m] = parts(moments)?;
        let direction = (scaled(m, self.beta1)? + scaled(g, self.fresh1)?)?.sign()?;
        *m = (scaled(m, self.beta2)? + scaled(g, self.fresh2)?)?;
        Ok((p - scaled(&direction, self.rate)?)?)
    }
}
