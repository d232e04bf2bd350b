//! Weights by path: a path is the weight's name in the checkpoint, so renaming one breaks old files.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use candle_core::{Tensor, Var};

use crate::ops::tensor::tensor;
use crate::rng::Rng;
use crate::{Error, Result};

/// 4 GiB of f32: a spec that wants more is a slip, or a hostile file.
const MAX_WEIGHTS: usize = 1 << 30;

/// All weights of a policy, in the order of their names.
pub type Weights = BTreeMap<String, Tensor>;

/// How a new weight is drawn.
#[derive(Debug, Clone, Copy)]
pub enum Init {
    Constant(f32),
    /// Uniform in `-bound..bound`.
    Uniform(f32),
    Normal(f32),
}

impl Init {
    /// PyTorch's default for a layer that reads `inputs` numbers.
    pub fn fan_in(inputs: usize) -> Self {
        Init::Uniform(1.0 / (inputs.max(1) as f32).sqrt())
    }

    fn draw(self, seed: u64, name: &str, count: usize) -> Vec<f32> {
        let rng = Rng::new(seed, &format!("init.{name}"), 0);
        (0..count as u64)
            .map(|i| match self {
                Init::Constant(v) => v,
                Init::Uniform(bound) => (2.0 * rng.uniform(i) - 1.0) * bound,
                Init::Normal(deviation) => rng.normal(i) * deviation,
            })
            .collect()
    }
}

/// Where a layer gets its weights from.
pub enum Source {
    Seed(u64),
    Stored(Weights),
}

/// Hands out weights under a growing path and remembers them.
#[derive(Clone)]
pub struct Builder {
    source: Rc<Source>,
    /// Trainable weights are variables of candle's autograd; others keep no graph alive.
    trainable: bool,
    path: String,
    taken: Rc<RefCell<Weights>>,
    total: Rc<Cell<usize>>,
}

impl Builder {
    pub fn new(source: Source, trainable: bool) -> Self {
        let (taken, total) = Default::default();
        Builder { source: Rc::new(source), trainable, path: String::new(), taken, total }
    }

    /// The builder of a part named `name`.
    pub fn under(&self, name: impl std::fmt::Display) -> Self {
        Builder { path: self.name(name), ..self.clone() }
    }

    fn name(&self, name: impl std::fmt::Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    pub fn get(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        let name = self.name(name);
        self.reserve(&name, shape)?;
        let weight = match &*self.source {
            Source::Seed(seed) => tensor(init.draw(*seed, &name, shape.iter().product()), shape)?,
            Source::Stored(stored) => {
                let found =
                    stored.get(&name).ok_or_else(|| Error::not_found(format!("weight {name}")))?;
                if found.dims() != shape {
                    let got = format!("{:?}", found.dims());
                    return Err(Error::mismatch(
                        format!("weight {name}"),
                        format!("{shape:?}"),
                        got,
                    ));
                }
                found.clone()
            }
        };
        let weight = match self.trainable {
            true => Var::from_tensor(&weight)?.into_inner(),
            false => weight.detach(),
        };
        self.taken.borrow_mut().insert(name, weight.clone());
        Ok(weight)
    }

    /// Counts a weight before memory is taken for it.
    fn reserve(&self, name: &str, shape: &[usize]) -> Result<()> {
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        let total = self.total.get().saturating_add(count);
        if total > MAX_WEIGHTS {
            let bytes = (total as u64).saturating_mul(4);
            return Err(Error::OutOfMemory { what: format!("weights up to {name}"), bytes });
        }
        self.total.set(total);
        Ok(())
    }

    /// The weights handed out; a stored one that no layer asked for is a mismatch.
    pub fn finish(self) -> Result<Weights> {
        let taken = self.taken.take();
        if let Source::Stored(stored) = &*self.source
            && let Some(extra) = stored.keys().find(|name| !taken.contains_key(*name))
        {
            return Err(Error::mismatch(
                "weights",
                "those of the spec",
                format!("{extra} besides"),
            ));
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_that_no_machine_holds_is_refused_before_memory_is_taken() {
        let b = Builder::new(Source::Seed(1), false);
        let huge = b.get("w", &[1 << 18, 1 << 16], Init::Constant(0.0));
        assert!(matches!(huge, Err(Error::OutOfMemory { bytes, .. }) if bytes == 1 << 36));
        let overflow = b.get("w", &[usize::MAX, 3], Init::Constant(0.0));
        assert!(matches!(overflow, Err(Error::OutOfMemory { .. })));
    }
}
