//! The declaration of a network.

use serde::{Deserialize, Serialize};

/// A network: its inputs, and the layers that they pass in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetSpec {
    /// The inputs. More than one needs [`Layer::Inputs`] as the first layer.
    pub inputs: Vec<Input>,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// An input of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The name.
    pub name: String,
    /// `[c, h, w]` of an image, `[c, t]` of a signal, `[n]` of a vector, or `[t]` of tokens.
    pub shape: Vec<usize>,
    /// The number of different tokens. With it the values are ids of tokens: whole numbers from 0.
    #[serde(default)]
    pub vocabulary: Option<usize>,
}

/// An elementwise function.
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
    /// `x sigmoid(x)` (Elfwing et al. 2018).
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))` (Hendrycks & Gimpel 2016), the tanh form.
    Gelu,
    /// `x relu6(x + 3) / 6` (Howard et al. 2019).
    HardSwish,
}

/// A layer. The lists `kernel`, `stride`, `padding`, `output_padding`, `dilation` and `factor` have one number for each axis after the
/// channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Layer {
    /// Convolution of `[c, t]` or `[c, h, w]`, padded with zeros: `weight [filters, c / groups, kernel]`, `bias [filters]`.
    Conv {
        /// Output channels.
        filters: usize,
        /// Size of the kernel.
        kernel: Vec<usize>,
        /// Distance of neighbouring windows.
        stride: Vec<usize>,
        /// Zeros on each side of an axis.
        padding: Vec<usize>,
        /// Distance of neighbouring taps of the kernel.
        dilation: Vec<usize>,
        /// Groups of channels that do not mix. As many groups as channels make a depthwise convolution.
        groups: usize,
        /// Whether the layer has a bias.
        bias: bool,
        /// The function of the sums.
        activation: Function,
    },
    /// Transposed convolution of `[c, t]` or `[c, h, w]`, which enlarges by the stride: `weight [c, filters / groups, kernel]`,
    /// `bias [filters]`. An axis of `n` becomes `(n - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1`.
    ConvTranspose {
        /// Output channels.
        filters: usize,
        /// Size of the kernel.
        kernel: Vec<usize>,
        /// Distance of the places that neighbouring inputs write to.
        stride: Vec<usize>,
        /// Outputs that are cut off on each side of an axis.
        padding: Vec<usize>,
        /// Outputs that are added at the end of an axis, fewer than the stride.
        output_padding: Vec<usize>,
        /// Distance of neighbouring taps of the kernel.
        dilation: Vec<usize>,
        /// Groups of channels that do not mix.
        groups: usize,
        /// Whether the layer has a bias.
        bias: bool,
        /// The function of the sums.
        activation: Function,
    },
    /// Batch normalisation with running statistics (Ioffe & Szegedy 2015): `weight`, `bias`, `running_mean` and
    /// `running_var`, all `[c]`.
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
        /// Weight of a new batch in the running statistics.
        momentum: f32,
        /// The function of the normalised values.
        activation: Function,
    },
    /// An elementwise function.
    Activation {
        /// The function.
        function: Function,
    },
    /// Maximum over each window. Padding is never the maximum.
    MaxPool {
        /// Size of the window.
        kernel: Vec<usize>,
        /// Distance of neighbouring windows.
        stride: Vec<usize>,
        /// Padding on each side, at most half of the window.
        padding: Vec<usize>,
    },
    /// Mean over each window.
    MeanPool {
        /// Size of the window.
        kernel: Vec<usize>,
        /// Distance of neighbouring windows.
        stride: Vec<usize>,
        /// Zeros on each side, at most half of the window.
        padding: Vec<usize>,
        /// Whether the zeros count in the mean.
        count_padding: bool,
    },
    /// Mean of each channel: `[c, ..]` to `[c]`.
    GlobalMean,
    /// Maximum of each channel: `[c, ..]` to `[c]`.
    GlobalMax,
    /// Nearest upsampling: each value is repeated `factor` times along each axis.
    Upsample {
        /// The factors.
        factor: Vec<usize>,
    },
    /// All values as one vector, the channels first.
    Flatten,
    /// A linear map of a vector: `weight [size, n]`, `bias [size]`.
    Dense {
        /// Output values.
        size: usize,
        /// Whether the layer has a bias.
        bias: bool,
        /// The function of the sums.
        activation: Function,
    },
    /// A row of a table for each token, `[t]` to `[size, t]`: `weight [vocabulary, size]`.
    Embed {
        /// Channels of the output.
        size: usize,
    },
    /// Attention over `t` with a skip, `[c, t]` to `[c, t]`: `x + out(softmax(q k / sqrt(d)) v)` (Vaswani et al. 2017), with
    /// `in_proj_weight [3c, c]`, `in_proj_bias [3c]`, `out_proj.weight [c, c]` and `out_proj.bias [c]`.
    Attention {
        /// Number of heads.
        heads: usize,
    },
    /// The states of a GRU over `t`, `[c, t]` to `[size, t]`, or the last one, `[size]` (Cho et al. 2014): `weight_ih_l0 [3
    /// size, c]`, `weight_hh_l0 [3 size, size]`, `bias_ih_l0` and `bias_hh_l0 [3 size]`, the gates in the order r, z, n.
    Gru {
        /// Numbers of the state.
        size: usize,
        /// Whether the output has all states.
        sequence: bool,
    },
    /// The states of an LSTM (Hochreiter and Schmidhuber 1997), as those of a GRU, with four gates in the order i, f, g, o.
    Lstm {
        /// Numbers of the state.
        size: usize,
        /// Whether the output has all states.
        sequence: bool,
    },
    /// `x + f(x)`.
    Residual {
        /// The layers of `f`, which keep the shape.
        layers: Vec<Layer>,
    },
    /// The outputs of branches with the same input, concatenated along the channels.
    Concat {
        /// The layers of each branch.
        branches: Vec<Vec<Layer>>,
    },
    /// The outputs of branches with one input each, concatenated along the channels. Only the first layer of a network.
    Inputs {
        /// The name of an input and the layers of its branch. Each input has one branch.
        branches: Vec<(String, Vec<Layer>)>,
    },
}

impl Layer {
    /// The name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Layer::Conv { .. } => "conv",
            Layer::ConvTranspose { .. } => "conv_transpose",
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
            Layer::Gru { .. } => "gru",
            Layer::Lstm { .. } => "lstm",
            Layer::Residual { .. } => "residual",
            Layer::Concat { .. } => "concat",
            Layer::Inputs { .. } => "inputs",
        }
    }
}
