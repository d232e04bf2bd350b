//! The network of an embedding, in its sequence form.

use sconce_net::NetSpec;
use sconce_net::training::{Mode, Training};
use sconce_net::{Initial, Slot};
use sconce_tensor::Tensor;

use crate::ops::arrange;
use crate::weights::{Builder, Init, Weights};
use crate::{Error, Result};

/// A network that turns the vectors of frames into other vectors. Its weights have names such as `embedding.layers.0.weight`.
pub(crate) struct Eyes {
    net: Training,
    /// Values of all layers for one frame.
    values: u64,
    /// Values of the widest layer for one frame.
    widest: u64,
}

impl Eyes {
    pub(super) fn new(spec: &NetSpec, b: &Builder) -> Result<Self> {
        let (outline, slots) = spec.slots()?;
        let b = b.under("embedding");
        let (mut weights, mut before) = (Weights::new(), None);
        for slot in slots {
            let init = initial(&slot, before);
            let weight = b.get(&slot.name, &slot.shape, init)?;
            before = matches!(init, Init::Dense(_)).then_some(init);
            weights.insert(slot.name, weight);
        }
        let numbers = outline.layers.iter().map(|layer| layer.output.iter().product::<usize>());
        let (values, widest) = numbers.fold((0, 1), |(all, most), n| {
            let n = n as u64;
            (n.saturating_add(all), n.max(most))
        });
        Ok(Eyes { net: Training::sharing(spec, weights)?, values, widest })
    }

    /// The weights in the order of their names, and the declaration.
    pub(crate) fn parts(&self) -> (&NetSpec, &Weights) {
        (self.net.spec(), self.net.weights())
    }

    pub(super) fn values(&self) -> u64 {
        self.values
    }

    pub(super) fn widest(&self) -> u64 {
        self.widest
    }

    /// Vectors `[rows, width]` for frames `[rows, numbers]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let mut inputs = vec![];
        let mut at = 0;
        for input in &self.net.spec().inputs {
            let numbers = input.shape.iter().product();
            let own = match numbers == x.dim(1)? {
                true => x.clone(),
                false => x.narrow(1, at, numbers)?.contiguous()?,
            };
            at += numbers;
            inputs.push(arrange::reshape(&own, [&[rows], &input.shape[..]].concat())?);
        }
        // Without batch normalisation both modes are equal.
        self.net.forward(&inputs, Mode::Inference)
    }

    /// Returns an error for weights on a card.
    pub(super) fn check_place(&self, place: &Tensor) -> Result<()> {
        if place.device().is_cpu() {
            return Ok(());
        }
        let what = "a policy with a network as embedding on a card".into();
        Err(Error::Unavailable { what, reason: "its layers run on a CPU".into() })
    }
}

/// The initial values of a weight. `before` are those of the weight before it, if that is one of a dense layer.
fn initial(Slot { name, shape, initial, .. }: &Slot, before: Option<Init>) -> Init {
    match (initial, &shape[..]) {
        // Its bias.
        (Initial::Uniform(_), [_]) if name.ends_with(".bias") && before.is_some() => {
            before.unwrap_or(Init::Constant(0.0))
        }
        // A dense layer, which may start as an orthogonal matrix.
        (Initial::Uniform(_), [_, inputs]) if name.ends_with(".weight") => Init::fan_in(*inputs),
        (Initial::Uniform(bound), _) => Init::Uniform(*bound as f32),
        (Initial::Normal, _) => Init::Normal(1.0),
        (Initial::Constant(value), _) => Init::Constant(*value),
    }
}
