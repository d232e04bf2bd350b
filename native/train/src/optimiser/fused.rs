//! One pass over a parameter: gradient, decay, rule and average, number by number.

use sconce_core::ops::simd::{LANES, dispatch, load, store};
use sconce_core::pool::for_each_shard;

/// Numbers of one shard.
pub(super) const SHARD: usize = 1 << 15;

/// An optimiser's constants in one update, and how one number of a parameter changes by them.
pub(super) trait Rule: Copy + Send + Sync {
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

pub(super) fn update<R: Rule>(numbers: Numbers<'_>, pull: Pull, rule: R) {
    let Numbers { p, g, m, v, average } = numbers;
    let buffers = [p, m, v, average].map(|b| {
        let width = usize::from(!b.is_empty());
        (b, width)
    });
    for_each_shard(g.len(), SHARD, buffers, |span, [p, m, v, average]| {
        pass(p, &g[span], m, v, average, pull, rule);
    });
}

dispatch! {
    fn pass<[R: Rule], [R]>(
        p: &mut [f32],
        g: &[f32],
        m: &mut [f32],
        v: &mut [f32],
        average: &mut [f32],
        pull: Pull,
        rule: R,
    ) {
        for at in (0..g.len()).step_by(LANES) {
            let n = LANES.min(g.len() - at);
            let (mut new, g) = (load(p, at, n), load(g, at, n));
            let (mut next_m, mut next_v) = (lanes(m, at, n), lanes(v, at, n));
            for i in 0..LANES {
                let g = pull.gradient(new[i], g[i]);
                new[i] = rule.next(new[i] * pull.keep, g, &mut next_m[i], &mut next_v[i]);
            }
            store(p, at, n, new);
            keep(m, at, n, next_m);
            keep(v, at, n, next_v);
            if !average.is_empty() {
                let mut blended = load(average, at, n);
                for i in 0..LANES {
                    blended[i] += pull.blend * (new[i] - blended[i]);
                }
                store(average, at, n, blended);
            }
        }
    }
}

/// [`load`] of what may be empty.
#[inline(always)]
fn lanes(row: &[f32], at: usize, n: usize) -> [f32; LANES] {
    if row.is_empty() { [0.0; LANES] } else { load(row, at, n) }
}

/// [`store`] to what may be empty.
#[inline(always)]
fn keep(row: &mut [f32], at: usize, n: usize, lanes: [f32; LANES]) {
    if !row.is_empty() {
        store(row, at, n, lanes);
    }
}

/// -1, 0 or 1; 0 of what is not a number.
#[inline(always)]
pub(super) fn sign(x: f32) -> f32 {
    f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0))
}
