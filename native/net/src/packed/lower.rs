//! From layers to steps: batch norms and functions are folded, and weights rearranged.

use std::ops::Range;

use sconce_tensor::{Error, Result, memory};

use crate::net::Net;
use crate::packed::Storage;
use crate::packed::attention::Attention;
use crate::packed::conv::{self, Conv, Depthwise, Taps};
use crate::packed::kernels::{Form, Word};
use crate::packed::plan::{Op, Plan, Step};
use crate::packed::pointwise::Pointwise;
use crate::packed::pool::{Kind, Pool};
use crate::packed::quantised::{self, Quantised};
use crate::packed::recurrent::{Cell, Recurrent};
use crate::packed::values::{Size, Value, Window};
use crate::spec::{Function, Layer};

mod transposed;

/// Numbers of a cache line, at which each weight begins.
const LINE: usize = 16;

/// A network as steps.
pub(crate) struct Lowered {
    pub(crate) plan: Plan,
    pub(crate) weights: Vec<f32>,
    /// Weights of 8 bits.
    pub(crate) words: Vec<Word>,
    /// The value of the output.
    pub(crate) last: usize,
}

pub(crate) fn lower(net: &Net, storage: Storage) -> Result<Lowered> {
    let (steps, values, weights, words) = (vec![], vec![], vec![], vec![]);
    let mut lowerer = Lowerer { net, storage, steps, values, weights, words };
    let first = match net.spec().layers.first() {
        Some(Layer::Inputs { .. }) => Place::of_input(0),
        _ => lowerer.load(0),
    };
    let last = lowerer.list("layers", &net.spec().layers, first)?;
    let last = lowerer.permuted(last);
    let plan = Plan::new(lowerer.steps, lowerer.values, last.value)?;
    let Lowerer { weights, words, .. } = lowerer;
    Ok(Lowered { plan, weights, words, last: last.value })
}

/// A value between layers.
#[derive(Debug, Clone, Copy)]
struct Place {
    value: usize,
    /// The size before it became a vector, whose order is that of channels first, while its numbers lie as pixels.
    turned: Option<Size>,
    /// The input, of tokens that no layer has read yet.
    input: usize,
}

impl Place {
    fn of_input(input: usize) -> Self {
        Place { value: usize::MAX, turned: None, input }
    }
}

struct Lowerer<'a> {
    net: &'a Net,
    storage: Storage,
    steps: Vec<Step>,
    values: Vec<Value>,
    weights: Vec<f32>,
    words: Vec<Word>,
}

/// A product before it is packed, so that a batch norm can be folded into it.
struct Product {
    /// `[filters, channels / groups, taps]`
    weights: Vec<f32>,
    bias: Vec<f32>,
    window: Window,
    groups: usize,
    filters: usize,
    function: Function,
    /// The output padding of a transposed convolution.
    more: Option<[usize; 2]>,
}

impl Product {
    fn fold(&mut self, scale: &[f32], shift: &[f32]) {
        let each = self.weights.len() / self.filters;
        for (i, weights) in self.weights.chunks_exact_mut(each).enumerate() {
            weights.iter_mut().for_each(|w| *w *= scale[i]);
            self.bias[i] = self.bias[i] * scale[i] + shift[i];
        }
    }
}

/// The numbers of lists with an entry for each spatial axis. The rows of a signal are one.
fn pair(list: &[usize], one: usize) -> [usize; 2] {
    match *list {
        [rows, width] => [rows, width],
        [width] => [one, width],
        _ => [one, one],
    }
}

