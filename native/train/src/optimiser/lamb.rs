//! LAMB: Adam's direction with decay, scaled to the norm of the parameter.

use sconce_tensor::pool::sum_shards;
use sconce_tensor::simd::{LANES, dispatch, load, store};
use sconce_tensor::{Result, Tensor};

use super::fused::{self, Numbers, SHARD};
use super::moments::Moments;
use super::rule::{Pull, Rule, parts, scaled};

/// Updates the moments, then the parameter at a rate that depends on the norms of the whole parameter and of its
/// direction.
pub(super) fn update(numbers: Numbers<'_>, pull: Pull, unit: Moments, decay: f64, lr: f64) {
    let lamb = Lamb::new(unit, decay);
    let Numbers { p, g, m, v, average } = numbers;
    let buffers = [(&mut *p, 1), (&mut *m, 1), (&mut *v, 1)];
    let parts = sum_shards(
        g.len(),
        SHARD,
        buffers,
        || [0.0; 2],
        |span, [p, m, v], sums| {
            measure(p, &g[span], m, v, pull, lamb, sums);
        },
    );
    let norms = [0, 1].map(|i| parts.iter().map(|sums| sums[i]).sum::<f64>().sqrt());
    let rate = Lamb::rate(lr, norms);
    fused::update(Numbers { p, g, m, v, average }, pull, Lamb { rate, ..lamb });
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Lamb {
    /// Adam's constants for a rate of 1.
    unit: Moments,
    decay: f32,
    rate: f32,
}

impl Lamb {
    pub(super) fn new(unit: Moments, decay: f64) -> Self {
        Lamb { unit, decay: decay as f32, rate: 0.0 }
    }

    /// The learning rate from the norms of a parameter and of its direction.
    pub(super) fn rate(lr: f64, [p, r]: [f64; 2]) -> f32 {
        let ratio = if p > 0.0 && r > 0.0 { p / r } else { 1.0 };
        (lr * ratio) as f32
    }

    /// Updates the moments and returns the direction, composed of candle's ops.
    pub(super) fn composed_direction(
        self,
        p: &Tensor,
        g: &Tensor,
        moments: &mut [Tensor],
    ) -> Result<Tensor> {
        let [m, v] = parts(moments)?;
        self.unit.composed_mean(g, m)?;
        self.unit.composed_square(g, v)?;
        Ok((self.unit.composed_direction(m, v)? + scaled(p, self.decay)?)?)
    }

    #[inline(always)]
    fn direction(self, p: f32, m: f32, v: f32) -> f32 {
        self.unit.direction(m, v) + self.decay * p
    }
}

impl Rule for Lamb {
    const SECOND: bool = true;

    /// Updates by Adam's direction, from moments that this update has already changed.
    #[inline(always)]
    fn next(self, p: f32, _: f32, m: &mut f32, v: &mut f32) -> f32 {
        p - self.rate * self.direction(p, *m, *v)
    }
}

dispatch! {
    /// Updates the moments. Writes the squared norms of the parameter and of its direction to `sums`, in f64.
    fn measure(
        p: &[f32],
        g: &[f32],
        m: &mut [f32],
        v: &mut [f32],
        pull: Pull,
        lamb: Lamb,
        sums: &mut [f64; 2],
    ) {
        let mut squares = [[0.0; LANES]; 2];
        let whole = g.len() - g.len() % LANES;
        for at in (0..whole).step_by(LANES) {
            let [p, g] = [p, g].map(|row| load(row, at, LANES));
            lanes(p, g, [&mut *m, &mut *v], at, LANES, (pull, lamb), &mut squares);
        }
        if whole < g.len() {
            let n = g.len() - whole;
            let [p, g] = [p, g].map(|row| load(row, whole, n));
            lanes(p, g, [m, v], whole, n, (pull, lamb), &mut squares);
        }
        *sums = squares.map(|lanes| lanes.iter().sum());
    }
}

/// Updates the moments and adds up the norms of `n` elements from `at` on, in lanes. Lanes beyond the end add zeros.
#[inline(always)]
fn lanes(
    p: [f32; LANES],
    g: [f32; LANES],
    [m, v]: [&mut [f32]; 2],
    at: usize,
    n: usize,
    (pull, lamb): (Pull, Lamb),
    [of_p, of_r]: &mut [[f64; LANES]; 2],
) {
    let (mut new_m, mut new_v) = (load(m, at, n), load(v, at, n));
    for i in 0..LANES {
        let g = pull.gradient(p[i], g[i]);
        lamb.unit.mean(g, &mut new_m[i]);
        lamb.unit.square(g, &mut new_v[i]);
        let r = f64::from(lamb.direction(p[i], new_m[i], new_v[i]));
        of_p[i] += f64::from(p[i]) * f64::from(p[i]);
        of_r[i] += r * r;
    }
    store(m, at, n, new_m);
    store(v, at, n, new_v);
}
