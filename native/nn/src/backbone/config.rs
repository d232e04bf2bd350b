//! The sizes of each backbone, and what they may be.

use serde::{Deserialize, Serialize};

use crate::bounds::{MAX_LAYERS, size, within};
use crate::{Error, Result};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MlpConfig {
    pub hidden_sizes: Vec<usize>,
    pub layer_norm: bool,
    pub residual: bool,
    pub dropout: f32,
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

/// The product, or the largest number where it is larger.
fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

/// A config of layers on top of each other: its own sizes, each at least 1, and flags, beside what
/// all of them share; then the numbers of the state of a layer, where it may be larger than its weights.
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

/// What all configs of layers on top of each other share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trunk {
    pub hidden_size: usize,
    pub num_layers: usize,
    pub input_norm: bool,
    pub dropout: f32,
    pub input_dropout: f32,
}

/// What is asked of the config of a backbone.
pub(crate) trait Config {
    /// Width of the trunk vector that the heads read.
    fn output_size(&self, input: usize) -> usize;

    /// Checks every number before memory is taken for it.
    fn validate(&self) -> Result<()>;

    /// Numbers of the largest part of the state of all layers, beside parts that are no larger than their weights: small
    /// weights may go with a state that no machine holds, a window of many frames, or a matrix of two widths.
    fn state(&self) -> usize {
        0
    }

    /// Whether it reads whole windows alone: it has no step, and no game carries its state.
    fn window_only(&self) -> bool {
        false
    }
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
layered! { HeadsConfig { num_heads, /** Inner width over `hidden_size`. */ expand_factor, },
    state: |c| {
        let inner = product([c.expand_factor, c.hidden_size]);
        product([inner, inner / c.num_heads.max(1)])
    }
}
layered! { GlaConfig { num_heads, head_dim, expand_factor, },
    state: |c| product([c.expand_factor, c.hidden_size, c.head_dim])
}
layered! {
    AttentionConfig {
        num_heads,
        head_dim,
        /** Frames that a query sees, its own among them. */
        window_size,
        ;
        /** LayerNorm of each query and key. */
        qk_layernorm,
    },
    state: |c| product([2, c.window_size, c.num_heads, c.head_dim])
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
    },
    state: |c| product([2, c.window_size, c.hidden_size])
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
    },
    state: |c| product([c.expand_factor, c.hidden_size, c.state_size])
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
    },
    state: |c| product([2, c.window_size, c.num_heads, c.head_dim])
}