impl Lowerer<'_> {
    fn lay(&mut self, numbers: &[f32]) -> Range<usize> {
        let at = self.weights.len().next_multiple_of(LINE);
        let more = at + numbers.len() - self.weights.len();
        memory::reserve(&mut self.weights, more);
        self.weights.resize(at, 0.0);
        self.weights.extend_from_slice(numbers);
        at..at + numbers.len()
    }

    fn value(&mut self, rows: usize, width: usize, channels: usize) -> usize {
        self.values.push(Value::new(Size { rows, width, channels }));
        self.values.len() - 1
    }

    fn step(&mut self, op: Op, inputs: &[usize], output: usize) -> Place {
        self.steps.push(Step { op, inputs: inputs.to_vec(), output });
        Place { value: output, turned: None, input: 0 }
    }

    fn size(&self, place: Place) -> Size {
        self.values[place.value].size
    }

    fn load(&mut self, input: usize) -> Place {
        let own = &self.net.spec().inputs[input];
        let [rows, width, channels] = match own.shape[..] {
            [c, h, w] => [h, w, c],
            [c, t] => [1, t, c],
            [n] => [1, 1, n],
            _ => [1, 1, 1],
        };
        if own.vocabulary.is_some() {
            return Place::of_input(input);
        }
        let value = self.value(rows, width, channels);
        self.step(Op::Load { input }, &[], value)
    }

    /// A vector with the numbers in their order, channels first.
    fn permuted(&mut self, from: Place) -> Place {
        let size = from.turned.unwrap_or(self.size(from));
        let value = self.value(1, 1, size.numbers());
        self.step(Op::Permute { size }, &[from.value], value)
    }

    /// A value of which each reader knows how its numbers lie.
    fn plain(&mut self, from: Place) -> Place {
        if from.turned.is_some() { self.permuted(from) } else { from }
    }

    fn list(&mut self, name: &str, layers: &[Layer], mut from: Place) -> Result<Place> {
        let mut at = 0;
        while at < layers.len() {
            let own = format!("{name}.{at}");
            at += 1;
            if let Some(mut product) = self.product(&own, &layers[at - 1], from)? {
                // A batch norm and a function after it become part of the product.
                if let (Function::None, Some(Layer::BatchNorm { epsilon, activation, .. })) =
                    (product.function, layers.get(at))
                {
                    let (scale, shift) = self.statistics(&format!("{name}.{at}"), *epsilon)?;
                    product.fold(&scale, &shift);
                    product.function = *activation;
                    at += 1;
                }
                if let (Function::None, Some(Layer::Activation { function })) =
                    (product.function, layers.get(at))
                {
                    product.function = *function;
                    at += 1;
                }
                from = match product.more.take() {
                    Some(more) => self.pack_transposed(product, more, from)?,
                    None => self.pack(product, from)?,
                };
            } else {
                from = self.layer(&own, &layers[at - 1], from)?;
            }
        }
        Ok(from)
    }

    /// The scale and the shift of a batch norm.
    fn statistics(&self, name: &str, epsilon: f32) -> Result<(Vec<f32>, Vec<f32>)> {
        let of = |own: &str| self.net.weight(&format!("{name}.{own}"));
        let (weight, bias, mean, variance) =
            (of("weight")?, of("bias")?, of("running_mean")?, of("running_var")?);
        let scale: Vec<f32> = weight
            .iter()
            .zip(variance)
            .map(|(weight, variance)| {
                (f64::from(*weight) / f64::from(variance + epsilon).sqrt()) as f32
            })
            .collect();
        let shift =
            bias.iter().zip(mean).zip(&scale).map(|((bias, mean), scale)| bias - mean * scale);
        let shift = shift.collect();
        Ok((scale, shift))
    }

    /// The product of a layer that is one.
    fn product(&mut self, name: &str, layer: &Layer, from: Place) -> Result<Option<Product>> {
        let weights = |own: &str| self.net.weight(&format!("{name}.{own}")).map(<[f32]>::to_vec);
        let bias = |yes: bool, count: usize| match yes {
            true => weights("bias"),
            false => Ok(vec![0.0; count]),
        };
        Ok(match layer {
            Layer::Conv {
                filters,
                kernel,
                stride,
                padding,
                dilation,
                groups,
                bias: own,
                activation,
            } => Some(Product {
                weights: weights("weight")?,
                bias: bias(*own, *filters)?,
                window: Window {
                    kernel: pair(kernel, 1),
                    stride: pair(stride, 1),
                    padding: pair(padding, 0),
                    dilation: pair(dilation, 1),
                },
                groups: *groups,
                filters: *filters,
                function: *activation,
                more: None,
            }),
            Layer::Dense { size, bias: own, activation } => {
                let mut numbers = weights("weight")?;
                if let Some(size) = from.turned {
                    numbers = turned(&numbers, size);
                }
                Some(Product {
                    weights: numbers,
                    bias: bias(*own, *size)?,
                    window: Window::ONE,
                    groups: 1,
                    filters: *size,
                    function: *activation,
                    more: None,
                })
            }
            _ => self.transposed(name, layer, from)?,
        })
    }

    fn pack(&mut self, product: Product, from: Place) -> Result<Place> {
        let Product { weights, bias, window, groups, filters, function, .. } = product;
        let x = self.size(from);
        let spatial = |size: usize, i: usize| {
            let reach = window.dilation[i] * (window.kernel[i] - 1) + 1;
            (size + 2 * window.padding[i] - reach) / window.stride[i] + 1
        };
        let (rows, width) = (spatial(x.rows, 0), spatial(x.width, 1));
        let value = self.value(rows, width, filters);
        let taps = window.kernel[0] * window.kernel[1];
        let op = if groups > 1 && groups == x.channels && filters == groups {
            let mut by_tap = vec![0.0; weights.len()];
            for (c, own) in weights.chunks_exact(taps).enumerate() {
                own.iter().enumerate().for_each(|(tap, w)| by_tap[tap * filters + c] = *w);
            }
            let (weights, bias) = (self.lay(&by_tap), self.lay(&bias));
            Op::Depthwise(Depthwise { window, weights, bias, function, taps: Taps::default() })
        } else if self.storage == Storage::Int8
            && groups == 1
            && taps * x.channels <= quantised::MOST_PRODUCTS
        {
            let (form, joined) = (Form::best(), window.joined());
            let own = quantised::pack(form, &weights, &bias, (taps, joined), rows * width)?;
            let (scales, bias) = (self.lay(&own.scales), self.lay(&own.bias));
            let first = self.words.len();
            memory::reserve(&mut self.words, own.words.len());
            self.words.extend_from_slice(&own.words);
            let (words, taps) = (first..self.words.len(), Taps::default());
            Op::Quantised(Quantised { form, window, filters, words, scales, bias, function, taps })
        } else {
            let (weights, bias) = conv::pack(&weights, &bias, groups, taps, rows * width);
            let (weights, bias) = (self.lay(&weights), self.lay(&bias));
            Op::Conv(Conv {
                window,
                groups,
                filters,
                weights,
                bias,
                function,
                taps: Taps::default(),
            })
        };
        Ok(self.step(op, &[from.value], value))
    }
}

