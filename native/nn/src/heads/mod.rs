//! Computes logits from the trunk vector, and an action from logits.

pub(crate) mod card;
mod choose;
mod on_card;
mod packed;
mod prior;
mod sample;

pub(crate) use packed::Packed;
pub(crate) use prior::Read;
pub use sample::{CardHeads, Chosen};
use sconce_tensor::{Tensor, tensor};

pub use crate::head::NONE;
use crate::layer::Linear;
use crate::ops::{self, Activation, Branch, Dense, arrange};
use crate::spec::{self, Head, HeadsKind};
use crate::weights::{Block, Builder, Init, Weight};
use crate::{Error, Result};

/// One action for each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Logits `[n, num_logits]`.
    pub logits: Vec<f32>,
    /// Labels `[n, num_labels]`: bits, classes and numbers.
    pub choices: Vec<f32>,
    /// Confidence `[n, heads]`, each in 0..1.
    pub confidence: Vec<f32>,
}

/// The heads of a policy, with their weights.
pub struct Heads {
    spec: spec::Heads,
    layers: Layers,
    prior: Vec<Weight>,
}

/// The inputs of the heads for some frames.
#[derive(Debug, Clone)]
pub struct Trunk {
    /// Trunk vectors `[.., w]`.
    pub vectors: Tensor,
    /// Values `[.., 1]` of the same frames, if a critic estimates them.
    pub values: Option<Tensor>,
}

impl From<Tensor> for Trunk {
    fn from(vectors: Tensor) -> Self {
        Trunk { vectors, values: None }
    }
}

