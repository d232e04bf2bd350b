//! One pass over a parameter: gradient, decay, rule and average, element by element.

use sconce_tensor::pool::for_each_shard;
use sconce_tensor::simd::{LANES, dispatch, load, store};

use super::rule::{Pull, Rule};

/// Elements of one shard.
pub(super) const SHARD: usize = 1 << 15;

/// A parameter, its gradient, moments and average. The slice of a moment or average that is not kept is empty.
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

/// Updates `n` elements of parameter, moments and average, starting at `at`, in lanes.
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
