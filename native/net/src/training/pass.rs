//! One pass through the layers.

use std::collections::BTreeMap;

use sconce_ops::arrange::{add, join, reshape};
use sconce_ops::recurrent::{Gates, gru, lstm};
use sconce_ops::weights::{Weight, Weights};
use sconce_ops::{
    Activation, BatchNorm, Kernel, Pooling, batch_norm, batch_norm_of, clip, convolution, gather,
    global_pooling, linear, pooling, transposed_convolution, upsample,
};
use sconce_tensor::Tensor;
use sconce_tensor::tape;
use sconce_tensor::tensor::to_vec;

use super::Mode;
use super::attention::self_attention;
use super::functions::hard_swish;
use crate::{Error, Function, Layer, NetSpec, Result};

pub(super) struct Pass<'a> {
    pub(super) spec: &'a NetSpec,
    pub(super) weights: &'a Weights,
    pub(super) statistics: &'a BTreeMap<String, Tensor>,
    pub(super) mode: Mode,
}

impl Pass<'_> {
    /// The outputs for all inputs, whose shapes are checked.
    pub(super) fn network(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let layers = &self.spec.layers;
        if let Some((Layer::Inputs { branches }, rest)) = layers.split_first() {
            let declared = self.spec.inputs.iter();
            let by_name: BTreeMap<&str, &Tensor> =
                declared.map(|input| &*input.name).zip(inputs).collect();
            let mut outputs = vec![];
            for (i, (name, layers)) in branches.iter().enumerate() {
                let x = by_name.get(&**name);
                let x = x.ok_or_else(|| Error::not_found(format!("input {name}")))?;
                let prefix = format!("layers.0.branches.{i}");
                outputs.push(self.list(&prefix, 0, layers, (*x).clone())?);
            }
            return self.list("layers", 1, rest, concatenated(&outputs)?);
        }
        let x = inputs.first().ok_or_else(|| Error::not_found("an input"))?;
        self.list("layers", 0, layers, x.clone())
    }

    /// The layers of a list, the first of which has the index `first`.
    fn list(&self, prefix: &str, first: usize, layers: &[Layer], x: Tensor) -> Result<Tensor> {
        let mut x = x;
        for (i, layer) in layers.iter().enumerate() {
            x = self.layer(&format!("{prefix}.{}", first + i), layer, &x)?;
        }
        Ok(x)
    }

    fn layer(&self, name: &str, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        match layer {
            Layer::Conv { kernel, stride, padding, dilation, groups, activation, .. } => {
                let kernel = Kernel::new(kernel, stride, padding, dilation)?;
                let bias = self.weights.get(&format!("{name}.bias"));
                let y = convolution(x, self.weight(name, "weight")?, bias, kernel, *groups)?;
                apply(&y, *activation)
            }
            Layer::ConvTranspose {
                kernel,
                stride,
                padding,
                output_padding,
                dilation,
                groups,
                activation,
                ..
            } => {
                let kernel = Kernel::new(kernel, stride, padding, dilation)?;
                let (weight, bias) =
                    (self.weight(name, "weight")?, self.weights.get(&format!("{name}.bias")));
                let y = transposed_convolution(x, weight, bias, kernel, output_padding, *groups)?;
                apply(&y, *activation)
            }
            Layer::BatchNorm { epsilon, momentum, activation } => {
                let norm = self.norm(name, *epsilon, *momentum)?;
                let y = match self.mode {
                    Mode::Training => batch_norm(x, &norm)?,
                    Mode::Inference => batch_norm_of(x, &norm)?,
                };
                apply(&y, *activation)
            }
            Layer::Activation { function } => apply(x, *function),
            Layer::MaxPool { kernel, stride, padding } => {
                pool(x, Pooling::Max, [kernel, stride, padding])
            }
            Layer::MeanPool { kernel, stride, padding, count_padding } => {
                pool(x, Pooling::Mean { counted: *count_padding }, [kernel, stride, padding])
            }
            Layer::GlobalMean => global_pooling(x, Pooling::Mean { counted: true }),
            Layer::GlobalMax => global_pooling(x, Pooling::Max),
            Layer::Upsample { factor } => upsample(x, factor),
            Layer::Flatten => flat(x),
            Layer::Dense { activation, .. } => {
                let bias = self.weights.get(&format!("{name}.bias"));
                let y = linear(x, self.weight(name, "weight")?, bias, Activation::None)?;
                apply(&y, *activation)
            }
            Layer::Embed { size } => self.embed(name, *size, x),
            Layer::Attention { heads } => self.attention(name, *heads, x),
            Layer::Gru { size, sequence } => {
                let (x, gates, zero) = self.recurrent(name, *size, x)?;
                let (y, last) = gru(&x, &gates, &zero, None)?;
                if *sequence { turned(&y) } else { Ok(last) }
            }
            Layer::Lstm { size, sequence } => {
                let (x, gates, zero) = self.recurrent(name, *size, x)?;
                let (y, last, _cell) = lstm(&x, &gates, &zero, &zero, None)?;
                if *sequence { turned(&y) } else { Ok(last) }
            }
            Layer::Residual { layers } => {
                add(x, &self.list(&format!("{name}.layers"), 0, layers, x.clone())?)
            }
            Layer::Concat { branches } => {
                let outputs = branches.iter().enumerate().map(|(i, layers)| {
                    self.list(&format!("{name}.branches.{i}"), 0, layers, x.clone())
                });
                concatenated(&outputs.collect::<Result<Vec<_>>>()?)
            }
            Layer::Inputs { .. } => {
                Err(Error::mismatch(name, "the first layer of the network", "a later layer"))
            }
        }
    }

    fn weight(&self, name: &str, part: &str) -> Result<&Weight> {
        let name = format!("{name}.{part}");
        self.weights.get(&name).ok_or_else(|| Error::not_found(name))
    }

    fn norm(&self, name: &str, eps: f32, momentum: f32) -> Result<BatchNorm> {
        let statistic = |part: &str| {
            let name = format!("{name}.{part}");
            self.statistics.get(&name).cloned().ok_or_else(|| Error::not_found(name))
        };
        Ok(BatchNorm {
            weight: self.weight(name, "weight")?.clone(),
            bias: self.weight(name, "bias")?.clone(),
            running_mean: statistic("running_mean")?,
            running_var: statistic("running_var")?,
            eps,
            momentum,
        })
    }

    /// The input `[b, t, c]` of a recurrent layer, its weights, and the first state.
    fn recurrent(&self, name: &str, size: usize, x: &Tensor) -> Result<(Tensor, Gates, Tensor)> {
        let own = |part: &str| self.weight(name, part).cloned();
        let [input, state, of_input, of_state] =
            [own("weight_ih_l0")?, own("weight_hh_l0")?, own("bias_ih_l0")?, own("bias_hh_l0")?];
        let zero = Tensor::zeros((x.dim(0)?, size), x.dtype(), x.device())?;
        Ok((turned(x)?, Gates::new(input, state, of_input, of_state), zero))
    }

    /// Tokens `[b, t]` -> `[b, size, t]`.
    fn embed(&self, name: &str, size: usize, x: &Tensor) -> Result<Tensor> {
        let (batch, time) = x.dims2()?;
        let table = self.weight(name, "weight")?;
        let ids = to_vec(x)?.into_iter().map(|token| token_id(name, token, table.dims()[0]));
        let rows = gather(table, ids.collect::<Result<_>>()?, name)?;
        turned(&reshape(&rows, [batch, time, size])?)
    }

    /// `x + out(attention(qkv(x)))` over the time of `x [b, c, t]`.
    fn attention(&self, name: &str, heads: usize, x: &Tensor) -> Result<Tensor> {
        let project = |x: &Tensor, weight: &str, bias: &str| {
            let (weight, bias) = (self.weight(name, weight)?, self.weight(name, bias)?);
            linear(x, weight, Some(bias), Activation::None)
        };
        let qkv = project(&turned(x)?, "in_proj_weight", "in_proj_bias")?;
        let y = self_attention(&qkv, heads)?;
        add(x, &turned(&project(&y, "out_proj.weight", "out_proj.bias")?)?)
    }
}

