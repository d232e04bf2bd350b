//! Hybrids of Mamba and attention layers.

use super::attention::{self, Sizes};
use super::config::{JambaConfig, Layered, MambaConfig};
use super::mamba::Mamba;
use super::stack::Stack;
use crate::layer::Norm;
use crate::weights::Builder;
use crate::{Result, ops};

/// Ratio of the feed-forward layers' inner width to `hidden_size`.
const FFN: usize = 4;

impl JambaConfig {
    /// Config of the Mamba layers.
    pub fn mamba(&self) -> MambaConfig {
        MambaConfig {
            hidden_size: self.hidden_size,
            num_layers: self.num_layers,
            state_size: self.state_size,
            expand_factor: self.expand_factor,
            conv_size: self.conv_size,
            input_norm: self.input_norm,
            dropout: self.dropout,
            input_dropout: self.input_dropout,
        }
    }

    /// Sizes of the attention layers.
    pub fn attention(&self) -> Sizes {
        Sizes {
            hidden_size: self.hidden_size,
            num_heads: self.num_heads,
            head_dim: self.head_dim,
            window_size: self.window_size,
            qk_layernorm: self.qk_layernorm,
            pairing: ops::attention::Pairing::Half,
        }
    }
}

/// `:jamba`: alternating Mamba and attention layers (Lieber et al. 2024). Every `attention_every`th layer is a
/// transformer block over the last `window_size` frames, whose feed-forward layer has an inner width of four times
/// `hidden_size`. All other layers are those of [`mamba`]. A LayerNorm ends the stack.
///
/// State: the states of the layers, see [`Mamba`] and [`attention::Attention`]. Weights: `input`,
/// `layers.I.{norm, mixer}` or `layers.I.{norm1, qkv, out, norm2, ffn1, ffn2}`, `norm`.
pub fn jamba(config: &JambaConfig, input: usize, b: &Builder) -> Result<Stack> {
    let (trunk, mamba, sizes) = (config.trunk(), config.mamba(), config.attention());
    let h = trunk.hidden_size;
    let mut residuals = vec![];
    for i in 0..trunk.num_layers {
        let b = b.under("layers").under(i);
        match (i + 1) % config.attention_every {
            0 => residuals.extend(attention::block(&sizes, FFN * h, &b)?),
            _ => residuals.push(Mamba::residual(h, &mamba, &b)?),
        }
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}

/// `:zamba`: a stack of Mamba layers with one transformer block after every `attention_every` of them. All occurrences
/// of the block share weights, and each has its own state (Glorioso et al. 2024). A LayerNorm ends the stack.
///
/// State: the states of the layers, in order. Weights: `input`, `layers.I.{norm, mixer}`, `shared.{norm1, qkv, out,
/// norm2, ffn1, ffn2}`, `norm`.
pub fn zamba(config: &JambaConfig, input: usize, b: &Builder) -> Result<Stack> {
    let (trunk, mamba) = (config.trunk(), config.mamba());
    let h = trunk.hidden_size;
    let every = config.attention_every;
    // The block is built only if used, because an unused block's weights would have no gradient.
    let block = || attention::block(&config.attention(), FFN * h, &b.under("shared"));
    let shared = (trunk.num_layers >= every).then(block).transpose()?;
    let mut residuals = vec![];
    for i in 0..trunk.num_layers {
        residuals.push(Mamba::residual(h, &mamba, &b.under("layers").under(i))?);
        if let (0, Some(shared)) = ((i + 1) % every, &shared) {
            residuals.extend(shared.iter().cloned());
        }
    }
    Stack::new(&trunk, input, residuals, Some(Norm::layer(h, &b.under("norm"))?), b)
}
