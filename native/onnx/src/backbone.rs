//! Backbones by name.

use sconce_nn::backbone::{Cell, MinCell};
use sconce_nn::spec::Backbone;
use sconce_tensor::{Error, Result};

use crate::graph::Value;
use crate::layers::mlp::mlp;
use crate::layers::recurrent::recurrent;
use crate::layers::stack::{lstm_hybrid, min_stack, res_lstm, transformer, tx_like};
use crate::net::Net;

/// Names of the backbones that can be exported.
pub const BACKBONES: [&str; 10] = [
    "mlp",
    "lstm",
    "gru",
    "sliding_window",
    "causal_transformer",
    "min_gru",
    "min_lstm",
    "lstm_hybrid",
    "res_lstm",
    "tx_like",
];

/// Trunk vectors `[n, output_size]` of embedded frames `[n, input]`. The names of the weights begin with `path`.
///
/// # Errors
/// `Mismatch` for another backbone, with the names of the supported ones.
pub(crate) fn backbone(
    net: &mut Net,
    path: &str,
    of: &Backbone,
    x: &Value,
    input: usize,
) -> Result<Value> {
    match of {
        Backbone::Mlp(config) => mlp(net, path, config, x, input),
        Backbone::Lstm(config) => recurrent(net, path, Cell::Lstm, config, x, input),
        Backbone::Gru(config) => recurrent(net, path, Cell::Gru, config, x, input),
        Backbone::SlidingWindow(config) | Backbone::CausalTransformer(config) => {
            transformer(net, path, config, x, input)
        }
        Backbone::MinGru(config) => min_stack(net, path, MinCell::Gru, config, x, input),
        Backbone::MinLstm(config) => min_stack(net, path, MinCell::Lstm, config, x, input),
        Backbone::LstmHybrid(config) => lstm_hybrid(net, path, config, x, input),
        Backbone::ResLstm(config) => res_lstm(net, path, config, x, input),
        Backbone::TxLike(config) => tx_like(net, path, config, x, input),
        other => {
            let expected = format!("one of {}", BACKBONES.join(", "));
            Err(Error::mismatch("backbone of a model in ONNX", expected, other.name()))
        }
    }
}
