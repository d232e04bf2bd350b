//! A multilayer perceptron.

use sconce_nn::spec::MlpConfig;
use sconce_tensor::Result;

use super::dense::{activate, layer_norm, linear};
use crate::graph::Value;
use crate::net::Net;

/// `activation(norm(dense(x))) + skip` for each layer, as [`sconce_nn::backbone::Mlp`].
pub(crate) fn mlp(
    net: &mut Net,
    path: &str,
    config: &MlpConfig,
    x: &Value,
    input: usize,
) -> Result<Value> {
    let (mut x, mut width) = (x.clone(), input);
    for (i, &size) in config.hidden_sizes.iter().enumerate() {
        let path = format!("{path}.layers.{i}");
        let mut h = linear(net, &format!("{path}.dense"), &x, [width, size])?;
        if config.layer_norm {
            h = layer_norm(net, &format!("{path}.norm"), &h, size)?;
        }
        h = activate(net, &h, config.activation.into())?;
        if config.residual {
            let skip = match i == 0 || size != width {
                true => linear(net, &format!("{path}.proj"), &x, [width, size])?,
                false => x,
            };
            h = net.graph.add(&h, &skip);
        }
        (x, width) = (h, size);
    }
    Ok(x)
}
