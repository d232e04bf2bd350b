//! Optimisers with two moments: `p -= rate m / (root sqrt(v) + eps)`. Each optimiser defines its own v.

use sconce_tensor::{Result, Tensor};

use super::moments::Moments;
use super::rule::{Composed, Rule, parts, scaled, sign};

/// Adam, AdamW and RAdam, which differ in their constants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adam(pub Moments);

impl Rule for Adam {
    const SECOND: bool = true;

    #[inline(always)]
    fn next(self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32 {
        self.0.mean(g, m);
        self.0.square(g, v);
        p - self.0.direction(*m, *v)
    }
}

impl Composed for Adam {
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor> {
        let [m, v] = parts(moments)?;
        self.0.composed_mean(g, m)?;
        self.0.composed_square(g, v)?;
        Ok((p - self.0.composed_direction(m, v)?)?)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct AdaBelief(pub Moments);

impl Rule for AdaBelief {
    const SECOND: bool = true;

    #[inline(always)]
    fn next(self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32 {
        self.0.mean(g, m);
        self.0.square(g - *m, v);
        *v += self.0.eps;
        p - self.0.direction(*m, *v)
    }
}

impl Composed for AdaBelief {
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor> {
        let [m, v] = parts(moments)?;
        self.0.composed_mean(g, m)?;
        self.0.composed_square(&(g - &*m)?, v)?;
        *v = (&*v + f64::from(self.0.eps))?;
        Ok((p - self.0.composed_direction(m, v)?)?)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Yogi(pub Moments);

impl Rule for Yogi {
    const SECOND: bool = true;

    #[inline(always)]
    fn next(self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32 {
        self.0.mean(g, m);
        let square = g * g;
        *v -= self.0.fresh2 * sign(*v - square) * square;
        p - self.0.direction(*m, *v)
    }
}

impl Composed for Yogi {
    fn composed(self, p: &Tensor, g: &Tensor, moments: &mut [Tensor]) -> Result<Tensor> {
        let [m, v] = parts(moments)?;
        self.0.composed_mean(g, m)?;
        let square = g.sqr()?;
        let fresh = ((&*v - &square)?.sign()? * square)?;
        *v = (&*v - scaled(&fresh, self.0.fresh2)?)?;
        Ok((p - self.0.composed_direction(m, v)?)?)
    }
}
