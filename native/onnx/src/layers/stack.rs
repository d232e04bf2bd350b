//! Stacks of residual layers, and the layers of a transformer.

use sconce_nn::backbone::{Cell, MinCell};
use sconce_nn::spec::{
    AttentionConfig, ExpandConfig, Layered, RecurrentConfig, StackConfig, Trunk,
};
use sconce_ops::Activation;
use sconce_tensor::Result;

use super::attention::attention;
use super::dense::{activate, layer_norm, linear, linear_without_bias};
use super::min_rnn::min_rnn;
use super::recurrent::recurrent;
use crate::graph::Value;
use crate::net::Net;

/// Ratio of the inner width of a transformer's feed-forward layers to `hidden_size`.
const FFN: usize = 4;

/// The input of a stack: `input_norm`, then `input` where the widths differ.
fn read(net: &mut Net, path: &str, trunk: &Trunk, x: &Value, input: usize) -> Result<Value> {
    let x = match trunk.input_norm {
        true => layer_norm(net, &format!("{path}.input_norm"), x, input)?,
        false => x.clone(),
    };
    match input == trunk.hidden_size {
        true => Ok(x),
        false => linear(net, &format!("{path}.input"), &x, [input, trunk.hidden_size]),
    }
}

/// `x + layer(norm(x))`
fn residual(
    net: &mut Net,
    norm: &str,
    x: &Value,
    width: usize,
    layer: impl FnOnce(&mut Net, &Value) -> Result<Value>,
) -> Result<Value> {
    let normed = layer_norm(net, norm, x, width)?;
    let y = layer(net, &normed)?;
    Ok(net.graph.add(x, &y))
}

/// minGRU or minLSTM layers, then a norm.
pub(crate) fn min_stack(
    net: &mut Net,
    path: &str,
    cell: MinCell,
    config: &StackConfig,
    x: &Value,
    input: usize,
) -> Result<Value> {
    let h = config.hidden_size;
    let mut x = read(net, path, &config.trunk(), x, input)?;
    for i in 0..config.num_layers {
        let path = format!("{path}.layers.{i}");
        x = residual(net, &format!("{path}.norm"), &x, h, |net, x| {
            min_rnn(net, &format!("{path}.cell"), cell, x, h)
        })?;
    }
    layer_norm(net, &format!("{path}.norm"), &x, h)
}

/// A causal transformer over the last frames, as [`sconce_nn::backbone::attention::transformer`].
pub(crate) fn transformer(
    net: &mut Net,
    path: &str,
    config: &AttentionConfig,
    x: &Value,
    input: usize,
) -> Result<Value> {
    let h = config.hidden_size;
    let mut x = read(net, path, &config.trunk(), x, input)?;
    for i in 0..config.num_layers {
        let path = format!("{path}.layers.{i}");
        x = residual(net, &format!("{path}.norm1"), &x, h, |net, x| {
            attention(net, &path, config, x)
        })?;
        x = residual(net, &format!("{path}.norm2"), &x, h, |net, x| {
            let up = linear(net, &format!("{path}.ffn1"), x, [h, FFN * h])?;
            let up = activate(net, &up, Activation::Gelu)?;
            linear(net, &format!("{path}.ffn2"), &up, [FFN * h, h])
        })?;
    }
    layer_norm(net, &format!("{path}.norm"), &x, h)
}

/// An LSTM followed by attention over its outputs: `u = W lstm(x)`, `y = norm(u + attention(u))`.
pub(crate) fn lstm_hybrid(
    net: &mut Net,
    path: &str,
    config: &AttentionConfig,
    x: &Value,
    input: usize,
) -> Result<Value> {
    let h = config.hidden_size;
    let lstm = RecurrentConfig { num_layers: config.num_layers, ..one_layer(h) };
    let lstm = RecurrentConfig { input_norm: config.input_norm, ..lstm };
    let x = recurrent(net, &format!("{path}.lstm"), Cell::Lstm, &lstm, x, input)?;
    let u = linear(net, &format!("{path}.dense"), &x, [h, h])?;
    let y = attention(net, path, config, &u)?;
    let y = net.graph.add(&u, &y);
    layer_norm(net, &format!("{path}.norm"), &y, h)
}

/// `x = x + W_out lstm(norm1(x))` for each layer.
pub(crate) fn res_lstm(
    net: &mut Net,
    path: &str,
    config: &StackConfig,
    x: &Value,
    input: usize,
) -> Result<Value> {
    let mut x = read(net, path, &config.trunk(), x, input)?;
    for i in 0..config.num_layers {
        x = residual_lstm(net, &format!("{path}.layers.{i}"), &x, config.hidden_size)?;
    }
    Ok(x)
}

/// [`res_lstm`] with a feed-forward layer after each layer.
pub(crate) fn tx_like(
    net: &mut Net,
    path: &str,
    config: &ExpandConfig,
    x: &Value,
    input: usize,
) -> Result<Value> {
    let (h, inner) = (config.hidden_size, config.expand_factor * config.hidden_size);
    let mut x = read(net, path, &config.trunk(), x, input)?;
    for i in 0..config.num_layers {
        let path = format!("{path}.layers.{i}");
        x = residual_lstm(net, &path, &x, h)?;
        x = residual(net, &format!("{path}.norm2"), &x, h, |net, x| {
            let up = linear(net, &format!("{path}.ffn1"), x, [h, inner])?;
            let up = activate(net, &up, Activation::Gelu)?;
            linear_without_bias(net, &format!("{path}.ffn2"), &up, [inner, h])
        })?;
    }
    Ok(x)
}

fn residual_lstm(net: &mut Net, path: &str, x: &Value, h: usize) -> Result<Value> {
    residual(net, &format!("{path}.norm1"), x, h, |net, x| {
        let y = recurrent(net, &format!("{path}.lstm"), Cell::Lstm, &one_layer(h), x, h)?;
        linear_without_bias(net, &format!("{path}.out"), &y, [h, h])
    })
}

fn one_layer(hidden_size: usize) -> RecurrentConfig {
    RecurrentConfig {
        hidden_size,
        num_layers: 1,
        layer_norm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    }
}
