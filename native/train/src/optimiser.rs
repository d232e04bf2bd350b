//! AdamW, fused into one pass over each parameter, and the clip of the global norm.
//!
//! Loshchilov & Hutter 2019, algorithm 2. Every number of a parameter depends on its own gradient
//! and moments alone, so parameters may be updated in any order and on any thread.

use sconce_core::ops::simd::dispatch;
use sconce_core::pool::for_each_shard;
use sconce_core::{Error, Result, pool};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWConfig {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        AdamWConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2 }
    }
}

/// What the optimiser knows of a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub len: usize,
    /// Whether weight decay pulls at it.
    pub decay: bool,
}

impl Parameter {
    /// Matrices decay; biases, norms and other vectors do not.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Parameter { name: name.into(), len: shape.iter().product(), decay: shape.len() >= 2 }
    }
}

#[derive(Debug, Clone)]
pub struct AdamW {
    config: AdamWConfig,
    parameters: Vec<Parameter>,
    m: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    step: u64,
}

/// Numbers of one shard.
const SHARD: usize = 1 << 15;

/// Constants of one update; but for the decay the same for every parameter.
#[derive(Debug, Clone, Copy)]
struct Rates {
    /// What weight decay leaves of a parameter.
    keep: f32,
    /// What the clip leaves of a gradient.
    factor: f32,
    beta1: f32,
    beta2: f32,
    keep1: f32,
    keep2: f32,
    /// `lr / (1 - beta1^t)`
    rate: f32,
    /// `1 / sqrt(1 - beta2^t)`
    root: f32,
    eps: f32,
}

impl AdamW {
    pub fn new(config: AdamWConfig, parameters: Vec<Parameter>) -> Self {
        let zeros = || parameters.iter().map(|p| vec![0.0; p.len]).collect();
        AdamW { config, m: zeros(), v: zeros(), parameters, step: 0 }
    }

    /// Updates made so far.
    pub fn updates(&self) -> u64 {
        self.step
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// One update of all parameters, in the order they were given to `new`.
    pub fn step(&mut self, params: &mut [&mut [f32]], grads: &[&[f32]], lr: f64) -> Result<()> {
        let expected = self.parameters.len();
        for (what, got) in [("parameters", params.len()), ("gradients", grads.len())] {
            if got != expected {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        for (i, (param, grad)) in params.iter().zip(grads).enumerate() {
            self.check(i, param.len(), grad.len())?;
        }
        self.begin();
        for (i, (param, grad)) in params.iter_mut().zip(grads).enumerate() {
            self.update(i, param, grad, 1.0, lr)?;
        }
        Ok(())
    }

    /// Begins an update, for callers that hold one parameter at a time: `update` of each follows.
    pub fn begin(&mut self) {
        self.step += 1;
    }

    /// Updates one parameter by `factor` times its gradient. Lengths are checked before anything changes.
    pub fn update(
        &mut self,
        i: usize,
        param: &mut [f32],
        grad: &[f32],
        factor: f64,
        lr: f64,
    ) -> Result<()> {
        self.check(i, param.len(), grad.len())?;
        let decay = if self.parameters[i].decay { self.config.weight_decay } else { 0.0 };
        let keep = (1.0 - lr * decay) as f32;
        let rates = Rates { keep, factor: factor as f32, ..self.rates(lr) };
        let buffers = [(param, 1), (&mut self.m[i][..], 1), (&mut self.v[i][..], 1)];
        for_each_shard(grad.len(), SHARD, buffers, |span, [param, m, v]| {
            fused(param, &grad[span], m, v, rates);
        });
        Ok(())
    }

    fn check(&self, i: usize, param: usize, grad: usize) -> Result<()> {
        let known = self.parameters.get(i);
        let known = known.ok_or_else(|| Error::not_found(format!("parameter {i}")))?;
        for (what, got) in [("", param), ("gradient of ", grad)] {
            if got != known.len {
                return Err(Error::mismatch(format!("{what}{}", known.name), known.len, got));
            }
        }
        Ok(())
    }

    fn rates(&self, lr: f64) -> Rates {
        let AdamWConfig { beta1, beta2, eps, .. } = self.config;
        let t = self.step.min(i32::MAX as u64) as i32;
        Rates {
            keep: 1.0,
            factor: 1.0,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            keep1: (1.0 - beta1) as f32,
            keep2: (1.0 - beta2) as f32,
            rate: (lr / (1.0 - beta1.powi(t))) as f32,
            root: (1.0 / (1.0 - beta2.powi(t)).sqrt()) as f32,
            eps: eps as f32,
        }
    }

    /// Moments by name, `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, to be saved beside
    /// [`updates`](Self::updates).
    pub fn state(&self) -> impl Iterator<Item = (String, &[f32])> {
        let moments = self.m.iter().zip(&self.v);
        self.parameters.iter().zip(moments).flat_map(|(p, (m, v))| {
            let named = |kind: &str| format!("{kind}.{}", p.name);
            [(named("exp_avg"), m.as_slice()), (named("exp_avg_sq"), v.as_slice())]
        })
    }

    /// Takes over a saved state; nothing changes unless all of it is there and fits.
    pub fn load_state<'a>(
        &mut self,
        updates: u64,
        get: impl Fn(&str) -> Option<&'a [f32]>,
    ) -> Result<()> {
        let load = |kind: &str| -> Result<Vec<Vec<f32>>> {
            let saved = self.parameters.iter().map(|p| {
                let name = format!("{kind}.{}", p.name);
                match get(&name) {
                    Some(values) if values.len() == p.len => Ok(values.to_vec()),
                    Some(values) => Err(Error::mismatch(name, p.len, values.len())),
                    None => Err(Error::not_found(name)),
                }
            });
            saved.collect()
        };
        (self.m, self.v) = (load("exp_avg")?, load("exp_avg_sq")?);
        self.step = updates;
        Ok(())
    }
}

dispatch! {
    fn fused(p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], r: Rates) {
        for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
            let g = g * r.factor;
            *m = r.beta1 * *m + r.keep1 * g;
            *v = r.beta2 * *v + r.keep2 * (g * g);
            *p = *p * r.keep - r.rate * *m / (v.sqrt() * r.root + r.eps);
        }
    }
}

