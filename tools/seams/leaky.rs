//! Leaky integrators: each number decays at its own rate, independent of the input.

use std::ops::Range;
use std::sync::Arc;

use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::Tensor;

use super::config::{Layered, StackConfig};
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::{self, Activation};
use crate::packed::{Game, Step};
use crate::weights::{Builder, Init, Weight};

/// `h_t = a h_{t-1} + W x_t + b` with `a = sigmoid(rate)`, from `x: [b, t, h]` to `[b, t, h]`.
///
/// State: `h: [b, h]`. Weights: `linear`, `rate: [h]`.
struct Leaky {
    linear: Linear,
    rate: Weight,
}

impl Leaky {
    fn new(width: usize, b: &Builder) -> Result<Self> {
        Ok(Leaky {
            linear: Linear::new(width, width, Activation::None, &b.under("linear"))?,
            rate: b.get("rate", &[width], Init::Constant(2.0))?,
        })
    }
}

impl Backbone for Leaky {
    fn zero_state(&self, batch: usize) -> Result<State> {
        State::zeros(batch, &[self.rate.dim(0)?])
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let ([h0], lengths) = (state.parts()?, context.lengths());
        let a = ops::activate(&self.rate, Activation::Sigmoid)?;
        let h = ops::linear_recurrence(&a, &self.linear.forward(x)?, h0, lengths.clone())?;
        let last = ops::last(&h, h0, &lengths)?;
        Ok((h, State(vec![last])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let linear = self.linear.pack(packer)?;
        let mut decay = packer.read(&self.rate)?;
        Activation::Sigmoid.apply(&mut decay);
        let decay = packer.lay(&decay);
        Ok(Box::new(Packed { linear, decay }))
    }
}

/// The step of [`Leaky`] for one frame.
struct Packed {
    linear: Matrix,
    decay: Range<usize>,
}

impl Step for Packed {
    fn state_len(&self) -> usize {
        self.decay.len()
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let (rows, width) = (games.len(), self.decay.len());
        let Scratch { x, y, input, .. } = scratch;
        self.linear.read(input, x, rows);
        self.linear.apply(arena, input, y);
        for (game, y) in games.iter_mut().zip(y.chunks_exact_mut(width)) {
            let h = game.state(at, width);
            for ((h, y), a) in h.iter_mut().zip(y).zip(&arena[self.decay.clone()]) {
                *h = a * *h + *y;
                *y = *h;
            }
        }
        std::mem::swap(x, y);
    }
}

/// `x + leaky(norm(x))` for each layer, then a LayerNorm. Weights: `layers.I.{norm, mixer}`, `norm`.
///
/// State: `h: [b, h]` of each layer, 4 bytes x `hidden_size` x layers.
pub(super) fn stack(config: &StackConfig, input: usize, b: &Builder) -> Result<Stack> {
    let (trunk, h) = (config.trunk(), config.hidden_size);
    let layer = |i: usize| {
        let b = b.under("layers").under(i);
        let norm = Norm::layer(h, &b.under("norm"))?;
        Ok(Arc::new(Residual::new(norm, Leaky::new(h, &b.under("mixer"))?)?))
    };
    let layers = (0..config.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, layers, Some(Norm::layer(h, &b.under("norm"))?), b)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;
    use sconce_tensor::candle::Device;

    use super::*;
    use crate::weights::Source;

    #[test]
    fn a_layer_reproduces_its_golden_file() -> Result<()> {
        let bytes = include_bytes!("../../../../test/golden/leaky.safetensors");
        let file = SafeTensors::deserialize(bytes).unwrap();
        let read = |name: &str| {
            let tensor = file.tensor(name).unwrap();
            let numbers = tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
            Tensor::from_iter(numbers, &Device::Cpu)?.reshape(tensor.shape())
        };
        let weights = ["linear.weight", "linear.bias", "rate"].map(|name| {
            read(name).map(|weight| (name.to_owned(), Weight::from(weight)))
        });
        let weights = weights.into_iter().collect::<sconce_tensor::candle::Result<_>>()?;
        let layer = Leaky::new(2, &Builder::new(Source::Stored(weights), false))?;
        let (y, _) = layer.forward(&read("x")?, &layer.zero_state(1)?, &Context::default())?;
        let apart = (y - read("y")?)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(apart < 1e-6, "{apart}");
        Ok(())
    }
}
