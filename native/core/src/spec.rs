//! The model as data: printable, comparable, stored in every checkpoint.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What a policy is, without its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub embedding: Embedding,
    pub backbone: Backbone,
    pub heads: Heads,
}

/// How a frame becomes a vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Embedding {
    /// A vector of this many numbers, taken as it is.
    Vector(usize),
    Melee(Melee),
}

/// Options of the Melee embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Melee {
    pub layout: Layout,
    pub action_embed_size: usize,
    pub character_embed_size: usize,
    pub stage_embed_size: usize,
    /// Width of the one-hot of player names; 0 leaves the block out.
    pub num_player_names: usize,
    /// Projectile slots; 0 leaves the block out.
    pub num_projectiles: usize,
}

/// In labels of a previous action: there was none.
pub const NONE: u16 = u16::MAX;

/// Projectile slots of a frame.
pub const MAX_PROJECTILES: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Continuous features, and ids looked up in trained tables.
    Learned,
    /// The application's 288-wide vector, ids as plain numbers.
    Packed,
}

impl Default for Melee {
    fn default() -> Self {
        Melee {
            layout: Layout::Learned,
            action_embed_size: 64,
            character_embed_size: 64,
            stage_embed_size: 8,
            num_player_names: 0,
            num_projectiles: 5,
        }
    }
}

impl Melee {
    pub fn packed() -> Self {
        Melee { layout: Layout::Packed, num_player_names: 112, ..Melee::default() }
    }
}

/// How vectors become memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backbone {
    Mlp(MlpConfig),
    Lstm(RecurrentConfig),
    Gru(RecurrentConfig),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MlpConfig {
    pub hidden_sizes: Vec<usize>,
    pub layer_norm: bool,
    pub residual: bool,
    pub dropout: f32,
    pub input_dropout: f32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecurrentConfig {
    pub hidden_size: usize,
    pub num_layers: usize,
    /// LayerNorm after each layer.
    pub layer_norm: bool,
    /// LayerNorm on the input: for many features of unlike scales. Of a vector of two numbers it
    /// leaves no more than which is the larger.
    #[serde(default)]
    pub input_norm: bool,
    pub dropout: f32,
    pub input_dropout: f32,
}

impl Backbone {
    pub fn name(&self) -> &'static str {
        match self {
            Backbone::Mlp(_) => "mlp",
            Backbone::Lstm(_) => "lstm",
            Backbone::Gru(_) => "gru",
        }
    }

    /// Width of the trunk vector that the heads read.
    pub fn output_size(&self, input: usize) -> usize {
        match self {
            Backbone::Mlp(c) => c.hidden_sizes.last().copied().unwrap_or(input),
            Backbone::Lstm(c) | Backbone::Gru(c) => c.hidden_size,
        }
    }

    fn dropouts(&self) -> [f32; 2] {
        match self {
            Backbone::Mlp(c) => [c.dropout, c.input_dropout],
            Backbone::Lstm(c) | Backbone::Gru(c) => [c.dropout, c.input_dropout],
        }
    }
}

/// The named parts of an action and how they are tied together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    pub kind: HeadsKind,
    pub parts: Vec<Head>,
    /// Width of the residual stream of autoregressive heads.
    pub stream_size: usize,
    /// Adds to the logits a learned row per previous choice, which starts at log P(a_t | a_{t-1}).
    pub prior: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadsKind {
    /// Every head reads the trunk vector alone.
    Independent,
    /// Each head also sees what the heads before it chose.
    Autoregressive,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub name: String,
    pub kind: HeadKind,
    /// Width of the hidden layer of an independent head.
    pub hidden_size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadKind {
    /// `n` independent bits.
    Bernoulli(usize),
    /// One of `n` classes.
    Categorical(usize),
}

impl HeadKind {
    /// Logits of the head.
    pub fn logits(self) -> usize {
        match self {
            HeadKind::Bernoulli(n) | HeadKind::Categorical(n) => n,
        }
    }

    /// Numbers in its label: a bit each, or one class.
    pub fn labels(self) -> usize {
        match self {
            HeadKind::Bernoulli(n) => n,
            HeadKind::Categorical(_) => 1,
        }
    }

    /// Values that one number of its label can take.
    pub fn classes(self) -> usize {
        match self {
            HeadKind::Bernoulli(_) => 2,
            HeadKind::Categorical(n) => n,
        }
    }
}

/// A head and where its part of the logits and of the labels begins.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub head: &'a Head,
    pub logits: usize,
    pub labels: usize,
}

impl Heads {
    /// The controller: eight buttons, two sticks of 17 positions an axis, a shoulder of 5 steps.
    pub fn controller(kind: HeadsKind) -> Self {
        let head = |name: &str, kind, hidden_size| Head { name: name.into(), kind, hidden_size };
        let mut parts = vec![head("buttons", HeadKind::Bernoulli(8), 64)];
        for axis in ["main_x", "main_y", "c_x", "c_y"] {
            parts.push(head(axis, HeadKind::Categorical(17), 64));
        }
        parts.push(head("shoulder", HeadKind::Categorical(5), 32));
        Heads { kind, parts, stream_size: 128, prior: false }
    }

