//! The sizes of each backbone, and their bounds.

use serde::{Deserialize, Serialize};

use crate::bounds::{MAX_LAYERS, size, within};
use crate::layer::EPS;
use crate::{Error, Result, ops};

/// Config of an MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MlpConfig {
    /// Width of each layer.
    pub hidden_sizes: Vec<usize>,
    /// LayerNorm in each layer.
    pub layer_norm: bool,
    /// Adds the input of each layer to its output.
    pub residual: bool,
    /// Activation of each layer.
    #[serde(default, skip_serializing_if = "MlpActivation::is_relu")]
    pub activation: MlpActivation,
    /// Probability of dropout after each layer, in training.
    pub dropout: f32,
    /// Probability that an input column of a window is dropped, in training.
    pub input_dropout: f32,
}

/// Activation of an MLP's layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpActivation {
    /// [`ops::Activation::Relu`], also of a Spec that was stored without an activation.
    #[default]
    Relu,
    /// [`ops::Activation::Tanh`].
    Tanh,
    /// [`ops::Activation::Silu`].
    Silu,
    /// [`ops::Activation::Gelu`].
    Gelu,
}

impl MlpActivation {
    fn is_relu(&self) -> bool {
        *self == MlpActivation::Relu
    }
}

impl From<MlpActivation> for ops::Activation {
    fn from(activation: MlpActivation) -> Self {
        match activation {
            MlpActivation::Relu => ops::Activation::Relu,
            MlpActivation::Tanh => ops::Activation::Tanh,
            MlpActivation::Silu => ops::Activation::Silu,
            MlpActivation::Gelu => ops::Activation::Gelu,
        }
    }
}

impl Config for MlpConfig {
    fn output_size(&self, input: usize) -> usize {
        self.hidden_sizes.last().copied().unwrap_or(input)
    }

    fn validate(&self) -> Result<()> {
        let layers = self.hidden_sizes.len();
        within("backbone.hidden_sizes (length)", layers, 1, MAX_LAYERS)?;
        self.hidden_sizes.iter().try_for_each(|&n| size("backbone.hidden_sizes", n, 1))?;
        dropouts([self.dropout, self.input_dropout])
    }
}

fn dropouts(all: [f32; 2]) -> Result<()> {
    match all.into_iter().find(|p| !(0.0..1.0).contains(p)) {
        Some(p) => Err(Error::out_of_range("backbone.dropout", p.into(), 0.0, 1.0)),
        None => Ok(()),
    }
}

/// The product of `factors`, saturated at `usize::MAX`.
fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

/// A field that newer configs have: old files lack it, and a file has it only if it differs from its default.
trait Newer: Default + PartialEq {
    fn check(&self, name: &str) -> Result<()>;
}

fn is_default<T: Newer>(value: &T) -> bool {
    *value == T::default()
}

impl Newer for bool {
    fn check(&self, _name: &str) -> Result<()> {
        Ok(())
    }
}

/// The constant that the norms of a backbone add to the variance; [`EPS`] by default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NormEps(pub f32);

impl Default for NormEps {
    fn default() -> Self {
        NormEps(EPS)
    }
}

impl Newer for NormEps {
    fn check(&self, name: &str) -> Result<()> {
        let NormEps(eps) = *self;
        match (1e-12..=1.0).contains(&eps) {
            true => Ok(()),
            false => Err(Error::out_of_range(name, eps.into(), 1e-12, 1.0)),
        }
    }
}