/// Columns of dense weights in the order in which pixels lie, from the order of channels first.
fn turned(weights: &[f32], size: Size) -> Vec<f32> {
    let (pixels, channels) = (size.pixels(), size.channels);
    let mut turned = Vec::with_capacity(weights.len());
    for row in weights.chunks_exact(pixels * channels) {
        for pixel in 0..pixels {
            turned.extend((0..channels).map(|c| row[c * pixels + pixel]));
        }
    }
    turned
}

impl Lowerer<'_> {
    fn layer(&mut self, name: &str, layer: &Layer, from: Place) -> Result<Place> {
        let all = |lowerer: &Self| [lowerer.size(from).rows, lowerer.size(from).width];
        Ok(match layer {
            Layer::BatchNorm { epsilon, activation, .. } => {
                let from = self.plain(from);
                let (scale, shift) = self.statistics(name, *epsilon)?;
                let scale_and_shift = Some([self.lay(&scale), self.lay(&shift)]);
                self.pointwise(Pointwise { scale_and_shift, function: *activation }, from)
            }
            Layer::Activation { function } => {
                self.pointwise(Pointwise { scale_and_shift: None, function: *function }, from)
            }
            Layer::MaxPool { kernel, stride, padding } => {
                self.pool(Kind::Max, pair(kernel, 1), pair(stride, 1), pair(padding, 0), from)
            }
            Layer::MeanPool { kernel, stride, padding, count_padding } => {
                let kind = if *count_padding { Kind::Mean } else { Kind::MeanInside };
                self.pool(kind, pair(kernel, 1), pair(stride, 1), pair(padding, 0), from)
            }
            Layer::GlobalMean => self.pool(Kind::Mean, all(self), [1, 1], [0, 0], from),
            Layer::GlobalMax => self.pool(Kind::Max, all(self), [1, 1], [0, 0], from),
            Layer::Upsample { factor } => {
                let (size, factor) = (self.size(from), pair(factor, 1));
                let value =
                    self.value(size.rows * factor[0], size.width * factor[1], size.channels);
                self.step(Op::Upsample { factor }, &[from.value], value)
            }
            Layer::Flatten if self.size(from).pixels() == 1 => from,
            Layer::Flatten => {
                let size = self.size(from);
                let value = self.value(1, 1, size.numbers());
                Place { turned: Some(size), ..self.step(Op::Join, &[from.value], value) }
            }
            Layer::Embed { size } => {
                let own = &self.net.spec().inputs[from.input];
                let (time, vocabulary) = (own.shape[0], own.vocabulary.unwrap_or(1));
                let table = self.lay(self.net.weight(&format!("{name}.weight"))?);
                let value = self.value(1, time, *size);
                self.step(Op::Embed { input: from.input, table, vocabulary }, &[], value)
            }
            Layer::Attention { heads } => self.attention(name, *heads, from)?,
            Layer::Gru { size, sequence } => {
                self.recurrent(name, Cell::Gru, (*size, *sequence), from)?
            }
            Layer::Lstm { size, sequence } => {
                self.recurrent(name, Cell::Lstm, (*size, *sequence), from)?
            }
            Layer::Residual { layers } => {
                let from = self.plain(from);
                let end = self.list(&format!("{name}.layers"), layers, from)?;
                let end = self.plain(end);
                let size = self.size(from);
                let value = self.value(size.rows, size.width, size.channels);
                self.step(Op::Add, &[from.value, end.value], value)
            }
            Layer::Concat { branches } => {
                let mut ends = vec![];
                for (i, layers) in branches.iter().enumerate() {
                    ends.push(self.list(&format!("{name}.branches.{i}"), layers, from)?);
                }
                self.concat(ends)
            }
            Layer::Inputs { branches } => {
                let mut ends = vec![];
                for (i, (input, layers)) in branches.iter().enumerate() {
                    let at = self.net.spec().inputs.iter().position(|own| own.name == *input);
                    let first = self.load(at.ok_or_else(|| Error::not_found(input.clone()))?);
                    ends.push(self.list(&format!("{name}.branches.{i}"), layers, first)?);
                }
                self.concat(ends)
            }
            // `product` has taken these.
            Layer::Conv { .. } | Layer::ConvTranspose { .. } | Layer::Dense { .. } => from,
        })
    }

    fn pointwise(&mut self, own: Pointwise, from: Place) -> Place {
        let size = self.size(from);
        let value = self.value(size.rows, size.width, size.channels);
        Place { turned: from.turned, ..self.step(Op::Pointwise(own), &[from.value], value) }
    }

    fn pool(
        &mut self,
        kind: Kind,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        from: Place,
    ) -> Place {
        let size = self.size(from);
        let of = |size: usize, i: usize| (size + 2 * padding[i] - kernel[i]) / stride[i] + 1;
        let value = self.value(of(size.rows, 0), of(size.width, 1), size.channels);
        let window = Window { kernel, stride, padding, dilation: [1, 1] };
        self.step(Op::Pool(Pool { window, kind }), &[from.value], value)
    }

    fn concat(&mut self, ends: Vec<Place>) -> Place {
        let ends: Vec<Place> = ends.into_iter().map(|end| self.plain(end)).collect();
        let size = self.size(ends[0]);
        let channels = ends.iter().map(|end| self.size(*end).channels).sum();
        let value = self.value(size.rows, size.width, channels);
        let inputs: Vec<_> = ends.iter().map(|end| end.value).collect();
        self.step(Op::Concat, &inputs, value)
    }

    /// The products of all inputs as a convolution of one pixel, and the steps of the state.
    fn recurrent(
        &mut self,
        name: &str,
        cell: Cell,
        (size, sequence): (usize, bool),
        from: Place,
    ) -> Result<Place> {
        let net = self.net;
        let weight = |own: &str| net.weight(&format!("{name}.{own}"));
        let wide = cell.gates() * size;
        let inputs = Product {
            weights: weight("weight_ih_l0")?.to_vec(),
            bias: weight("bias_ih_l0")?.to_vec(),
            window: Window::ONE,
            groups: 1,
            filters: wide,
            function: Function::None,
            more: None,
        };
        let mut columns = memory::zeros(wide * size);
        for (gate, row) in weight("weight_hh_l0")?.chunks_exact(size).enumerate() {
            row.iter().enumerate().for_each(|(h, w)| columns[h * wide + gate] = *w);
        }
        let (matrix, bias) = (self.lay(&columns), self.lay(weight("bias_hh_l0")?));
        let inputs = self.pack(inputs, from)?;
        let time = if sequence { self.size(inputs).width } else { 1 };
        let value = self.value(1, time, size);
        let own = Recurrent { cell, size, matrix, bias, sequence };
        Ok(self.step(Op::Recurrent(own), &[inputs.value], value))
    }

    /// `x + out(attention(q, k, v))`, with the products as convolutions of one pixel.
    fn attention(&mut self, name: &str, heads: usize, from: Place) -> Result<Place> {
        let size = self.size(from);
        let weight = |own: &str| self.net.weight(&format!("{name}.{own}")).map(<[f32]>::to_vec);
        let product = |weights: Vec<f32>, bias: Vec<f32>| Product {
            filters: bias.len(),
            weights,
            bias,
            window: Window::ONE,
            groups: 1,
            function: Function::None,
            more: None,
        };
        let parts = product(weight("in_proj_weight")?, weight("in_proj_bias")?);
        let out = product(weight("out_proj.weight")?, weight("out_proj.bias")?);
        let parts = self.pack(parts, from)?;
        let value = self.value(1, size.width, size.channels);
        let read = self.step(Op::Attention(Attention { heads }), &[parts.value], value);
        let end = self.pack(out, read)?;
        let value = self.value(1, size.width, size.channels);
        Ok(self.step(Op::Add, &[from.value, end.value], value))
    }
}
