//! Pruning: weights of matrices that are nearly 0 are read as 0 and still receive gradients.

use sconce_tensor::{Result, Tensor};

use super::{Setup, WeightTransform};

struct Prune(f64);

/// The transform that the options of a run request, if any.
pub(super) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn WeightTransform>>> {
    let below = setup.options.optimiser.prune_below;
    Ok((below > 0.0).then(|| Box::new(Prune(below)) as _))
}

impl WeightTransform for Prune {
    fn covers(&self, name: &str) -> bool {
        name.ends_with("weight")
    }

    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        Ok((weight * weight.abs()?.ge(self.0)?.to_dtype(weight.dtype())?)?)
    }
}