impl Trunk {
    /// The same selection of frames from the vectors and from the values.
    pub(crate) fn select(&self, of: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Trunk> {
        let values = self.values.as_ref().map(&of).transpose()?;
        Ok(Trunk { vectors: of(&self.vectors)?, values })
    }

    /// Number of frames.
    fn rows(&self) -> usize {
        tensor::rows(self.vectors.dims()).0
    }

    /// Appends the values of a critic to the logits of the other heads.
    fn beside(&self, logits: Tensor) -> Result<Tensor> {
        match &self.values {
            Some(values) => arrange::join(&[&logits, &by_row(values, self.rows())?]),
            None => Ok(logits),
        }
    }
}

/// The layers of the heads; of all but the value head if a critic gives the value.
enum Layers {
    /// `logits = W x` for all heads together. Weight: `logits`.
    Linear(Linear),
    /// `logits = W_2 relu(W_1 x)` for each head. Weights: `NAME_hidden`, `NAME_logits`.
    Independent(Vec<Branch>),
    /// A residual stream: each head computes its logits from the stream and adds an encoding of its choice (Vinyals et
    /// al. 2019). Weights: `stream_in`, `decode.NAME`, and `encode.NAME` if a later head depends on the choice.
    Autoregressive { stream: Linear, decode: Vec<Linear>, encode: Vec<Option<Linear>> },
}

impl Heads {
    /// Builds heads for trunk vectors of width `input`.
    pub fn new(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Self> {
        Ok(Heads { spec: spec.clone(), layers: layers(spec, input, b)?, prior: priors(spec, b)? })
    }

    /// Builds heads whose value a critic gives with the trunk vectors. They have no layer for the value.
    pub fn beside_critic(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Self> {
        let choosing = spec::Heads { parts: spec.choosing().cloned().collect(), ..spec.clone() };
        let layers = layers(&choosing, input, b)?;
        Ok(Heads { spec: spec.clone(), layers, prior: priors(spec, b)? })
    }

    /// Logits `[n, num_logits]` of n trunk vectors `[.., w]`. Autoregressive heads are conditioned on `labels [n,
    /// num_labels]` (teacher forcing). The prior is conditioned on `previous [n, num_labels]`, with [`NONE`] for a
    /// missing label.
    pub fn forward(
        &self,
        trunk: &Trunk,
        labels: Option<&[f32]>,
        previous: &[f32],
    ) -> Result<Tensor> {
        self.spec.check_labels(previous, true)?;
        let (rows, vectors) = (trunk.rows(), &trunk.vectors);
        let logits = match &self.layers {
            Layers::Linear(layer) => layer.forward(&by_row(vectors, rows)?)?,
            Layers::Independent(layers) => ops::branches(vectors, layers)?,
            Layers::Autoregressive { .. } => {
                let labels =
                    labels.ok_or_else(|| Error::not_found("labels for autoregressive heads"))?;
                let vectors = by_row(vectors, rows)?;
                self.check_rows(rows, labels)?;
                let given = |at, logits: &Tensor| Ok((self.part(labels, at), logits.clone()));
                arrange::join(&self.unroll(&vectors, given)?.iter().collect::<Vec<_>>())?
            }
        };
        let logits = trunk.beside(logits)?;
        match self.prior_logits(rows, &self.prior_reads(rows, previous)?)? {
            Some(prior) => arrange::add(&logits, &prior),
            None => Ok(logits),
        }
    }

    /// True if no head depends on the choice of another.
    pub fn are_independent(&self) -> bool {
        !matches!(self.layers, Layers::Autoregressive { .. })
    }

    /// [`forward`](Self::forward) with inputs that are already on the device; `labels` are on a card.
    pub(crate) fn of_placed(
        &self,
        trunk: &Trunk,
        prior: &[Read],
        labels: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (rows, vectors) = (trunk.rows(), &trunk.vectors);
        let logits = match &self.layers {
            Layers::Linear(layer) => layer.forward(&by_row(vectors, rows)?)?,
            Layers::Independent(layers) => ops::branches(vectors, layers)?,
            Layers::Autoregressive { .. } => {
                let missing = || Error::not_found("labels for autoregressive heads");
                self.forced(&by_row(vectors, rows)?, labels.ok_or_else(missing)?)?
            }
        };
        let logits = trunk.beside(logits)?;
        match self.prior_logits(rows, prior)? {
            Some(prior) => arrange::add(&logits, &prior),
            None => Ok(logits),
        }
    }
}

/// The rows of a head's logits in an orthogonal initialisation. A small gain makes the first choices nearly uniform,
/// which helps PPO more than other details (Andrychowicz et al. 2021, "What matters in on-policy reinforcement
/// learning?"); a value has the gain of a linear layer.
fn block(head: &Head) -> Block {
    let gain = if head.kind.labels() == 0 { 1.0 } else { 0.01 };
    Block { rows: head.kind.logits(), gain }
}

fn layers(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Layers> {
    Ok(match spec.kind {
        HeadsKind::Independent if spec.are_linear() => {
            let b = b.under("logits").in_blocks(spec.parts.iter().map(block));
            Layers::Linear(Linear::new(input, spec.num_logits(), Activation::None, &b)?)
        }
        HeadsKind::Independent => Layers::Independent(independent(spec, input, b)?),
        HeadsKind::Autoregressive => autoregressive(spec, input, b)?,
    })
}

/// The tables of the prior; none without a prior.
fn priors(spec: &spec::Heads, b: &Builder) -> Result<Vec<Weight>> {
    match spec.prior {
        true => prior::tables(spec, &b.under("prior")),
        false => Ok(vec![]),
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
        let b = b.under(format!("{}_logits", h.name)).in_blocks([block(h)]);
        Ok(Branch { hidden, out: dense(h.hidden_size, h.kind.logits(), b)? })
    };
    spec.parts.iter().map(head).collect()
}

fn autoregressive(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Layers> {
    let stream = Linear::new(input, spec.stream_size, Activation::None, &b.under("stream_in"))?;
    let last = spec.parts.iter().rposition(|head| head.kind.labels() > 0);
    let (mut decode, mut encode) = (vec![], vec![]);
    for (i, head) in spec.parts.iter().enumerate() {
        let Head { name, kind, .. } = head;
        let (width, under) = (spec.stream_size, b.under("decode").under(name));
        let under = under.in_blocks([block(head)]);
        decode.push(Linear::new(width, kind.logits(), Activation::None, &under)?);
        let is_read = kind.labels() > 0 && last != Some(i);
        let under = b.under("encode").under(name);
        let zero = || Linear::zero(kind.features(), width, &under);
        encode.push(is_read.then(zero).transpose()?);
    }
    Ok(Layers::Autoregressive { stream, decode, encode })
}

/// Reshapes the trunk vectors to `[rows, width]`.
fn by_row(trunk: &Tensor, rows: usize) -> Result<Tensor> {
    arrange::reshape(trunk, [rows, trunk.elem_count() / rows.max(1)])
}

#[cfg(test)]
mod tests;
