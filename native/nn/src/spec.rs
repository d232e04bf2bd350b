//! The model as data: printable, comparable, stored in every checkpoint.

use serde::{Deserialize, Serialize};

pub use crate::action::{Head, Heads, HeadsKind, Part};
pub use crate::backbone::config::*;
pub use crate::backbone::table::Backbone;
use crate::bounds::{MAX_HEAD_NAME, size, within};
pub use crate::bounds::{MAX_LAYERS, MAX_PARTS, MAX_SIZE, MAX_STATE};
pub use crate::embedding::{Declared, Embedding, Layout, Melee, Normalised};
pub use crate::head::{Gaussian, HeadKind, NONE};
use crate::{Error, Result};

/// The description of a policy, without its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Conversion from a frame to a vector.
    pub embedding: Embedding,
    /// The network that processes the vectors and holds the memory.
    pub backbone: Backbone,
    /// The parts of an action.
    pub heads: Heads,
    /// A second network that the value head alone reads, as PPO often uses. Without it the value head reads `backbone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<Backbone>,
}

/// Maximum delay of an action, in frames: nearly three minutes, far beyond the delay of any connection.
pub const MAX_DELAY: usize = 10_000;

impl Spec {
    /// Checks that every number is in range, before any memory is allocated.
    pub fn validate(&self) -> Result<()> {
        self.embedding.validate()?;
        self.backbone.validate()?;
        self.heads.validate(&self.embedding)?;
        let Some(critic) = &self.critic else { return Ok(()) };
        if self.heads.choosing().count() == self.heads.parts.len() {
            return Err(Error::mismatch("critic", "a value head", "none"));
        }
        critic.validate()
    }

    /// Whether both Specs are equal, apart from statistics by which frames are normalised: weights, memories and plain
    /// frames of one fit the other.
    pub fn is_alike(&self, other: &Spec) -> bool {
        let Spec { embedding, backbone, heads, critic } = self;
        embedding.is_alike(&other.embedding)
            && (backbone, heads, critic) == (&other.backbone, &other.heads, &other.critic)
    }

    /// True if a backbone processes only whole windows and has no step form.
    pub fn is_window_only(&self) -> bool {
        self.backbone.is_window_only() || self.critic.as_ref().is_some_and(Backbone::is_window_only)
    }

    /// Returns an error unless the state of all backbones can be carried from one step of a game to the next.
    ///
    /// # Errors
    /// `Mismatch` for a window-only backbone.
    pub fn check_carried(&self) -> Result<()> {
        self.critic.iter().chain([&self.backbone]).try_for_each(Backbone::check_carried)
    }
}

/// Returns an error unless the name is short and plain, because names of heads reach terminals, files and Elixir.
fn check_head_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || name.len() > MAX_HEAD_NAME || !name.chars().all(plain) {
        let expected = format!("[a-z0-9_], at most {MAX_HEAD_NAME}");
        return Err(Error::mismatch("name of a head", expected, name));
    }
    Ok(())
}

impl Heads {
    /// Checks that every number is in range, before any memory is allocated.
    pub fn validate(&self, embedding: &Embedding) -> Result<()> {
        within("heads (number)", self.parts.len(), 1, MAX_PARTS)?;
        for (i, head) in self.parts.iter().enumerate() {
            let name = &head.name;
            check_head_name(name)?;
            if self.parts[..i].iter().any(|h| h.name == *name) {
                return Err(Error::mismatch("heads", "distinct names", format!("{name} twice")));
            }
            head.kind.validate(&format!("heads.{name}"))?;
            // Either all independent heads have a hidden layer or none has.
            let least = usize::from(!self.are_linear());
            size(&format!("heads.{name}.hidden_size"), head.hidden_size, least)?;
        }
        self.check_values()?;
        size("heads.stream_size", self.stream_size, 1)?;
        let reads = embedding.reads_inputs(self);
        let refuse = |what: &str| {
            let game = embedding.game();
            let expected = match game.parts().is_empty() {
                true => "a game whose inputs are declared".to_owned(),
                false => format!("the heads of an input of {}", game.name()),
            };
            Err(Error::mismatch(what, expected, "other heads"))
        };
        if self.prior && !reads {
            return refuse("heads.prior");
        }
        if embedding.queue_depth() > 1 && !reads {
            return refuse("embedding.queue_depth above 1");
        }
        Ok(())
    }
}

