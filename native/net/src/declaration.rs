//! Networks as data.

use serde::{Deserialize, Serialize};

/// Maximum number of layers, those inside of others included.
pub const MAX_LAYERS: usize = 4096;
/// Maximum depth of layers inside of others.
pub const MAX_DEPTH: usize = 16;

/// A network: its inputs, and its layers in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetSpec {
    /// The inputs. Without [`Layer::Inputs`] there is exactly one.
    pub inputs: Vec<Input>,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// An input of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// `[c, h, w]` of an image, `[c, t]` of a signal, `[n]` of a vector, `[t]` of tokens.
    pub shape: Vec<usize>,
    /// The number of different tokens; `None` for other inputs.
    #[serde(default)]
    pub vocabulary: Option<usize>,
}

/// A function of each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// `x`.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `x sigmoid(x)`.
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    Gelu,
    /// `x min(max(x + 3, 0), 6) / 6`.
    HardSwish,
}

/// A layer. Lists have an entry for each spatial axis: one for signals, two for images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Layer {
    /// A cross-correlation with weights `[filters, c / groups, ..kernel]`.
    Conv {
        /// Channels of the output.
        filters: usize,
        /// Sizes of the kernel.
        kernel: Vec<usize>,
        /// Steps of the kernel over the input.
        stride: Vec<usize>,
        /// Zeros on both sides of the input.
        padding: Vec<usize>,
        /// Distances of the taps of the kernel.
        dilation: Vec<usize>,
        /// Groups of channels, each with filters of its own.
        groups: usize,
        /// Whether there is a bias.
        bias: bool,
        /// Applied to the output.
        activation: Function,
    },
    /// `weight (x - mean) / sqrt(variance + epsilon) + bias` by channel.
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
        /// The weight of new statistics in the running ones, while training.
        momentum: f32,
        /// Applied to the output.
        activation: Function,
    },
    /// A function of each number.
    Activation {
        /// The function.
        function: Function,
    },
    /// The largest number of each window.
    MaxPool {
        /// Sizes of the window.
        kernel: Vec<usize>,
        /// Steps of the window.
        stride: Vec<usize>,
        /// Numbers outside of the input, which are never the largest.
        padding: Vec<usize>,
    },
    /// The mean of each window.
    MeanPool {
        /// Sizes of the window.
        kernel: Vec<usize>,
        /// Steps of the window.
        stride: Vec<usize>,
        /// Zeros on both sides of the input.
        padding: Vec<usize>,
        /// Whether these zeros count.
        count_padding: bool,
    },
    /// The mean of each channel.
    GlobalMean,
    /// The largest number of each channel.
    GlobalMax,
    /// Repeats each number.
    Upsample {
        /// Repetitions on each axis.
        factor: Vec<usize>,
    },
    /// All numbers in one axis, channels first.
    Flatten,
    /// A product with weights `[size, n]`.
    Dense {
        /// Numbers of the output.
        size: usize,
        /// Whether there is a bias.
        bias: bool,
        /// Applied to the output.
        activation: Function,
    },
    /// A row of weights `[vocabulary, size]` for each token.
    Embed {
        /// Numbers of a token.
        size: usize,
    },
    /// Self-attention over the time of a signal, added to it.
    Attention {
        /// Heads, which divide the channels.
        heads: usize,
    },
    /// The input plus what these layers make of it.
    Residual {
        /// The layers.
        layers: Vec<Layer>,
    },
    /// The outputs of several branches, one after the other in the first axis.
    Concat {
        /// The layers of each branch.
        branches: Vec<Vec<Layer>>,
    },
    /// The inputs by name, each through layers of its own, one after the other in the first axis.
    Inputs {
        /// The layers of each input.
        branches: Vec<(String, Vec<Layer>)>,
    },
}

impl Layer {
    /// The name in errors and tables.
    pub fn kind(&self) -> &'static str {
        match self {
            Layer::Conv { .. } => "conv",
            Layer::BatchNorm { .. } => "batch_norm",
            Layer::Activation { .. } => "activation",
            Layer::MaxPool { .. } => "max_pool",
            Layer::MeanPool { .. } => "mean_pool",
            Layer::GlobalMean => "global_mean",
            Layer::GlobalMax => "global_max",
            Layer::Upsample { .. } => "upsample",
            Layer::Flatten => "flatten",
            Layer::Dense { .. } => "dense",
            Layer::Embed { .. } => "embed",
            Layer::Attention { .. } => "attention",
            Layer::Residual { .. } => "residual",
            Layer::Concat { .. } => "concat",
            Layer::Inputs { .. } => "inputs",
        }
    }
}
