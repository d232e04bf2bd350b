//! One pass over a parameter: gradient, decay, rule and average, number by number.

use sconce_core::Result;
use sconce_core::ops::simd::{LANES, dispatch, load, store};
use sconce_core::pool::for_each_shard;

use super::adam::Moments;
use super::composed::Composed;
use super::{Pass, lamb};

/// Numbers of one shard.
pub(super) const SHARD: usize = 1 << 15;

/// An optimiser's constants in one update, and how one number of a parameter changes by them.
pub(super) trait Rule: Copy + Send + Sync {
    /// Whether there is a second moment.
    const SECOND: bool;

    /// `p` after an update by gradient `g`; `m` and `v` are what the optimiser remembers of it.
    fn next(self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32;
}

/// What is the same for every optimiser in one update.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    /// What the clip and the mean over batches leave of a gradient.
    pub factor: f32,
    /// How much of the parameter is added to its gradient.
    pub coupled: f32,
    /// What decoupled decay leaves of the parameter.
    pub keep: f32,
    /// How much of the new parameter goes into its average.
    pub blend: f32,
}

impl Pull {
    #[inline(always)]
    pub fn gradient(self, p: f32, g: f32) -> f32 {
        g * self.factor + self.coupled * p
    }
}

/// A parameter and what belongs to it; what an optimiser does not remember is empty, and so is the
/// average where none is kept.
pub(super) struct Numbers<'a> {
    pub p: &'a mut [f32],
    pub g: &'a [f32],
    pub m: &'a mut [f32],
    pub v: &'a mut [f32],
    pub average: &'a mut [f32],
}

impl Pass for (Numbers<'_>, Pull) {
    fn run(self, rule: impl Rule + Composed) -> Result<()> {
        update(self.0, self.1, rule);
        Ok(())
    }

    fn lamb(self, unit: Moments, decay: f64, lr: f64) -> Result<()> {
        lamb::update(self.0, self.1, unit, decay, lr);
        Ok(())
    }
}

pub(super) fn update<R: Rule>(numbers: Numbers<'_>, pull: Pull, rule: R) {
    let Numbers { p, g, m, v, average } = numbers;
    let buffers = [p, m, v, average].map(|b| {
        let width = usize::from(!b.is_empty());
        (b, width)
    });
    for_each_shard(g.len(), SHARD, buffers, |span, [p, m, v, average]| {
        let numbers = Numbers { p, g: &g[span], m, v, average };
        match numbers.average.is_empty() {
            true => pass::<R, false>(numbers, pull, rule),
            false => pass::<R, true>(numbers, pull, rule),
        }
    });
}

dispatch! {
    fn pass<[R: Rule, const AVERAGE: bool], [R, AVERAGE]>(
        numbers: Numbers<'_>,
        pull: Pull,
        rule: R,
    ) {
        let Numbers { p, g, m, v, average } = numbers;
        let mut rows = [p, m, v, average];
        let whole = g.len() - g.len() % LANES;
        for at in (0..whole).step_by(LANES) {
            lanes::<R, AVERAGE>(&mut rows, g, at, LANES, pull, rule);
        }
        if whole < g.len() {
            lanes::<R, AVERAGE>(&mut rows, g, whole, g.len() - whole, pull, rule);
        }
    }
}

/// `n` numbers from `at` on of parameter, moments and average, side by side.
#[inline(always)]
fn lanes<R: Rule, const AVERAGE: bool>(
    rows: &mut [&mut [f32]; 4],
    g: &[f32],
    at: usize,
    n: usize,
    pull: Pull,
    rule: R,
) {
    let kept = [true, true, R::SECOND, AVERAGE];
    let mut x = [[0.0; LANES]; 4];
    for k in 0..4 {
        if kept[k] {
            x[k] = load(rows[k], at, n);
        }
    }
    let [p, m, v, average] = &mut x;
    let g = load(g, at, n);
    for i in 0..LANES {
        let g = pull.gradient(p[i], g[i]);
        p[i] = rule.next(p[i] * pull.keep, g, &mut m[i], &mut v[i]);
        average[i] += pull.blend * (p[i] - average[i]);
    }
    for k in 0..4 {
        if kept[k] {
            store(rows[k], at, n, x[k]);
        }
    }
}

/// -1, 0 or 1; 0 of what is not a number.
#[inline(always)]
pub(super) fn sign(x: f32) -> f32 {
    f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0))
}