impl Heads {
    /// Checks that at most one head is a value head, which must be the last and be named `value`.
    fn check_values(&self) -> Result<()> {
        let choosing = self.choosing().count();
        within("heads (that choose an action)", choosing, 1, MAX_PARTS)?;
        let (values, last) = (self.parts.len() - choosing, self.parts.last());
        let fits =
            values == 1 && last.is_some_and(|head| head.name == VALUE && head.kind.labels() == 0);
        if values == 0 || fits {
            return Ok(());
        }
        Err(Error::mismatch("heads", "at most one value head, named value and last", "another"))
    }
}

/// Name of the value head.
const VALUE: &str = "value";

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(backbone: Backbone, classes: usize) -> Option<String> {
        let kind = HeadKind::Categorical(classes);
        let parts = vec![Head { name: "move".into(), kind, hidden_size: 4 }];
        let heads = Heads { parts, ..Heads::controller(HeadsKind::Independent) };
        let spec = Spec { embedding: Embedding::vector(2), backbone, heads, critic: None };
        spec.validate().err().map(|e| e.to_string())
    }

    fn mlp(layers: usize) -> Backbone {
        Backbone::Mlp(MlpConfig {
            hidden_sizes: vec![4; layers],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
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
            ..Default::default()
        })
    }

    #[test]
    fn the_marker_of_a_missing_label_is_not_a_class() {
        assert_eq!(refused(mlp(1), 65_535), None);
        let said = "heads.move.size: 65536 is outside 2..65535";
        assert_eq!(refused(mlp(1), 65_536).as_deref(), Some(said));
    }

    #[test]
    fn all_independent_heads_have_a_hidden_layer_or_none() {
        let mut heads = Heads::controller(HeadsKind::Independent);
        heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
        let said = |heads: &Heads| {
            let (embedding, heads) = (Embedding::vector(2), heads.clone());
            let spec = Spec { embedding, backbone: mlp(1), heads, critic: None };
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
                ..Default::default()
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
        // A state as large as in the largest configurations in use, far below the limit.
        let large = AttentionConfig { num_layers: 4, num_heads: 16, head_dim: 64, ..config };
        let large = AttentionConfig { hidden_size: 1024, window_size: 4096, ..large };
        assert_eq!(refused(attention(&large), 2), None);
    }

    #[test]
    fn the_former_name_of_the_causal_transformer_is_read_but_not_written() {
        let config = r#"{"hidden_size":4,"num_layers":1,"num_heads":1,"head_dim":2,"window_size":3,"qk_layernorm":true,"input_norm":false,"dropout":0.1,"input_dropout":0.0}"#;
        let named = |name: &str| format!(r#"{{"{name}":{config}}}"#);
        let backbone: Backbone = serde_json::from_str(&named("decision_transformer")).unwrap();
        assert_eq!(backbone.name(), "causal_transformer");
        assert_eq!(serde_json::to_string(&backbone).unwrap(), named("causal_transformer"));
        assert_eq!(serde_json::from_str::<Backbone>(&named(backbone.name())).unwrap(), backbone);
    }

    #[test]
    fn an_mlp_without_an_activation_is_stored_and_read_as_one_with_relu() {
        let stored = r#"{"mlp":{"hidden_sizes":[4],"layer_norm":false,"residual":false,"dropout":0.0,"input_dropout":0.0}}"#;
        let relu: Backbone = serde_json::from_str(stored).unwrap();
        assert_eq!(relu, mlp(1));
        assert_eq!(serde_json::to_string(&relu).unwrap(), stored);
        for (activation, name) in [
            (MlpActivation::Tanh, "tanh"),
            (MlpActivation::Silu, "silu"),
            (MlpActivation::Gelu, "gelu"),
        ] {
            let Backbone::Mlp(config) = mlp(1) else { unreachable!("an MLP") };
            let backbone = Backbone::Mlp(MlpConfig { activation, ..config });
            let text = serde_json::to_string(&backbone).unwrap();
            assert!(text.contains(&format!(r#""activation":"{name}""#)), "{text}");
            assert_eq!(serde_json::from_str::<Backbone>(&text).unwrap(), backbone);
        }
        let unknown = stored.replace(r#""dropout""#, r#""activation":"swish","dropout""#);
        assert!(serde_json::from_str::<Backbone>(&unknown).is_err());
    }

    #[test]
    fn newer_fields_of_a_config_are_stored_only_if_they_differ_and_are_bounded() {
        let stored = r#"{"gru":{"hidden_size":4,"num_layers":1,"layer_norm":true,"input_norm":false,"dropout":0.0,"input_dropout":0.0}}"#;
        let Ok(Backbone::Gru(config)) = serde_json::from_str(stored) else { unreachable!("a GRU") };
        assert_eq!((config.norm_eps, config.initial_state), (NormEps(1e-5), false));
        assert_eq!(serde_json::to_string(&Backbone::Gru(config.clone())).unwrap(), stored);
        let own = RecurrentConfig { norm_eps: NormEps(1e-6), initial_state: true, ..config };
        let own = Backbone::Gru(own);
        let text = serde_json::to_string(&own).unwrap();
        assert!(text.contains(r#""norm_eps":0.000001,"initial_state":true"#), "{text}");
        assert_eq!(serde_json::from_str::<Backbone>(&text).unwrap(), own);
        let wide = |eps| {
            let Ok(Backbone::Gru(config)) = serde_json::from_str(stored) else {
                unreachable!("a GRU")
            };
            refused(Backbone::Gru(RecurrentConfig { norm_eps: NormEps(eps), ..config }), 2)
        };
        assert_eq!([1e-12, 1.0].map(wide), [None, None]);
        let said = "backbone.norm_eps: 0 is outside 0.000000000001..1";
        assert_eq!(wide(0.0).as_deref(), Some(said));
        assert!(wide(1.5).is_some() && wide(f32::NAN).is_some());
    }

    #[test]
    fn heads_of_exphils_attention_fill_the_width() {
        let config = |hidden_size| ExphilAttentionConfig {
            hidden_size,
            num_layers: 1,
            num_heads: 3,
            head_dim: 8,
            window_size: 4,
            inner_size: 6,
            ..Default::default()
        };
        let of = |hidden_size| refused(Backbone::ExphilAttention(config(hidden_size)), 2);
        assert_eq!(of(24), None);
        assert_eq!(of(32).as_deref(), Some("backbone.hidden_size: expected 24, got 32"));
    }

    #[test]
    fn a_critic_needs_a_value_head_and_is_stored_only_if_there_is_one() {
        let value = Head { name: VALUE.into(), kind: HeadKind::Value(1), hidden_size: 64 };
        let mut heads = Heads::controller(HeadsKind::Independent);
        let embedding = Embedding::vector(2);
        let shared = Spec { embedding, backbone: mlp(1), heads: heads.clone(), critic: None };
        assert!(!serde_json::to_string(&shared).unwrap().contains("critic"));
        let mut spec = Spec { critic: Some(gru(1)), ..shared };
        let said = spec.validate().unwrap_err().to_string();
        assert_eq!(said, "critic: expected a value head, got none");
        heads.parts.push(value);
        spec.heads = heads;
        assert_eq!(spec.validate().map_err(|e| e.to_string()), Ok(()));
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
        spec.critic = Some(gru(257));
        let said = spec.validate().unwrap_err().to_string();
        assert_eq!(said, "backbone.num_layers: 257 is outside 1..256");
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
