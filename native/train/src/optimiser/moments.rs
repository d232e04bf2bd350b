//! Mean and mean square of the gradients: their constants in one update, and their updates.

use sconce_tensor::{Result, Tensor};

use super::config::{Kind, OptimiserConfig};
use super::rule::scaled;

/// Constants of one update by the moments, the same for every element.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments {
    beta1: f32,
    fresh1: f32,
    beta2: f32,
    pub fresh2: f32,
    pub rate: f32,
    root: f32,
    pub eps: f32,
}

impl Moments {
    /// The constants of update `t`, counted from 1.
    pub(super) fn new(config: &OptimiserConfig, t: i32, lr: f64) -> Self {
        let (beta1, beta2) = (config.beta1.unwrap_or(0.0), config.beta2.unwrap_or(0.0));
        let (bias1, bias2) = (1.0 - beta1.powi(t), 1.0 - beta2.powi(t));
        let eps = config.eps.unwrap_or(0.0);
        let (rate, root, eps) = match (config.kind, rectification(beta2, t)) {
            (Kind::RAdam, Some(r)) => (lr / bias1 * r * bias2.sqrt(), 1.0, eps),
            // The first moment alone, while the variance of v is not tractable.
            (Kind::RAdam, None) => (lr / bias1, 0.0, 1.0),
            _ => (lr / bias1, 1.0 / bias2.sqrt(), eps),
        };
        Moments {
            beta1: beta1 as f32,
            fresh1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            fresh2: (1.0 - beta2) as f32,
            rate: rate as f32,
            root: root as f32,
            eps: eps as f32,
        }
    }

    #[inline(always)]
    pub(super) fn mean(self, g: f32, m: &mut f32) {
        *m = self.beta1 * *m + self.fresh1 * g;
    }

    #[inline(always)]
    pub(super) fn square(self, g: f32, v: &mut f32) {
        *v = self.beta2 * *v + self.fresh2 * (g * g);
    }

    #[inline(always)]
    pub(super) fn direction(self, m: f32, v: f32) -> f32 {
        self.rate * m / (v.sqrt() * self.root + self.eps)
    }

    pub(super) fn composed_mean(self, g: &Tensor, m: &mut Tensor) -> Result<()> {
        *m = (scaled(m, self.beta1)? + scaled(g, self.fresh1)?)?;
        Ok(())
    }

    pub(super) fn composed_square(self, g: &Tensor, v: &mut Tensor) -> Result<()> {
        *v = (scaled(v, self.beta2)? + scaled(&g.sqr()?, self.fresh2)?)?;
        Ok(())
    }

    pub(super) fn composed_direction(self, m: &Tensor, v: &Tensor) -> Result<Tensor> {
        Ok((scaled(m, self.rate)? / v.sqrt()?.affine(self.root.into(), self.eps.into())?)?)
    }
}

/// `r_t` of RAdam, if the variance is tractable: `rho_t > 5`, as in PyTorch (the paper has 4).
fn rectification(beta2: f64, t: i32) -> Option<f64> {
    let (decayed, longest) = (beta2.powi(t), 2.0 / (1.0 - beta2) - 1.0);
    let length = longest - 2.0 * f64::from(t) * decayed / (1.0 - decayed);
    let tractable = |rho: f64| (rho - 4.0) * (rho - 2.0) / rho;
    (length > 5.0).then(|| (tractable(length) / tractable(longest)).sqrt())
}
