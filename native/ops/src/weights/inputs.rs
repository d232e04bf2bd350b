//! Weights whose products round their inputs.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Tensor;

use super::Weight;
use crate::Result;
use crate::fake_quantise::InputGrid;

impl Weight {
    /// The weight, with products that round their inputs. Copies of this handle share the grid.
    #[must_use]
    pub fn rounding(self, inputs: InputGrid) -> Self {
        Weight { inputs: Some(Arc::new(inputs)), ..self }
    }

    /// The rounding of the inputs of products, if the weight has one.
    pub fn inputs(&self) -> Option<&Arc<InputGrid>> {
        self.inputs.as_ref()
    }

    /// The rounding of the inputs of products, if it is turned on.
    pub(crate) fn input_grid(&self) -> Option<&InputGrid> {
        self.inputs.as_deref().filter(|inputs| inputs.is_on())
    }

    /// Whether products round their inputs, which ops of several products leave to others.
    pub fn rounds(&self) -> bool {
        self.input_grid().is_some()
    }

    /// The inputs of a product, rounded if the weight asks for it.
    pub(crate) fn rounded<'a>(&self, x: &'a Tensor) -> Result<Cow<'a, Tensor>> {
        match &self.inputs {
            Some(inputs) if inputs.is_on() => inputs.clone().apply(x).map(Cow::Owned),
            _ => Ok(Cow::Borrowed(x)),
        }
    }
}
