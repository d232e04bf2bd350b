//! Dense layers, norms and activations.

use sconce_nn::layer::EPS;
use sconce_ops::Activation;
use sconce_tensor::{Error, Result};

use crate::graph::Value;
use crate::net::Net;
use crate::proto::Attribute;

/// `x W^T + b`, with the weights `PATH.weight [output, input]` and `PATH.bias [output]`.
pub(crate) fn linear(
    net: &mut Net,
    path: &str,
    x: &Value,
    [input, output]: [usize; 2],
) -> Result<Value> {
    let weight = net.matrix(&format!("{path}.weight"), [output, input])?;
    let bias = net.weight(&format!("{path}.bias"), &[output])?;
    Ok(net.graph.op("Gemm", &[x, &weight, &bias], &TRANSPOSED))
}

/// [`linear`] without a bias.
pub(crate) fn linear_without_bias(
    net: &mut Net,
    path: &str,
    x: &Value,
    [input, output]: [usize; 2],
) -> Result<Value> {
    let weight = net.matrix(&format!("{path}.weight"), [output, input])?;
    Ok(product(net, x, &weight))
}

/// `x W^T` for `W [output, input]`.
pub(crate) fn product(net: &mut Net, x: &Value, weight: &Value) -> Value {
    net.graph.op("Gemm", &[x, weight], &TRANSPOSED)
}

/// Weights are stored as `[output, input]`.
const TRANSPOSED: [(&str, Attribute); 1] = [("transB", Attribute::Int(1))];

/// LayerNorm over the last dimension, with the weights `PATH.weight` and `PATH.bias`.
pub(crate) fn layer_norm(net: &mut Net, path: &str, x: &Value, width: usize) -> Result<Value> {
    layer_norm_with(net, path, x, width, EPS)
}

/// [`layer_norm`] with another constant that is added to the variance.
pub(crate) fn layer_norm_with(
    net: &mut Net,
    path: &str,
    x: &Value,
    width: usize,
    eps: f32,
) -> Result<Value> {
    let weight = net.weight(&format!("{path}.weight"), &[width])?;
    let bias = net.weight(&format!("{path}.bias"), &[width])?;
    let attributes = [("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(eps))];
    Ok(net.graph.op("LayerNormalization", &[x, &weight, &bias], &attributes))
}

/// # Errors
/// `Mismatch` for an activation that no supported backbone has.
pub(crate) fn activate(net: &mut Net, x: &Value, activation: Activation) -> Result<Value> {
    let graph = &mut net.graph;
    Ok(match activation {
        Activation::None => x.clone(),
        Activation::Relu => graph.op("Relu", &[x], &[]),
        Activation::Tanh => graph.op("Tanh", &[x], &[]),
        Activation::Sigmoid => graph.op("Sigmoid", &[x], &[]),
        Activation::Silu => {
            let gate = graph.op("Sigmoid", &[x], &[]);
            graph.mul(x, &gate)
        }
        Activation::Gelu => gelu(net, x),
        other => {
            let expected = "none, relu, tanh, sigmoid, silu or gelu";
            return Err(Error::mismatch("activation", expected, format!("{other:?}")));
        }
    })
}

/// The tanh form of GELU, `x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))` (Hendrycks & Gimpel 2016). ONNX has an op for it
/// since version 20 only.
fn gelu(net: &mut Net, x: &Value) -> Value {
    let graph = &mut net.graph;
    let factor = 2.0 * std::f32::consts::FRAC_2_PI.sqrt();
    let (cubic, factor) = (graph.number(0.044_715), graph.number(factor));
    let square = graph.mul(x, x);
    let cube = graph.mul(&square, x);
    let cube = graph.mul(&cube, &cubic);
    let sum = graph.add(x, &cube);
    let sum = graph.mul(&sum, &factor);
    let gate = graph.op("Sigmoid", &[&sum], &[]);
    graph.mul(x, &gate)
}