    /// Heads with the offsets of their logits and labels in one frame.
    pub fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        self.parts.iter().scan((0, 0), |at, head| {
            let part = Part { head, logits: at.0, labels: at.1 };
            *at = (at.0 + head.kind.logits(), at.1 + head.kind.labels());
            Some(part)
        })
    }

    /// Logits of one frame, all heads side by side.
    pub fn num_logits(&self) -> usize {
        self.parts.iter().map(|h| h.kind.logits()).sum()
    }

    /// Numbers in the label of one frame.
    pub fn num_labels(&self) -> usize {
        self.parts.iter().map(|h| h.kind.labels()).sum()
    }

    /// Whether these are the six parts of a controller, whatever their buckets.
    pub fn is_controller(&self) -> bool {
        let names = ["buttons", "main_x", "main_y", "c_x", "c_y", "shoulder"];
        self.parts.len() == names.len()
            && self.parts.iter().zip(names).all(|(h, n)| h.name == n)
            && self.parts[0].kind == HeadKind::Bernoulli(8)
            && self.parts[1..].iter().all(|h| matches!(h.kind, HeadKind::Categorical(_)))
    }
}

/// More of anything than this is a corrupt file, not a model.
const MAX_SIZE: usize = 1 << 16;
const MAX_PARTS: usize = 64;
/// A graph is walked and dropped recursively: its depth must fit a stack.
const MAX_LAYERS: usize = 256;

fn within(field: &str, n: usize, min: usize, max: usize) -> Result<()> {
    if n < min || n > max {
        return Err(Error::out_of_range(field, n as f64, min as f64, max as f64));
    }
    Ok(())
}

fn size(field: &str, n: usize, min: usize) -> Result<()> {
    within(field, n, min, MAX_SIZE)
}

impl Embedding {
    /// Checks every number before memory is taken for it.
    pub fn validate(&self) -> Result<()> {
        match self {
            Embedding::Vector(n) => size("embedding.vector", *n, 1),
            Embedding::Melee(m) => {
                size("embedding.action_embed_size", m.action_embed_size, 1)?;
                size("embedding.character_embed_size", m.character_embed_size, 1)?;
                size("embedding.stage_embed_size", m.stage_embed_size, 1)?;
                size("embedding.num_player_names", m.num_player_names, 0)?;
                within("embedding.num_projectiles", m.num_projectiles, 0, MAX_PROJECTILES)
            }
        }
    }
}

impl Spec {
    /// Checks every number before memory is taken for it.
    pub fn validate(&self) -> Result<()> {
        self.embedding.validate()?;
        match &self.backbone {
            Backbone::Mlp(c) => {
                let layers = c.hidden_sizes.len();
                within("backbone.hidden_sizes (length)", layers, 1, MAX_LAYERS)?;
                c.hidden_sizes.iter().try_for_each(|&n| size("backbone.hidden_sizes", n, 1))?;
            }
            Backbone::Lstm(c) | Backbone::Gru(c) => {
                size("backbone.hidden_size", c.hidden_size, 1)?;
                within("backbone.num_layers", c.num_layers, 1, MAX_LAYERS)?;
            }
        }
        for p in self.backbone.dropouts() {
            if !(0.0..1.0).contains(&p) {
                return Err(Error::out_of_range("backbone.dropout", p.into(), 0.0, 1.0));
            }
        }
        self.heads.validate(&self.embedding)
    }
}

impl Heads {
    fn validate(&self, embedding: &Embedding) -> Result<()> {
        within("heads (number)", self.parts.len(), 1, MAX_PARTS)?;
        for (i, head) in self.parts.iter().enumerate() {
            let name = &head.name;
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
                return Err(Error::mismatch("name of a head", "[a-z0-9_], at most 32", name));
            }
            if self.parts[..i].iter().any(|h| h.name == *name) {
                return Err(Error::mismatch("heads", "distinct names", format!("{name} twice")));
            }
            let (least, most) = match head.kind {
                HeadKind::Bernoulli(_) => (1, MAX_SIZE),
                // The largest u16 is no class: it says that there is none.
                HeadKind::Categorical(_) => (2, usize::from(NONE)),
            };
            within(&format!("heads.{name}.size"), head.kind.logits(), least, most)?;
            size(&format!("heads.{name}.hidden_size"), head.hidden_size, 1)?;
        }
        size("heads.stream_size", self.stream_size, 1)?;
        let melee = matches!(embedding, Embedding::Melee(_));
        if self.prior && !(melee && self.is_controller()) {
            let expected = "the Melee embedding and the controller heads";
            return Err(Error::mismatch("heads.prior", expected, "others"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(backbone: Backbone, classes: usize) -> Option<String> {
        let kind = HeadKind::Categorical(classes);
        let parts = vec![Head { name: "move".into(), kind, hidden_size: 4 }];
        let heads = Heads { parts, ..Heads::controller(HeadsKind::Independent) };
        let spec = Spec { embedding: Embedding::Vector(2), backbone, heads };
        spec.validate().err().map(|e| e.to_string())
    }

    fn mlp(layers: usize) -> Backbone {
        Backbone::Mlp(MlpConfig {
            hidden_sizes: vec![4; layers],
            layer_norm: false,
            residual: false,
            dropout: 0.0,
            input_dropout: 0.0,
        })
    }

    fn gru(num_layers: usize) -> Backbone {
        Backbone::Gru(RecurrentConfig {
            hidden_size: 4,
            num_layers,
            layer_norm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
        })
    }

    #[test]
    fn the_number_that_stands_for_none_is_no_class() {
        assert_eq!(refused(mlp(1), 65_535), None);
        let said = "heads.move.size: 65536 is outside 2..65535";
        assert_eq!(refused(mlp(1), 65_536).as_deref(), Some(said));
    }

    #[test]
    fn a_stack_of_layers_is_bounded() {
        assert_eq!((refused(mlp(256), 2), refused(gru(256), 2)), (None, None));
        let said = "backbone.hidden_sizes (length): 257 is outside 1..256";
        assert_eq!(refused(mlp(257), 2).as_deref(), Some(said));
        let said = "backbone.num_layers: 257 is outside 1..256";
        assert_eq!(refused(gru(257), 2).as_deref(), Some(said));
    }
}
