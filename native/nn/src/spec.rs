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

/// How vectors become memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backbone {
    Mlp(MlpConfig),
    Lstm(RecurrentConfig),
    Gru(RecurrentConfig),
    SlidingWindow(AttentionConfig),
    Mamba(MambaConfig),
    #[serde(rename = "mamba_2")]
    Mamba2(Mamba2Config),
    MinGru(StackConfig),
    MinLstm(StackConfig),
    LstmHybrid(AttentionConfig),
    Jamba(JambaConfig),
    Griffin(GriffinConfig),
    Hawk(HawkConfig),
    ResLstm(StackConfig),
    TxLike(ExpandConfig),
    Hgrn(ExpandConfig),
    S4d(StateConfig),
    S5(StateConfig),
    Retnet(HeadsConfig),
    Rwkv(ExpandConfig),
    Gla(GlaConfig),
    Xlstm(HeadsConfig),
    Zamba(JambaConfig),
    GatedSsm(HawkConfig),
    /// Files may have the name that it had first.
    #[serde(alias = "decision_transformer")]
    CausalTransformer(AttentionConfig),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MlpConfig {
    pub hidden_sizes: Vec<usize>,
    pub layer_norm: bool,
    pub residual: bool,
    pub dropout: f32,
    pub input_dropout: f32,
}