/// Sum of squares in f64, because squares of f32 overflow: shards side by side, added in order.
pub fn squared_norm(values: &[f32]) -> f64 {
    let mut sums = vec![0.0; values.len().div_ceil(SHARD)];
    pool::for_each_rows(&mut sums, 1, 1, |i, sum| {
        let span = i * SHARD..(i * SHARD + SHARD).min(values.len());
        sum.iter_mut().for_each(|sum| squares(sum, &values[span.clone()]));
    });
    sums.iter().sum()
}

dispatch! {
    /// In lanes, of which none waits for the one before.
    fn squares(sum: &mut f64, values: &[f32]) {
        let mut lanes = [0.0f64; 32];
        let (chunks, rest) = values.as_chunks::<32>();
        for chunk in chunks {
            for (lane, &v) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(v) * f64::from(v);
            }
        }
        let rest: f64 = rest.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        *sum = lanes.iter().sum::<f64>() + rest;
    }
}

/// Scales all gradients together so that their norm is at most `max_norm`, and gives the norm
/// before that (Pascanu et al. 2013, algorithm 1).
pub fn clip_global_norm(grads: &mut [&mut [f32]], max_norm: f64) -> Result<f64> {
    let norm = grads.iter().map(|g| squared_norm(g)).sum::<f64>().sqrt();
    let factor = clip_factor(norm, max_norm)?;
    grads.iter_mut().for_each(|g| scale(g, factor));
    Ok(norm)
}

/// What gradients of this norm are scaled by.
pub fn clip_factor(norm: f64, max_norm: f64) -> Result<f64> {
    if !norm.is_finite() {
        return Err(Error::NonFinite { what: "norm of the gradients".into(), value: norm });
    }
    Ok(if norm > max_norm { max_norm / norm } else { 1.0 })
}

/// `grad *= factor`, in f64.
pub fn scale(grad: &mut [f32], factor: f64) {
    if factor != 1.0 {
        grad.iter_mut().for_each(|g| *g = (f64::from(*g) * factor) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> AdamW {
        let parameters = vec![Parameter::new("w", &[2, 3]), Parameter::new("b", &[3])];
        AdamW::new(AdamWConfig::default(), parameters)
    }

    fn run(adam: &mut AdamW, w: &mut [f32], b: &mut [f32], steps: std::ops::Range<u64>) {
        for t in steps {
            let gw: Vec<f32> = (0..6).map(|i| ((i + t) as f32).sin()).collect();
            let gb: Vec<f32> = (0..3).map(|i| ((i * t) as f32).cos()).collect();
            adam.step(&mut [w, b], &[&gw, &gb], 1e-2).unwrap();
        }
    }

    #[test]
    fn only_matrices_decay() {
        let (mut w, mut b) = ([1.0f32; 6], [1.0f32; 3]);
        two().step(&mut [&mut w, &mut b], &[&[0.0; 6], &[0.0; 3]], 0.1).unwrap();
        assert_eq!((w, b), ([0.999; 6], [1.0; 3]));
    }

    #[test]
    fn a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
        let (mut whole, mut w, mut b) = (two(), [0.5f32; 6], [0.0f32; 3]);
        run(&mut whole, &mut w, &mut b, 0..10);
        let (mut first, mut w2, mut b2) = (two(), [0.5f32; 6], [0.0f32; 3]);
        run(&mut first, &mut w2, &mut b2, 0..4);
        let saved: std::collections::HashMap<_, _> = first.state().collect();
        let mut second = two();
        second.load_state(first.updates(), |name| saved.get(name).copied()).unwrap();
        run(&mut second, &mut w2, &mut b2, 4..10);
        assert_eq!((w, b), (w2, b2));
        assert_eq!(second.updates(), 10);
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing() {
        let mut adam = two();
        let short = vec![0.0f32; 5];
        let error = adam.load_state(7, |_| Some(short.as_slice())).unwrap_err();
        assert_eq!(error.to_string(), "exp_avg.w: expected 6, got 5");
        let error = adam.load_state(7, |_| None).unwrap_err();
        assert_eq!(error.to_string(), "exp_avg.w not found");
        assert_eq!(adam.updates(), 0);
    }

    #[test]
    fn a_gradient_of_another_length_is_refused_before_anything_changes() {
        let (mut w, mut b) = ([1.0f32; 6], [1.0f32; 3]);
        let mut adam = two();
        let error = adam.step(&mut [&mut w, &mut b], &[&[1.0; 6], &[1.0; 2]], 0.1).unwrap_err();
        assert_eq!(error.to_string(), "gradient of b: expected 3, got 2");
        assert_eq!((adam.updates(), w), (0, [1.0; 6]));
    }

    #[test]
    fn gradients_that_are_not_finite_are_an_error_and_stay_as_they_are() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut g = [1.0, bad];
            let error = clip_global_norm(&mut [&mut g], 1.0).unwrap_err();
            assert!(matches!(error, Error::NonFinite { .. }));
            assert_eq!(g[0], 1.0);
        }
    }
}
