//! The sizes of each backbone, and their bounds.

use serde::{Deserialize, Serialize};

use crate::bounds::{MAX_LAYERS, size, within};
use crate::{Error, Result};

/// Config of an MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MlpConfig {
    /// Width of each layer.
    pub hidden_sizes: Vec<usize>,
    /// LayerNorm in each layer.
    pub layer_norm: bool,
    /// Adds the input of each layer to its output.
    pub residual: bool,
    /// Probability of dropout after each layer, in training.
    pub dropout: f32,
    /// Probability that an input column of a window is dropped, in training.
    pub input_dropout: f32,
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

/// The product, saturated at the largest number.
fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

/// Declares the config of a stack of layers: its own sizes, each at least 1, its flags, and the fields that all such
/// configs share. The optional `state` is the number of f32 in a layer's state where that may exceed its weights.
macro_rules! layered {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$size_meta:meta])* $size:ident,)*
        $(; $($(#[$flag_meta:meta])* $flag:ident,)*)?
    } $(, state: $state:expr)?) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            /// Width of the layers and of the output.
            pub hidden_size: usize,
            /// Number of layers.
            pub num_layers: usize,
            $($(#[$size_meta])* pub $size: usize,)*
            $($($(#[$flag_meta])* pub $flag: bool,)*)?
            /// LayerNorm on the input, for many features with different scales. It reduces a vector of two numbers to
            /// which of them is larger.
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
                self.hidden_size
            }

            fn validate(&self) -> Result<()> {
                let trunk = self.trunk();
                size("backbone.hidden_size", trunk.hidden_size, 1)?;
                within("backbone.num_layers", trunk.num_layers, 1, MAX_LAYERS)?;
                for (name, n) in self.sizes() {
                    size(&format!("backbone.{name}"), n, 1)?;
                }
                dropouts([trunk.dropout, trunk.input_dropout])
            }

            $(fn state(&self) -> usize {
                let state: fn(&Self) -> usize = $state;
                state(self).saturating_mul(self.num_layers)
            })?
        }
    };
}

/// The fields that all configs of layers on top of each other share.
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

    /// Checks every number before any memory is allocated for it.
    fn validate(&self) -> Result<()>;

    /// Number of f32 in the largest part of all layers' states. Parts no larger than their weights do not count. The
    /// bound matters because small weights may have a huge state: a window of many frames, or a matrix of two widths.
    fn state(&self) -> usize {
        0
    }

    /// True if the backbone reads only whole windows: it has no step form, and a game cannot carry its state.
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
    }
}
layered! {
    /// Config of a stack without sizes of its own.
    StackConfig {}
}
layered! {
    /// Config of a stack with an inner width.
    ExpandConfig {
        /// Inner width over `hidden_size`.
        expand_factor,
    }
}
layered! {
    /// Config of a stack of state spaces.
    StateConfig {
        /// Numbers of the state: of each channel in S4D, of each layer in S5.
        state_size,
    }
}
layered! {
    /// Config of a stack with heads and an inner width.
    HeadsConfig {
        /// Number of heads.
        num_heads,
        /// Inner width over `hidden_size`.
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
        /// Width of all values, and of the feed-forward layers, over `hidden_size`.
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
        /// Inner width over `hidden_size`.
        expand_factor,
        /// Number of frames that the causal convolution reads.
        conv_size,
    }
}
layered! {
    /// Config of Griffin.
    GriffinConfig {
        /// Inner width of the feed-forward layers over `hidden_size`.
        expand_factor,
        /// Number of frames that the causal convolution reads.
        conv_size,
        /// Every block whose number, counted from 1, is a multiple of this one attends.
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
        /// Number of channels over `hidden_size`.
        expand_factor,
        /// Number of frames that the causal convolution reads.
        conv_size,
    }
}
layered! {
    /// Config of Mamba-2.
    Mamba2Config {
        /// Width of a key.
        state_size,
        /// Inner width over `hidden_size`.
        expand_factor,
        /// Number of frames that the causal convolution reads.
        conv_size,
        /// Width of the values of one head.
        head_dim,
        /// Number of frames computed at once. It does not affect the result.
        chunk_size,
    },
    state: |c| product([c.expand_factor, c.hidden_size, c.state_size])
}
layered! {
    /// Config of Jamba and Zamba: Mamba layers with attention.
    JambaConfig {
        /// Number of states of each channel of Mamba.
        state_size,
        /// Number of channels of Mamba over `hidden_size`.
        expand_factor,
        /// Number of frames that the causal convolution reads.
        conv_size,
        /// Every block whose number, counted from 1, is a multiple of this one attends.
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
