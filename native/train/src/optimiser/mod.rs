//! Optimisers, each fused into one pass over a parameter, with the average of the weights and the clip of the global
//! norm.
//!
//! Every element of a parameter depends only on its own gradient and moments, and LAMB's ratio on sums of fixed shards,
//! so results are bit-identical with any number of threads. [`Kind`] gives the formulas.
//!
//! A parameter on a device other than the CPU is updated on that device, with its moments and its average: by candle's
//! ops, or by kernels that update all parameters at once, if its rule has kernels.

mod adam;
mod card;
mod clip;
mod composed;
mod config;
mod fused;
pub(crate) mod kernels;
mod lamb;
mod memory;
mod moments;
mod one_moment;
mod rule;
mod update;

use std::borrow::Cow;

pub use clip::{clip, squared_norm};
use composed::Tensors;
pub use composed::{Next, squares_of};
pub use config::{Kind, OptimiserConfig};
use fused::Numbers;
use memory::Memory;
use rule::Pull;
use sconce_tensor::device::{Held, Owner};
use sconce_tensor::memory::{repeated, zeros};
use sconce_tensor::{Error, Result, Tensor};
use update::{Update, pull};

/// Name, size and decay of a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Name of the weight.
    pub name: String,
    /// Number of elements.
    pub len: usize,
    /// Whether weight decay applies to the weight.
    pub decay: bool,
}

impl Parameter {
    /// Describes a weight of this shape. Matrices decay; biases, norms and other vectors do not.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Parameter { name: name.into(), len: shape.iter().product(), decay: shape.len() >= 2 }
    }
}

/// An optimiser with its moments and averages.
#[derive(Debug)]
pub struct Optimiser {
    config: OptimiserConfig,
    ema_decay: Option<f64>,
    parameters: Vec<Parameter>,
    /// Moments and average of each parameter; arrays that are not kept are empty.
    memory: Vec<Memory>,
    updates: u64,
    card: Option<kernels::AdamW>,
}

/// Name of an average in the saved state.
const AVERAGE: &str = "ema";

impl Optimiser {
    /// Makes an optimiser of these parameters, before its first update.
    pub fn new(config: OptimiserConfig, parameters: Vec<Parameter>) -> Self {
        let begin = |p: &Parameter| {
            let mut memory = Memory::default();
            for (moment, (_, first)) in memory.moments.iter_mut().zip(config.memory()) {
                *moment = repeated(*first, p.len).into();
            }
            memory
        };
        let memory = parameters.iter().map(begin).collect();
        Optimiser { config, ema_decay: None, parameters, memory, updates: 0, card: None }
    }

    /// Keeps an exponential moving average of the parameters over the updates, corrected for its initial bias:
    /// `s_t = d s_{t-1} + (1 - d) p_t` from zero, divided by `1 - d^t` (Kingma & Ba 2015, section 3). `None` keeps no
    /// average.
    pub fn averaging(mut self, decay: Option<f64>) -> Self {
        for (memory, p) in self.memory.iter_mut().zip(&self.parameters) {
            memory.average = zeros(if decay.is_some() { p.len } else { 0 }).into();
        }
        Optimiser { ema_decay: decay, ..self }
    }

