//! The model as data: printable, comparable, stored in every checkpoint.

use serde::{Deserialize, Serialize};

pub use crate::backbone::config::*;
pub use crate::backbone::table::Backbone;
use crate::bounds::{MAX_HEAD_NAME, size, within};
pub use crate::bounds::{MAX_LAYERS, MAX_PARTS, MAX_SIZE, MAX_STATE};
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
    /// Controllers in the vector. 1: the input that led to the frame. More: the inputs that the player
    /// gave last, the newest first, whether the frame shows them yet or not.
    #[serde(default = "one")]
    pub queue_depth: usize,
    /// Width of the one-hot of the frame delay, whose last class is that delay or a longer one; 0 leaves
    /// the block out.
    #[serde(default)]
    pub num_delays: usize,
}

fn one() -> usize {
    1
}

/// In labels of a previous action: there was none.
pub const NONE: u16 = u16::MAX;

/// Projectile slots of a frame.
pub const MAX_PROJECTILES: usize = 5;

/// Controllers that a vector may have: a second of them and some.
pub const MAX_QUEUE_DEPTH: usize = 64;
/// The longest delay of an action, in frames: nearly three minutes, far beyond any connection's.
pub const MAX_DELAY: usize = 10_000;

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
            queue_depth: 1,
            num_delays: 0,
        }
    }
}

impl Melee {
    pub fn packed() -> Self {
        Melee { layout: Layout::Packed, num_player_names: 112, ..Melee::default() }
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
    /// Width of the hidden layer of an independent head; 0: none has a hidden layer.
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

    /// Whether independent heads read their logits straight from the trunk vector.
    pub fn are_linear(&self) -> bool {
        self.parts.iter().all(|head| head.hidden_size == 0)
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
                within("embedding.num_projectiles", m.num_projectiles, 0, MAX_PROJECTILES)?;
                within("embedding.queue_depth", m.queue_depth, 1, MAX_QUEUE_DEPTH)?;
                size("embedding.num_delays", m.num_delays, 0)
            }
        }
    }
}

impl Spec {
    /// Checks every number before memory is taken for it.
    pub fn validate(&self) -> Result<()> {
        self.embedding.validate()?;
        self.backbone.validate()?;
        self.heads.validate(&self.embedding)
    }
}

/// Names of heads reach terminals, files and Elixir: they are short and plain, wherever they come from.
fn check_head_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || name.len() > MAX_HEAD_NAME || !name.chars().all(plain) {
        let expected = format!("[a-z0-9_], at most {MAX_HEAD_NAME}");
        return Err(Error::mismatch("name of a head", expected, name));
    }
    Ok(())
}

impl Heads {
    /// Checks every number before memory is taken for it.
    pub fn validate(&self, embedding: &Embedding) -> Result<()> {
        within("heads (number)", self.parts.len(), 1, MAX_PARTS)?;
        for (i, head) in self.parts.iter().enumerate() {
            let name = &head.name;
            check_head_name(name)?;
            if self.parts[..i].iter().any(|h| h.name == *name) {
                return Err(Error::mismatch("heads", "distinct names", format!("{name} twice")));
            }
            let (least, most) = match head.kind {
                HeadKind::Bernoulli(_) => (1, MAX_SIZE),
                // The largest u16 is no class: it says that there is none.
                HeadKind::Categorical(_) => (2, usize::from(NONE)),
            };
            within(&format!("heads.{name}.size"), head.kind.logits(), least, most)?;
            // Of independent heads none has a hidden layer, or each.
            let least = usize::from(!self.are_linear());
            size(&format!("heads.{name}.hidden_size"), head.hidden_size, least)?;
        }
        size("heads.stream_size", self.stream_size, 1)?;
        let melee = matches!(embedding, Embedding::Melee(_));
        if self.prior && !(melee && self.is_controller()) {
            let expected = "the Melee embedding and the controller heads";
            return Err(Error::mismatch("heads.prior", expected, "others"));
        }
        if embedding.queue_depth() > 1 && !self.is_controller() {
            let expected = "the controller heads";
            return Err(Error::mismatch("embedding.queue_depth above 1", expected, "others"));
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
    fn all_independent_heads_have_a_hidden_layer_or_none() {
        let mut heads = Heads::controller(HeadsKind::Independent);
        heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
        let said = |heads: &Heads| {
            let (embedding, heads) = (Embedding::Vector(2), heads.clone());
            let spec = Spec { embedding, backbone: mlp(1), heads };
            spec.validate().err().map(|e| e.to_string())
        };
        assert_eq!(said(&heads), None);
        heads.parts[2].hidden_size = 4;
        assert_eq!(
            said(&heads).as_deref(),
            Some("heads.buttons.hidden_size: 0 is outside 1..65536")
        );
    }

    #[test]
    fn every_size_is_bounded_and_no_product_of_sizes_overflows() {
        let wide = |hidden_size| {
            Backbone::Gru(RecurrentConfig {
                hidden_size,
                num_layers: 1,
                layer_norm: false,
                input_norm: false,
                dropout: 0.0,
                input_dropout: 0.0,
            })
        };
        for n in [1_000_000_000_000, usize::MAX] {
            let said = refused(wide(n), 2).unwrap();
            assert_eq!(said, format!("backbone.hidden_size: {} is outside 1..65536", n as f64));
            let said = refused(mlp(1), n).unwrap();
            assert!(said.starts_with("heads.move.size"), "{said}");
        }
        let config = AttentionConfig {
            hidden_size: 1,
            num_layers: 256,
            num_heads: MAX_SIZE,
            head_dim: MAX_SIZE,
            window_size: MAX_SIZE,
            qk_layernorm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let attention = |config: &AttentionConfig| Backbone::SlidingWindow(config.clone());
        let said = refused(attention(&config), 2).unwrap();
        assert!(said.starts_with("the state of a sliding_window for one game needs"), "{said}");
        // The largest of the catalogue's orders, far within.
        let large = AttentionConfig { num_layers: 4, num_heads: 16, head_dim: 64, ..config };
        let large = AttentionConfig { hidden_size: 1024, window_size: 4096, ..large };
        assert_eq!(refused(attention(&large), 2), None);
    }

    #[test]
    fn the_first_name_of_the_causal_transformer_is_read_and_no_longer_written() {
        let config = r#"{"hidden_size":4,"num_layers":1,"num_heads":1,"head_dim":2,"window_size":3,"qk_layernorm":true,"input_norm":false,"dropout":0.1,"input_dropout":0.0}"#;
        let named = |name: &str| format!(r#"{{"{name}":{config}}}"#);
        let backbone: Backbone = serde_json::from_str(&named("decision_transformer")).unwrap();
        assert_eq!(backbone.name(), "causal_transformer");
        assert_eq!(serde_json::to_string(&backbone).unwrap(), named("causal_transformer"));
        assert_eq!(serde_json::from_str::<Backbone>(&named(backbone.name())).unwrap(), backbone);
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