/// A config of layers on top of each other: its own sizes, each at least 1, and flags, beside what
/// all of them share.
macro_rules! layered {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$size_meta:meta])* $size:ident,)*
        $(; $($(#[$flag_meta:meta])* $flag:ident,)*)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            /// Width of the layers and of the output.
            pub hidden_size: usize,
            pub num_layers: usize,
            $($(#[$size_meta])* pub $size: usize,)*
            $($($(#[$flag_meta])* pub $flag: bool,)*)?
            /// LayerNorm on the input: for many features of unlike scales. Of a vector of two numbers
            /// it leaves no more than which is the larger.
            #[serde(default)]
            pub input_norm: bool,
            pub dropout: f32,
            pub input_dropout: f32,
        }

        impl Layered for $name {
            fn trunk(&self) -> Trunk {
                Trunk {
                    hidden_size: self.hidden_size,
                    num_layers: self.num_layers,
                    input_norm: self.input_norm,
                    dropout: self.dropout,
                    input_dropout: self.input_dropout,
                }
            }

            fn sizes(&self) -> Vec<(&'static str, usize)> {
                vec![$((stringify!($size), self.$size)),*]
            }
        }
    };
}

/// What all configs of layers on top of each other share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trunk {
    pub hidden_size: usize,
    pub num_layers: usize,
    pub input_norm: bool,
    pub dropout: f32,
    pub input_dropout: f32,
}

pub trait Layered {
    fn trunk(&self) -> Trunk;

    /// Sizes of its own, by name.
    fn sizes(&self) -> Vec<(&'static str, usize)>;
}

layered! { RecurrentConfig { ; /** LayerNorm after each layer. */ layer_norm, } }
layered! { StackConfig {} }
layered! { ExpandConfig { /** Inner width over `hidden_size`. */ expand_factor, } }
layered! { StateConfig { /** Numbers of the state. */ state_size, } }
layered! { HeadsConfig { num_heads, /** Inner width over `hidden_size`. */ expand_factor, } }
layered! { GlaConfig { num_heads, head_dim, expand_factor, } }
layered! {
    AttentionConfig {
        num_heads,
        head_dim,
        /** Frames that a query sees, its own among them. */
        window_size,
        ;
        /** LayerNorm of each query and key. */
        qk_layernorm,
    }
}
layered! { HawkConfig { expand_factor, conv_size, } }
layered! {
    GriffinConfig {
        expand_factor,
        conv_size,
        /** Each so many blocks, the last of them attends. */
        attention_every,
        num_heads,
        window_size,
    }
}
layered! { MambaConfig { /** States of a channel. */ state_size, expand_factor, conv_size, } }
layered! {
    Mamba2Config {
        /** Width of a key. */
        state_size,
        expand_factor,
        conv_size,
        head_dim,
        /** Frames that are worked on at once; the numbers do not depend on it. */
        chunk_size,
    }
}
layered! {
    JambaConfig {
        state_size,
        expand_factor,
        conv_size,
        attention_every,
        num_heads,
        head_dim,
        window_size,
        ;
        qk_layernorm,
    }
}

impl Backbone {
    pub fn name(&self) -> &'static str {
        match self {
            Backbone::Mlp(_) => "mlp",
            Backbone::Lstm(_) => "lstm",
            Backbone::Gru(_) => "gru",
            Backbone::SlidingWindow(_) => "sliding_window",
            Backbone::Mamba(_) => "mamba",
            Backbone::Mamba2(_) => "mamba_2",
            Backbone::MinGru(_) => "min_gru",
            Backbone::MinLstm(_) => "min_lstm",
            Backbone::LstmHybrid(_) => "lstm_hybrid",
            Backbone::Jamba(_) => "jamba",
            Backbone::Griffin(_) => "griffin",
            Backbone::Hawk(_) => "hawk",
            Backbone::ResLstm(_) => "res_lstm",
            Backbone::TxLike(_) => "tx_like",
            Backbone::Hgrn(_) => "hgrn",
            Backbone::S4d(_) => "s4d",
            Backbone::S5(_) => "s5",
            Backbone::Retnet(_) => "retnet",
            Backbone::Rwkv(_) => "rwkv",
            Backbone::Gla(_) => "gla",
            Backbone::Xlstm(_) => "xlstm",
            Backbone::Zamba(_) => "zamba",
            Backbone::GatedSsm(_) => "gated_ssm",
            Backbone::CausalTransformer(_) => "causal_transformer",
        }
    }

    /// The config of layers on top of each other; the MLP has another.
    fn layered(&self) -> Option<&dyn Layered> {
        Some(match self {
            Backbone::Mlp(_) => return None,
            Backbone::Lstm(c) | Backbone::Gru(c) => c,
            Backbone::MinGru(c) | Backbone::MinLstm(c) | Backbone::ResLstm(c) => c,
            Backbone::SlidingWindow(c)
            | Backbone::LstmHybrid(c)
            | Backbone::CausalTransformer(c) => c,
            Backbone::Mamba(c) => c,
            Backbone::Mamba2(c) => c,
            Backbone::Jamba(c) | Backbone::Zamba(c) => c,
            Backbone::Griffin(c) => c,
            Backbone::Hawk(c) | Backbone::GatedSsm(c) => c,
            Backbone::TxLike(c) | Backbone::Hgrn(c) | Backbone::Rwkv(c) => c,
            Backbone::S4d(c) | Backbone::S5(c) => c,
            Backbone::Retnet(c) | Backbone::Xlstm(c) => c,
            Backbone::Gla(c) => c,
        })
    }

    /// Width of the trunk vector that the heads read.
    pub fn output_size(&self, input: usize) -> usize {
        match (self, self.layered()) {
            (_, Some(config)) => config.trunk().hidden_size,
            (Backbone::Mlp(c), None) => c.hidden_sizes.last().copied().unwrap_or(input),
            (_, None) => input,
        }
    }

    /// Checks every number before memory is taken for it.
    fn validate(&self) -> Result<()> {
        let dropouts = match (self, self.layered()) {
            (_, Some(config)) => {
                let trunk = config.trunk();
                size("backbone.hidden_size", trunk.hidden_size, 1)?;
                within("backbone.num_layers", trunk.num_layers, 1, MAX_LAYERS)?;
                for (name, n) in config.sizes() {
                    size(&format!("backbone.{name}"), n, 1)?;
                }
                self.check_state()?;
                [trunk.dropout, trunk.input_dropout]
            }
            (Backbone::Mlp(c), None) => {
                let layers = c.hidden_sizes.len();
                within("backbone.hidden_sizes (length)", layers, 1, MAX_LAYERS)?;
                c.hidden_sizes.iter().try_for_each(|&n| size("backbone.hidden_sizes", n, 1))?;
                [c.dropout, c.input_dropout]
            }
            (_, None) => [0.0; 2],
        };
        for p in dropouts {
            if !(0.0..1.0).contains(&p) {
                return Err(Error::out_of_range("backbone.dropout", p.into(), 0.0, 1.0));
            }
        }
        Ok(())
    }
}

impl Backbone {
    /// Small weights may go with a state that no machine holds: a window of many frames, or a matrix of
    /// two widths.
    fn check_state(&self) -> Result<()> {
        let layers = self.layered().map_or(0, |config| config.trunk().num_layers);
        let numbers = product([self.layer_state(), layers]);
        if numbers <= MAX_STATE {
            return Ok(());
        }
        let bytes = (numbers as u64).saturating_mul(size_of::<f32>() as u64);
        Err(Error::OverLimit {
            what: format!("the state of a {} for one game", self.name()),
            bytes,
            limit: (MAX_STATE * size_of::<f32>()) as u64,
        })
    }

    /// Numbers of the largest part of the state of a layer, beside parts that are no larger than its
    /// weights.
    fn layer_state(&self) -> usize {
        match self {
            Backbone::SlidingWindow(c)
            | Backbone::LstmHybrid(c)
            | Backbone::CausalTransformer(c) => {
                product([2, c.window_size, c.num_heads, c.head_dim])
            }
            Backbone::Jamba(c) | Backbone::Zamba(c) => {
                product([2, c.window_size, c.num_heads, c.head_dim])
            }
            Backbone::Griffin(c) => product([2, c.window_size, c.hidden_size]),
            Backbone::Mamba2(c) => product([c.expand_factor, c.hidden_size, c.state_size]),
            Backbone::Gla(c) => product([c.expand_factor, c.hidden_size, c.head_dim]),
            Backbone::Xlstm(c) => {
                let inner = product([c.expand_factor, c.hidden_size]);
                product([inner, inner / c.num_heads.max(1)])
            }
            _ => 0,
        }
    }
}

/// The product, or the largest number where it is larger.
fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
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

/// Each width, each number of heads, states, taps or frames: of a product of four no 64 bits overflow.
pub const MAX_SIZE: usize = 1 << 16;
/// Heads of an action.
pub const MAX_PARTS: usize = 64;
/// Layers of a backbone. A graph is walked and dropped recursively: its depth must fit a stack.
pub const MAX_LAYERS: usize = 256;
/// Numbers that a backbone remembers of one game: 1 GiB.
pub const MAX_STATE: usize = 1 << 28;
/// Letters of a head's name.
const MAX_HEAD_NAME: usize = 32;

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