fn token_id(name: &str, token: f32, vocabulary: usize) -> Result<u32> {
    let last = vocabulary as f64 - 1.0;
    match token.fract() == 0.0 && (0.0..=last).contains(&f64::from(token)) {
        true => Ok(token as u32),
        false => Err(Error::out_of_range(format!("token of {name}"), token.into(), 0.0, last)),
    }
}

fn apply(x: &Tensor, function: Function) -> Result<Tensor> {
    let activation = match function {
        Function::None => return Ok(x.clone()),
        Function::Relu6 => return clip(x, 0.0, 6.0),
        Function::HardSwish => return hard_swish(x),
        Function::Relu => Activation::Relu,
        Function::Sigmoid => Activation::Sigmoid,
        Function::Tanh => Activation::Tanh,
        Function::Silu => Activation::Silu,
        Function::Gelu => Activation::Gelu,
    };
    sconce_ops::activate(x, activation)
}

fn pool(x: &Tensor, kind: Pooling, [kernel, stride, padding]: [&[usize]; 3]) -> Result<Tensor> {
    let dilation = vec![1; kernel.len()];
    pooling(x, kind, Kernel::new(kernel, stride, padding, &dilation)?)
}

/// `[b, ..]` -> `[b, n]`.
fn flat(x: &Tensor) -> Result<Tensor> {
    let batch = x.dim(0)?;
    reshape(x, [batch, x.elem_count() / batch.max(1)])
}

/// Joins `[b, c, ..]` along the channels.
fn concatenated(parts: &[Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else { return Err(Error::not_found("a branch")) };
    let flat = parts.iter().map(flat).collect::<Result<Vec<_>>>()?;
    let mut shape = first.dims().to_vec();
    shape[1] = parts.iter().map(|part| part.dims()[1]).sum();
    reshape(&join(&flat.iter().collect::<Vec<_>>())?, shape)
}

/// `[b, m, n]` -> `[b, n, m]`.
fn turned(x: &Tensor) -> Result<Tensor> {
    let y = x.transpose(1, 2)?.contiguous()?;
    Ok(tape::view(x, y, |d| d.transpose(1, 2)?.contiguous()))
}
