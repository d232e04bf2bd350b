//! The layers of a small policy, and the order of its numbers in a solution.

use std::ops::Range;

use sconce_nn::Spec;
use sconce_nn::spec::{Backbone, HeadKind, HeadsKind};
use sconce_ops::Activation;
use sconce_tensor::{Error, Result};

/// Most numbers of an individual.
const MOST: usize = 1 << 24;

/// A dense layer. Rows of units hold one number of each individual of a block.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    /// Rows of units that it reads.
    pub(super) from: Range<usize>,
    /// Rows of units that it writes. They come after those that it reads.
    pub(super) to: Range<usize>,
    /// Its first weight among all weights. They lie row by row, `[outputs, inputs]`.
    pub(super) weights: usize,
    /// Its first bias among all biases. It is also its first row of weights among all rows.
    pub(super) biases: usize,
    pub(super) activation: Activation,
}

impl Layer {
    pub(super) fn inputs(&self) -> usize {
        self.from.len()
    }

    pub(super) fn outputs(&self) -> usize {
        self.to.len()
    }

    /// The weights in a solution. Biases follow them.
    pub(super) fn place(&self) -> Range<usize> {
        let first = self.weights + self.biases;
        first..first + self.inputs() * self.outputs()
    }
}

/// The network of a Spec: an MLP over plain vectors, with heads that do not depend on each other.
///
/// A solution holds the numbers of each layer in turn: weights `[outputs, inputs]`, then biases `[outputs]`. First come
/// the layers of the backbone, then those of the heads.
#[derive(Debug, Clone)]
pub struct Network {
    spec: Spec,
    pub(super) layers: Vec<Layer>,
    /// The name of each layer's weights, without `.weight`.
    names: Vec<String>,
    /// Rows of units in all.
    pub(super) units: usize,
    /// Rows of units that are logits.
    pub(super) logits: Range<usize>,
    size: usize,
}

impl Network {
    /// The network of a Spec.
    ///
    /// # Errors
    /// `Mismatch` with the part of the Spec that populations do not have; `OutOfRange` for too many numbers; those of
    /// [`Spec::validate`].
    pub fn of(spec: &Spec) -> Result<Self> {
        spec.validate()?;
        let refuse = |what: &str, expected: &str, got: &str| -> Result<Self> {
            Err(Error::mismatch(format!("{what} of a population"), expected, got))
        };
        if !spec.embedding.is_vector() {
            return refuse("the embedding", "plain vectors", "another");
        }
        let Backbone::Mlp(mlp) = &spec.backbone else {
            return refuse("the backbone", "an MLP", "another");
        };
        if mlp.layer_norm || mlp.residual {
            return refuse("the backbone", "an MLP without norms and skips", "one with them");
        }
        let heads = &spec.heads;
        if spec.critic.is_some() || heads.choosing().count() < heads.parts.len() {
            return refuse("the heads", "heads that choose", "a value head");
        }
        if heads.kind != HeadsKind::Independent || heads.prior {
            return refuse("the heads", "independent heads without a prior", "others");
        }
        let activation = mlp.activation.into();
        let mut own = Network {
            spec: spec.clone(),
            layers: vec![],
            names: vec![],
            units: spec.embedding.width(),
            logits: 0..0,
            size: 0,
        };
        let mut trunk = 0..own.units;
        for (at, size) in mlp.hidden_sizes.iter().enumerate() {
            trunk = own.push(format!("backbone.layers.{at}.dense"), trunk, *size, activation);
        }
        own.push_heads(trunk);
        if own.size > MOST {
            let (size, most) = (own.size as f64, MOST as f64);
            return Err(Error::out_of_range("numbers of an individual", size, 1.0, most));
        }
        Ok(own)
    }

    fn push_heads(&mut self, trunk: Range<usize>) {
        let heads = self.spec.heads.clone();
        if heads.are_linear() {
            let name = "heads.logits".to_string();
            self.logits = self.push(name, trunk, heads.num_logits(), Activation::None);
            return;
        }
        let mut hidden = vec![];
        for head in &heads.parts {
            let name = format!("heads.{}_hidden", head.name);
            hidden.push(self.push(name, trunk.clone(), head.hidden_size, Activation::Relu));
        }
        let first = self.units;
        for (head, hidden) in heads.parts.iter().zip(hidden) {
            let name = format!("heads.{}_logits", head.name);
            self.push(name, hidden, head.kind.logits(), Activation::None);
        }
        self.logits = first..self.units;
    }

    /// Appends a layer, and returns the rows of units that it writes.
    fn push(
        &mut self,
        name: String,
        from: Range<usize>,
        outputs: usize,
        activation: Activation,
    ) -> Range<usize> {
        let (weights, biases) = (self.weights(), self.rows());
        let to = self.units..self.units.saturating_add(outputs);
        let numbers = from.len().saturating_add(1).saturating_mul(outputs);
        self.size = self.size.saturating_add(numbers);
        self.units = to.end;
        self.layers.push(Layer { from, to: to.clone(), weights, biases, activation });
        self.names.push(name);
        to
    }

    /// The Spec.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Numbers of a solution.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Numbers of an observation.
    pub fn inputs(&self) -> usize {
        self.spec.embedding.width()
    }

    /// Numbers of an output.
    pub fn outputs(&self) -> usize {
        self.logits.len()
    }

    /// Weights of an individual, without biases.
    pub(super) fn weights(&self) -> usize {
        self.size - self.rows()
    }

    /// Biases of an individual, one for each row of weights.
    pub(super) fn rows(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.biases + layer.outputs())
    }

    /// Names and shapes of the weights of a policy, with their places in a solution.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, Range<usize>)> {
        let of = |(layer, name): (&Layer, &String)| {
            let (place, outputs) = (layer.place(), layer.outputs());
            let biases = place.end..place.end + outputs;
            [
                (format!("{name}.weight"), vec![outputs, layer.inputs()], place),
                (format!("{name}.bias"), vec![outputs], biases),
            ]
        };
        self.layers.iter().zip(&self.names).flat_map(of).collect()
    }

    /// The kinds of the heads, with their first logits and labels.
    pub(super) fn heads(&self) -> impl Iterator<Item = (HeadKind, usize, usize)> {
        self.spec.heads.iter().map(|part| (part.head.kind, part.logits, part.labels))
    }
}