    /// Number of updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The parameters, in the order of `new`.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The averages in the order of the parameters; `None` before the first update or if none are kept.
    pub fn averages(&self) -> Result<Option<Vec<Cow<'_, [f32]>>>> {
        let kept = self.ema_decay.is_some() && self.updates > 0;
        let averages = || self.memory.iter().map(|memory| memory.average.read()).collect();
        kept.then(averages).transpose()
    }

    /// Runs one update of all parameters, in the order given to `new`.
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

    /// Begins an update, for callers that hold one parameter at a time: [`update`](Self::update) follows for each.
    pub fn begin(&mut self) {
        self.updates += 1;
    }

    /// Updates one parameter by `factor` times its gradient. Lengths are checked before anything changes.
    pub fn update(
        &mut self,
        i: usize,
        p: &mut [f32],
        g: &[f32],
        factor: f64,
        lr: f64,
    ) -> Result<()> {
        self.check(i, p.len(), g.len())?;
        let update = self.present(i, factor, lr);
        let Memory { moments: [m, v], average, .. } = &mut self.memory[i];
        let (m, v, average) = (m.here()?, v.here()?, average.here()?);
        update.go((Numbers { p, g, m, v, average }, update.pull))
    }

    /// Reverts [`begin`](Self::begin), if no parameter was updated.
    pub fn give_up(&mut self) {
        self.updates -= 1;
    }

    /// Computes [`update`](Self::update) on the parameter's device. This may run out of memory, so nothing changes
    /// before all parameters have their result and [`take`](Self::take) it.
    pub fn next(&mut self, i: usize, p: &Tensor, g: &Tensor, factor: f64, lr: f64) -> Result<Next> {
        self.check(i, p.elem_count(), g.elem_count())?;
        let update = self.present(i, factor, lr);
        let memory = &mut self.memory[i];
        let mut moments = vec![];
        for moment in &mut memory.moments {
            moments.extend(moment.beside(p)?);
        }
        let (mut average, pull, mut next) = (memory.average.beside(p)?, update.pull, p.clone());
        let (moments_of, average_of) = (&mut moments, average.as_mut());
        update.go(Tensors {
            p,
            g,
            moments: moments_of,
            average: average_of,
            next: &mut next,
            pull,
        })?;
        Ok(Next { p: next, moments, average })
    }

    /// Stores the new values of a parameter, in place. Its moments and average are also written in place if a card may
    /// replay an update that was recorded with their addresses.
    pub fn take(&mut self, i: usize, p: &Tensor, next: Next) -> Result<()> {
        p.slice_set(&next.p, 0, 0)?;
        let stays = self.card.is_some();
        let Memory { held, moments, average } = &mut self.memory[i];
        for (kept, moment) in moments.iter_mut().zip(next.moments) {
            kept.set(Some(moment), stays)?;
        }
        average.set(next.average, stays)?;
        let kept = moments.iter().chain([&*average]).filter_map(|kept| kept.tensor.as_ref());
        *held = Held::of(Owner::Optimiser, kept);
        Ok(())
    }

    /// The constants of the current update for parameter `i`.
    fn present(&self, i: usize, factor: f64, lr: f64) -> Update {
        let (config, t) = (self.config, self.updates.min(i32::MAX as u64) as i32);
        let decay = if self.parameters[i].decay { config.weight_decay } else { 0.0 };
        let pull = Pull { blend: self.blend(t), ..pull(config.decay(), factor, decay, lr) };
        Update { config, t, decay, lr, pull }
    }

    /// Weight of the new parameters in their average after update `t`; 1 for the first update.
    fn blend(&self, t: i32) -> f32 {
        self.ema_decay.map_or(0.0, |decay| (1.0 - decay) / (1.0 - decay.powi(t))) as f32
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

    /// Moments by name, such as `exp_avg.<parameter>`, and averages as `ema.<parameter>`, to be saved with
    /// [`updates`](Self::updates).
    pub fn state(&self) -> Result<Vec<(String, Cow<'_, [f32]>)>> {
        let memory = self.parameters.iter().zip(&self.memory);
        let all = memory.flat_map(|(p, memory)| {
            let names = self.config.memory().iter().map(|(name, _)| *name);
            let moments = names.zip(&memory.moments);
            let average = self.ema_decay.map(|_| (AVERAGE, &memory.average));
            moments.chain(average).map(|(kind, kept)| (format!("{kind}.{}", p.name), kept))
        });
        all.map(|(name, kept)| Ok((name, kept.read()?))).collect()
    }

    /// Loads a saved state. Nothing changes unless the state is complete and fits.
    pub fn load_state<'a>(
        &mut self,
        updates: u64,
        get: impl Fn(&str) -> Option<&'a [f32]>,
    ) -> Result<()> {
        let saved = |kind: &str, p: &Parameter| {
            let name = format!("{kind}.{}", p.name);
            match get(&name) {
                Some(values) if values.len() == p.len => Ok(values.to_vec()),
                Some(values) => Err(Error::mismatch(name, p.len, values.len())),
                None => Err(Error::not_found(name)),
            }
        };
        let memory = self.parameters.iter().map(|p| {
            let mut memory = Memory::default();
            for (moment, (kind, _)) in memory.moments.iter_mut().zip(self.config.memory()) {
                *moment = saved(kind, p)?.into();
            }
            if self.ema_decay.is_some() {
                memory.average = saved(AVERAGE, p)?.into();
            }
            Ok(memory)
        });
        self.memory = memory.collect::<Result<_>>()?;
        self.updates = updates;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sconce_tensor::{pool, tensor};

    use super::*;

    const KINDS: [Kind; 9] = [
        Kind::AdamW,
        Kind::Adam,
        Kind::Sgd,
        Kind::RmsProp,
        Kind::RAdam,
        Kind::Lamb,
        Kind::AdaBelief,
        Kind::Yogi,
        Kind::Lion,
    ];

    fn two(kind: Kind) -> Optimiser {
        let parameters = vec![Parameter::new("w", &[2, 3]), Parameter::new("b", &[3])];
        Optimiser::new(OptimiserConfig::new(kind), parameters)
    }

    fn run(optimiser: &mut Optimiser, w: &mut [f32], b: &mut [f32], steps: std::ops::Range<u64>) {
        for t in steps {
            let gw: Vec<f32> = (0..6).map(|i| ((i + t) as f32).sin()).collect();
            let gb: Vec<f32> = (0..3).map(|i| ((i * t) as f32).cos()).collect();
            optimiser.step(&mut [w, b], &[&gw, &gb], 1e-2).unwrap();
        }
    }

    #[test]
    fn only_matrices_decay() {
        for kind in KINDS {
            let config = OptimiserConfig { weight_decay: 0.01, ..OptimiserConfig::new(kind) };
            let mut optimiser = Optimiser { config, ..two(kind) };
            let (mut w, mut b) = ([1.0f32; 6], [1.0f32; 3]);
            optimiser.step(&mut [&mut w, &mut b], &[&[0.0; 6], &[0.0; 3]], 0.1).unwrap();
            assert!(w.iter().all(|w| *w < 1.0), "{kind:?}: {w:?}");
            assert_eq!(b, [1.0; 3], "{kind:?}");
        }
    }

    #[test]
    fn a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
        for kind in KINDS {
            let new = || two(kind).averaging(Some(0.9));
            let (mut whole, mut w, mut b) = (new(), [0.5f32; 6], [0.0f32; 3]);
            run(&mut whole, &mut w, &mut b, 0..10);
            let (mut first, mut w2, mut b2) = (new(), [0.5f32; 6], [0.0f32; 3]);
            run(&mut first, &mut w2, &mut b2, 0..4);
            let saved: HashMap<_, _> = first.state().unwrap().into_iter().collect();
            let mut second = new();
            second.load_state(first.updates(), |name| saved.get(name).map(|v| &v[..])).unwrap();
            run(&mut second, &mut w2, &mut b2, 4..10);
            assert_eq!((w, b), (w2, b2), "{kind:?}");
            assert_eq!(second.updates(), 10);
            assert!(whole.state().unwrap() == second.state().unwrap(), "{kind:?}");
        }
    }

    /// The length exceeds one shard and is not a multiple of a vector's length.
    #[test]
    fn threads_change_no_bit() {
        const LEN: usize = 2 * fused::SHARD + 21;
        let before = pool::threads();
        let gradient = |t: usize| (0..LEN).map(|i| ((i * 7 + t) as f32).sin()).collect::<Vec<_>>();
        for kind in KINDS {
            let results = [1, 2, 3].map(|threads| {
                pool::set_threads(threads).unwrap();
                let parameters = vec![Parameter::new("w", &[LEN, 1])];
                let optimiser = Optimiser::new(OptimiserConfig::new(kind), parameters);
                let mut optimiser = optimiser.averaging(Some(0.9));
                let mut w: Vec<f32> = (0..LEN).map(|i| (i as f32).cos()).collect();
                for t in 0..3 {
                    optimiser.step(&mut [&mut w], &[&gradient(t)], 1e-2).unwrap();
                }
                let state = optimiser.state().unwrap().into_iter();
                let state = state.flat_map(|(_, values)| values.into_owned());
                w.iter().copied().chain(state).map(f32::to_bits).collect::<Vec<_>>()
            });
            assert!(results[0] == results[1] && results[0] == results[2], "{kind:?}");
        }
        pool::set_threads(before).unwrap();
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing() {
        let mut adam = two(Kind::AdamW).averaging(Some(0.9));
        let short = vec![0.0f32; 5];
        let error = adam.load_state(7, |_| Some(short.as_slice())).unwrap_err();
        assert_eq!(error.to_string(), "exp_avg.w: expected 6, got 5");
        let error = adam.load_state(7, |_| None).unwrap_err();
        assert_eq!(error.to_string(), "exp_avg.w not found");
        let (w, b) = ([0.0f32; 6], [0.0f32; 3]);
        let no_average = |name: &str| match name.rsplit_once('.') {
            Some(("ema", _)) => None,
            Some((_, "w")) => Some(&w[..]),
            _ => Some(&b[..]),
        };
        assert_eq!(adam.load_state(7, no_average).unwrap_err().to_string(), "ema.w not found");
        assert_eq!(adam.updates(), 0);
    }

    #[test]
    fn a_gradient_of_another_length_is_refused_before_anything_changes() {
        let (mut w, mut b) = ([1.0f32; 6], [1.0f32; 3]);
        let mut adam = two(Kind::AdamW);
        let error = adam.step(&mut [&mut w, &mut b], &[&[1.0; 6], &[1.0; 2]], 0.1).unwrap_err();
        assert_eq!(error.to_string(), "gradient of b: expected 3, got 2");
        assert_eq!((adam.updates(), w), (0, [1.0; 6]));
    }

    #[test]
    fn the_first_average_is_the_first_parameter() {
        let mut adam = two(Kind::AdamW).averaging(Some(0.999));
        assert!(adam.averages().unwrap().is_none());
        let (mut w, mut b) = ([1.0f32; 6], [1.0f32; 3]);
        run(&mut adam, &mut w, &mut b, 0..1);
        assert_eq!(adam.averages().unwrap().unwrap(), [&w[..], &b[..]]);
    }

    /// Runs the same steps as [`run`], on tensors.
    fn run_tensors(optimiser: &mut Optimiser, params: &[Tensor; 2], steps: std::ops::Range<u64>) {
        for t in steps {
            let gw = (0..6).map(|i| ((i + t) as f32).sin()).collect();
            let gb = (0..3).map(|i| ((i * t) as f32).cos()).collect();
            let grads = [tensor::tensor(gw, (2, 3)).unwrap(), tensor::tensor(gb, 3).unwrap()];
            optimiser.begin();
            for (i, (p, g)) in params.iter().zip(&grads).enumerate() {
                let next = optimiser.next(i, p, g, 1.0, 1e-2).unwrap();
                optimiser.take(i, p, next).unwrap();
            }
        }
    }

    #[test]
    fn composed_and_fused_updates_are_equal_and_can_alternate() {
        for kind in KINDS {
            let config = OptimiserConfig { weight_decay: 0.03, ..OptimiserConfig::new(kind) };
            let new = || Optimiser { config, ..two(kind).averaging(Some(0.9)) };
            let (mut fused, mut w, mut b) = (new(), [0.5f32; 6], [0.1f32; 3]);
            run(&mut fused, &mut w, &mut b, 0..12);
            let params = [tensor::tensor(vec![0.5; 6], (2, 3)), tensor::tensor(vec![0.1; 3], 3)];
            let params =
                params.map(|p| sconce_tensor::candle::Var::from_tensor(&p.unwrap()).unwrap());
            let params = params.map(sconce_tensor::candle::Var::into_inner);
            let mut composed = new();
            run_tensors(&mut composed, &params, 0..5);
            let [mut w2, mut b2] = [0, 1].map(|i| tensor::to_vec(&params[i]).unwrap());
            run(&mut composed, &mut w2, &mut b2, 5..8);
            tensor::update(&params[0], |p| p.copy_from_slice(&w2)).unwrap();
            tensor::update(&params[1], |p| p.copy_from_slice(&b2)).unwrap();
            run_tensors(&mut composed, &params, 8..12);
            let [w2, b2] = [0, 1].map(|i| tensor::to_vec(&params[i]).unwrap());
            let close = |got: &[f32], want: &[f32]| {
                let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
                for (got, want) in got.iter().zip(want) {
                    assert!((got - want).abs() < 1e-5 * scale, "{kind:?}: {got} is not {want}");
                }
            };
            close(&w2, &w);
            close(&b2, &b);
            assert_eq!(composed.updates(), 12);
            let (got, want) = (composed.state().unwrap(), fused.state().unwrap());
            for ((name, got), (other, want)) in got.iter().zip(&want) {
                assert_eq!((name, got.len()), (other, want.len()));
                close(got, want);
            }
            let error = composed.next(0, &params[1], &params[1], 1.0, 0.1).err().unwrap();
            assert_eq!(error.to_string(), "w: expected 6, got 3");
        }
    }
}