/// Declares the config of a stack of layers. It has the sizes of that backbone, each at least 1, its flags, fields that
/// were added later, and the fields that all such configs share. The other parts are optional:
///
/// - `state` is the number of f32 in a layer's state, given if the state may be larger than the layer's weights.
/// - `output` is the width of the output, if it is not `hidden_size`.
/// - `check` finds sizes that do not fit each other.
/// - `window_only` is [`Config::window_only`].
macro_rules! layered {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$size_meta:meta])* $size:ident,)*
        $(; $($(#[$flag_meta:meta])* $flag:ident,)*)?
        $(=> $($(#[$newer_meta:meta])* $newer:ident: $type:ty,)*)?
    } $(, state: $state:expr)? $(, output: $output:expr)? $(, check: $check:expr)? $(, window_only: $only:expr)?) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            /// Width of the layers and of the output.
            pub hidden_size: usize,
            /// Number of layers.
            pub num_layers: usize,
            $($(#[$size_meta])* pub $size: usize,)*
            $($($(#[$flag_meta])* pub $flag: bool,)*)?
            $($($(#[$newer_meta])*
                #[serde(default, skip_serializing_if = "is_default")]
                pub $newer: $type,)*)?
            /// LayerNorm on the input, useful for many features with different scales. Of a vector of two values only
            /// their order survives the norm.
            #[serde(default)]
            pub input_norm: bool,
            /// Probability of dropout after each layer, in training.
            pub dropout: f32,
            /// Probability that an input column of a window is dropped, in training.
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

        impl Config for $name {
            fn output_size(&self, _input: usize) -> usize {
                let own: &[fn(&Self) -> usize] = &[$($output)?];
                own.first().map_or(self.hidden_size, |own| own(self))
            }

            fn validate(&self) -> Result<()> {
                let trunk = self.trunk();
                size("backbone.hidden_size", trunk.hidden_size, 1)?;
                within("backbone.num_layers", trunk.num_layers, 1, MAX_LAYERS)?;
                for (name, n) in self.sizes() {
                    size(&format!("backbone.{name}"), n, 1)?;
                }
                $($(self.$newer.check(concat!("backbone.", stringify!($newer)))?;)*)?
                let checks: &[fn(&Self) -> Result<()>] = &[$($check)?];
                checks.iter().try_for_each(|check| check(self))?;
                dropouts([trunk.dropout, trunk.input_dropout])
            }

            $(fn window_only(&self) -> bool {
                $only
            })?

            $(fn state(&self) -> usize {
                let state: fn(&Self) -> usize = $state;
                state(self).saturating_mul(self.num_layers)
            })?
        }
    };
}

/// The fields that all configs of stacked layers share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trunk {
    /// Width of the layers and of the output.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// LayerNorm on the input.
    pub input_norm: bool,
    /// Probability of dropout after each layer, in training.
    pub dropout: f32,
    /// Probability that an input column of a window is dropped, in training.
    pub input_dropout: f32,
}

/// The interface of a backbone's config.
pub(crate) trait Config {
    /// Width of the trunk vector that the heads read.
    fn output_size(&self, input: usize) -> usize;

    /// Checks that every number is in range, before any memory is allocated.
    fn validate(&self) -> Result<()>;

    /// Number of f32 in the largest tensor of all layers' states, ignoring tensors no larger than their layer's
    /// weights. The number is bounded because small weights may have a huge state: a window of many frames, or a matrix
    /// of two widths.
    fn state(&self) -> usize {
        0
    }

    /// True if the backbone processes only whole windows: it has no step form, and no state is carried between steps of
    /// a game.
    fn window_only(&self) -> bool {
        false
    }
}

/// A config of a stack of layers.
pub trait Layered {
    /// The fields that all such configs share.
    fn trunk(&self) -> Trunk;

    /// The sizes that only this config has, by name.
    fn sizes(&self) -> Vec<(&'static str, usize)>;
}

layered! {
    /// Config of an LSTM or a GRU.
    RecurrentConfig {
        ;
        /// LayerNorm after each layer.
        layer_norm,
        =>
        /// The constant that the norms add to the variance.
        norm_eps: NormEps,
        /// The state before the first frame is stored among the weights, instead of zero.
        initial_state: bool,
    }
}
layered! {
    /// Config of a stack without sizes of its own.
    StackConfig {}
}
layered! {
    /// Config of a stack with an inner width.
    ExpandConfig {
        /// Ratio of the inner width to `hidden_size`.
        expand_factor,
    }
}
layered! {
    /// Config of a stack of state spaces.
    StateConfig {
        /// Size of the state: per channel in S4D, per layer in S5.
        state_size,
    }
}
layered! {
    /// Config of a stack with heads and an inner width.
    HeadsConfig {
        /// Number of heads.
        num_heads,
        /// Ratio of the inner width to `hidden_size`.
        expand_factor,
    },
    state: |c| {
        let inner = product([c.expand_factor, c.hidden_size]);
        product([inner, inner / c.num_heads.max(1)])
    }
}
layered! {
    /// Config of gated linear attention.
    GlaConfig {
        /// Number of heads.
        num_heads,
        /// Width of a key of one head.
        head_dim,
        /// Ratio of the total width of the values, and of the feed-forward layers' inner width, to `hidden_size`.
        expand_factor,
    },
    state: |c| product([c.expand_factor, c.hidden_size, c.head_dim])
}
layered! {
    /// Config of a stack with attention.
    AttentionConfig {
        /// Number of heads.
        num_heads,
        /// Width of a key of one head.
        head_dim,
        /// Number of frames that a query sees, its own frame included.
        window_size,
        ;
        /// LayerNorm of each query and key.
        qk_layernorm,
    },
    state: |c| product([2, c.window_size, c.num_heads, c.head_dim])
}
layered! {
    /// Config of Hawk and of the gated state space.
    HawkConfig {
        /// Ratio of the inner width to `hidden_size`.
        expand_factor,
        /// Number of frames in the kernel of the causal convolution.
        conv_size,
    }
}
layered! {
    /// Config of Griffin.
    GriffinConfig {
        /// Ratio of the feed-forward layers' inner width to `hidden_size`.
        expand_factor,
        /// Number of frames in the kernel of the causal convolution.
        conv_size,
        /// A block is an attention block if its number, counted from 1, is a multiple of this value.
        attention_every,
        /// Number of heads.
        num_heads,
        /// Number of frames that a query sees, its own frame included.
        window_size,
    },
    state: |c| product([2, c.window_size, c.hidden_size])
}
layered! {
    /// Config of Mamba.
    MambaConfig {
        /// Number of states of each channel.
        state_size,
        /// Ratio of the number of channels to `hidden_size`.
        expand_factor,
        /// Number of frames in the kernel of the causal convolution.
        conv_size,
    }
}
layered! {
    /// Config of Mamba-2.
    Mamba2Config {
        /// Width of a key.
        state_size,
        /// Ratio of the inner width to `hidden_size`.
        expand_factor,
        /// Number of frames in the kernel of the causal convolution.
        conv_size,
        /// Width of the values of one head.
        head_dim,
        /// Number of frames computed at once; the result does not depend on it.
        chunk_size,
    },
    state: |c| product([c.expand_factor, c.hidden_size, c.state_size])
}
layered! {
    /// Config of Jamba and Zamba: Mamba layers with attention.
    JambaConfig {
        /// Number of states of each channel of Mamba.
        state_size,
        /// Ratio of Mamba's number of channels to `hidden_size`.
        expand_factor,
        /// Number of frames in the kernel of the causal convolution.
        conv_size,
        /// A block is an attention block if its number, counted from 1, is a multiple of this value.
        attention_every,
        /// Number of heads.
        num_heads,
        /// Width of a key of one head.
        head_dim,
        /// Number of frames that a query sees, its own frame included.
        window_size,
        ;
        /// LayerNorm of each query and key.
        qk_layernorm,
    },
    state: |c| product([2, c.window_size, c.num_heads, c.head_dim])
}
layered! {
    /// Config of the Mamba and the Mamba-2 of ExPhil.
    ExphilMambaConfig {
        /// Number of states of each channel.
        state_size,
        /// Ratio of the number of channels to `hidden_size`.
        expand_factor,
        /// Number of frames in the kernel of the causal convolution.
        conv_size,
        ;
        /// Whether the input of a frame decays in that same frame, as in ExPhil's Mamba-2 on windows of at most 32
        /// frames.
        #[serde(default)]
        decays_input,
    }
}
layered! {
    /// Config of the gated state space of ExPhil.
    ExphilGatedSsmConfig {
        /// Number of values of B and of C.
        state_size,
        /// Ratio of the number of channels to `hidden_size`.
        expand_factor,
        /// Number of frames of a mean.
        conv_size,
    },
    window_only: true
}
layered! {
    /// Config of the Jamba of ExPhil.
    ExphilJambaConfig {
        /// Number of values of B and of C.
        state_size,
        /// Ratio of the number of channels to `hidden_size`.
        expand_factor,
        /// Number of frames of a mean.
        conv_size,
        /// A layer is an attention layer if its number, counted from 1, is a multiple of this value.
        attention_every,
        /// Number of heads.
        num_heads,
        /// Width of a key of one head.
        head_dim,
    },
    window_only: true
}
layered! {
    /// Config of ExPhil's attention. `hidden_size` is `num_heads * head_dim`.
    ExphilAttentionConfig {
        /// Number of heads.
        num_heads,
        /// Width of a key of one head.
        head_dim,
        /// Number of frames that a query sees, its own frame included.
        window_size,
        /// Inner width of the feed-forward layers.
        inner_size,
    },
    check: |c| {
        let heads = product([c.num_heads, c.head_dim]);
        match c.hidden_size == heads {
            true => Ok(()),
            false => Err(Error::mismatch("backbone.hidden_size", heads, c.hidden_size)),
        }
    },
    window_only: true
}
layered! {
    /// Config of ExPhil's LSTM with attention. The LSTM has the width `hidden_size`, the output `num_heads * head_dim`.
    ExphilHybridConfig {
        /// Number of heads.
        num_heads,
        /// Width of a key of one head.
        head_dim,
        /// Number of frames that a query sees, its own frame included.
        window_size,
        =>
        /// The LSTM's state before the first frame is stored among the weights, instead of zero.
        initial_state: bool,
    },
    state: |c| product([2, c.window_size, c.num_heads, c.head_dim]),
    output: |c| product([c.num_heads, c.head_dim])
}
layered! {
    /// Config of ExPhil's residual LSTM.
    ExphilLstmConfig {
        =>
        /// The state before the first frame is stored among the weights, instead of zero.
        initial_state: bool,
    }
}
