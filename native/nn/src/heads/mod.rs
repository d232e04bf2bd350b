//! From the trunk vector to logits, and from logits to an action.

pub(crate) mod card;
mod choose;
mod on_card;
mod packed;
mod prior;

pub(crate) use packed::Packed;
use sconce_tensor::{Tensor, tensor};

use crate::layer::Linear;
use crate::ops::{self, Activation, Branch, Dense, Ids, arrange};
pub use crate::spec::NONE;
use crate::spec::{self, HeadsKind};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// One action for each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// `[n, num_logits]`
    pub logits: Vec<f32>,
    /// `[n, num_labels]`: bits and classes.
    pub choices: Vec<u16>,
    /// `[n, heads]`, each 0..1.
    pub confidence: Vec<f32>,
}

pub struct Heads {
    spec: spec::Heads,
    layers: Layers,
    prior: Vec<Weight>,
}

enum Layers {
    /// `logits = W x` of all heads; weight `logits`.
    Linear(Linear),
    /// `logits = W_2 relu(W_1 x)` per head; weights `NAME_hidden`, `NAME_logits`.
    Independent(Vec<Branch>),
    /// A residual stream: each head reads its logits from it and adds an encoding of its choice
    /// (Vinyals et al. 2019). Weights `stream_in`, `decode.NAME`, `encode.NAME` (all but the last).
    Autoregressive { stream: Linear, decode: Vec<Linear>, encode: Vec<Linear> },
}

impl Heads {
    pub fn new(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Self> {
        let layers = match spec.kind {
            HeadsKind::Independent if spec.are_linear() => {
                let logits = spec.num_logits();
                Layers::Linear(Linear::new(input, logits, Activation::None, &b.under("logits"))?)
            }
            HeadsKind::Independent => Layers::Independent(independent(spec, input, b)?),
            HeadsKind::Autoregressive => autoregressive(spec, input, b)?,
        };
        let prior = match spec.prior {
            true => prior::tables(spec, &b.under("prior"))?,
            false => vec![],
        };
        Ok(Heads { spec: spec.clone(), layers, prior })
    }

    /// `trunk [.., w]`, n vectors -> `[n, num_logits]`. `labels [n, num_labels]` feed autoregressive heads
    /// (teacher forcing), `previous [n, num_labels]` the prior; [`NONE`] stands for no previous.
    pub fn forward(
        &self,
        trunk: &Tensor,
        labels: Option<&[u16]>,
        previous: &[u16],
    ) -> Result<Tensor> {
        self.check_classes(previous, true)?;
        let rows = tensor::rows(trunk.dims()).0;
        let mut logits = match &self.layers {
            Layers::Linear(layer) => layer.forward(&by_row(trunk, rows)?)?,
            Layers::Independent(layers) => ops::branches(trunk, layers)?,
            Layers::Autoregressive { .. } => {
                let labels =
                    labels.ok_or_else(|| Error::not_found("labels for autoregressive heads"))?;
                let trunk = by_row(trunk, rows)?;
                self.check_rows(rows, labels)?;
                let given = |at, _: &Tensor| Ok(self.part(labels, at));
                arrange::join(&self.unroll(&trunk, given)?.iter().collect::<Vec<_>>())?
            }
        };
        if let Some(prior) = self.prior_logits(rows, &self.prior_rows(rows, previous)?)? {
            logits = arrange::add(&logits, &prior)?;
        }
        Ok(logits)
    }

    /// Whether no head reads another's choice.
    pub fn are_independent(&self) -> bool {
        !matches!(self.layers, Layers::Autoregressive { .. })
    }

    /// [`forward`](Self::forward) from what was uploaded before; `labels` are u16, as bytes, on a card.
    pub(crate) fn of_placed(
        &self,
        trunk: &Tensor,
        prior: &[Ids],
        labels: Option<&Tensor>,
    ) -> Result<Tensor> {
        let rows = tensor::rows(trunk.dims()).0;
        let logits = match &self.layers {
            Layers::Linear(layer) => layer.forward(&by_row(trunk, rows)?)?,
            Layers::Independent(layers) => ops::branches(trunk, layers)?,
            Layers::Autoregressive { .. } => {
                let missing = || Error::not_found("labels for autoregressive heads");
                self.forced(&by_row(trunk, rows)?, labels.ok_or_else(missing)?)?
            }
        };
        match self.prior_logits(rows, prior)? {
            Some(prior) => arrange::add(&logits, &prior),
            None => Ok(logits),
        }
    }
}

fn independent(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Vec<Branch>> {
    let dense = |input, output, b: Builder| -> Result<Dense> {
        let init = Init::fan_in(input);
        Ok(Dense {
            bias: b.get("bias", &[output], init)?,
            weight: b.get("weight", &[output, input], init)?,
        })
    };
    let head = |h: &spec::Head| -> Result<Branch> {
        let hidden = dense(input, h.hidden_size, b.under(format!("{}_hidden", h.name)))?;
        let b = b.under(format!("{}_logits", h.name));
        Ok(Branch { hidden, out: dense(h.hidden_size, h.kind.logits(), b)? })
    };
    spec.parts.iter().map(head).collect()
}

fn autoregressive(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Layers> {
    let stream = Linear::new(input, spec.stream_size, Activation::None, &b.under("stream_in"))?;
    let (mut decode, mut encode) = (vec![], vec![]);
    for (i, head) in spec.parts.iter().enumerate() {
        let n = head.kind.logits();
        decode.push(Linear::new(
            spec.stream_size,
            n,
            Activation::None,
            &b.under("decode").under(&head.name),
        )?);
        if i + 1 < spec.parts.len() {
            encode.push(Linear::zero(n, spec.stream_size, &b.under("encode").under(&head.name))?);
        }
    }
    Ok(Layers::Autoregressive { stream, decode, encode })
}

/// `[rows, width]` of a trunk of so many rows.
fn by_row(trunk: &Tensor, rows: usize) -> Result<Tensor> {
    arrange::reshape(trunk, [rows, trunk.elem_count() / rows.max(1)])
}

#[cfg(test)]
mod tests;
