//! Shapes, sizes and weights that follow from a declaration.

use serde::Serialize;

use crate::bounds::{MAX_DEPTH, MAX_LAYERS, MAX_PARAMETERS, MAX_SIZE, MAX_VALUES, product, within};
use crate::spec::{Input, Layer, NetSpec};
use crate::{Error, Result};

mod transposed;
mod windows;

use windows::Windows;

/// The shapes and sizes of a network.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outline {
    /// The shape of the output.
    pub output: Vec<usize>,
    /// All layers, each after those inside of it.
    pub layers: Vec<LayerOutline>,
    /// Number of trainable weights.
    pub parameters: usize,
    /// Floating-point operations of one run: two for each multiply-add of convolutions, dense layers and attention.
    pub flops: u64,
}

/// The shape and the sizes of a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerOutline {
    /// The name, such as `layers.2.layers.0`.
    pub name: String,
    /// The kind, such as `conv`.
    pub kind: &'static str,
    /// The shape of the output.
    pub output: Vec<usize>,
    /// Number of trainable weights, without those of layers inside of it.
    pub parameters: usize,
    /// Floating-point operations, without those of layers inside of it.
    pub flops: u64,
}

/// The initial values of a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// Uniform between minus and plus the number.
    Uniform(f64),
    /// Standard normal.
    Normal,
    /// One number.
    Constant(f32),
}

/// A weight that a declaration demands.
#[derive(Debug, Clone)]
pub struct Slot {
    /// The name, such as `layers.0.weight`.
    pub name: String,
    /// The shape, in PyTorch's layout.
    pub shape: Vec<usize>,
    /// The initial values.
    pub initial: Initial,
    /// False for running statistics.
    pub trainable: bool,
}

/// The shape of a value, and the number of tokens if its values are tokens.
#[derive(Debug, Clone)]
struct Value {
    shape: Vec<usize>,
    vocabulary: Option<usize>,
}

impl NetSpec {
    /// Checks that all layers fit each other and that all sizes are in range, before any memory is asked for. Every error
    /// names the layer.
    ///
    /// # Errors
    /// `OutOfRange` for a number outside of its bounds, `Mismatch` for layers or shapes that do not fit each other.
    pub fn check(&self) -> Result<Outline> {
        Ok(self.slots()?.0)
    }

    /// The outline, and the weights in the order of the layers.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn slots(&self) -> Result<(Outline, Vec<Slot>)> {
        let mut walk = Walk { inputs: &self.inputs, count: 0, layers: vec![], slots: vec![] };
        walk.check_inputs()?;
        let output = walk.network(&self.layers)?;
        let Walk { layers, slots, .. } = walk;
        let parameters = layers.iter().map(|layer| layer.parameters).sum();
        let flops = layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.flops));
        Ok((Outline { output, layers, parameters, flops }, slots))
    }
}

struct Walk<'a> {
    inputs: &'a [Input],
    /// Layers so far.
    count: usize,
    layers: Vec<LayerOutline>,
    slots: Vec<Slot>,
}

impl Walk<'_> {
    fn check_inputs(&self) -> Result<()> {
        within("inputs (number)", self.inputs.len(), 1, 64)?;
        for (i, input) in self.inputs.iter().enumerate() {
            let name = format!("inputs.{i} ({})", input.name.chars().take(64).collect::<String>());
            within(&format!("{name} (axes)"), input.shape.len(), 1, 3)?;
            for size in &input.shape {
                within(&name, *size, 1, MAX_SIZE)?;
            }
            product(&format!("{name} (values)"), &input.shape, MAX_VALUES)?;
            if let Some(vocabulary) = input.vocabulary {
                // Larger ids are not exact in f32.
                within(&format!("{name}.vocabulary"), vocabulary, 1, 1 << 24)?;
                if input.shape.len() != 1 {
                    return Err(Error::mismatch(name, "tokens of shape [t]", shown(&input.shape)));
                }
            }
            if self.inputs[..i].iter().any(|other| other.name == input.name) {
                return Err(Error::mismatch(name, "distinct names", "this name twice"));
            }
        }
        Ok(())
    }

    fn network(&mut self, layers: &[Layer]) -> Result<Vec<usize>> {
        if let Some(Layer::Inputs { branches }) = layers.first() {
            self.count(layers.len())?;
            let shape = self.inputs_layer(branches)?;
            let value = Value { shape, vocabulary: None };
            return Ok(self.rest("layers", 1, &layers[1..], value, 1)?.shape);
        }
        let [input] = self.inputs else {
            let got = format!("{} inputs", self.inputs.len());
            return Err(Error::mismatch("layers.0", "an `inputs` layer, or one input", got));
        };
        let value = Value { shape: input.shape.clone(), vocabulary: input.vocabulary };
        let value = self.list("layers", layers, value, 1)?;
        match value.vocabulary {
            None => Ok(value.shape),
            Some(_) => Err(Error::mismatch("layers", "an `embed` layer for tokens", "none")),
        }
    }

    /// Counts layers before anything is done with them.
    fn count(&mut self, more: usize) -> Result<()> {
        self.count = self.count.saturating_add(more);
        within("layers (number)", self.count, 0, MAX_LAYERS)
    }

    fn list(&mut self, prefix: &str, layers: &[Layer], x: Value, depth: usize) -> Result<Value> {
        within(&format!("{prefix} (depth)"), depth, 1, MAX_DEPTH)?;
        self.count(layers.len())?;
        self.rest(prefix, 0, layers, x, depth)
    }

    fn rest(
        &mut self,
        prefix: &str,
        first: usize,
        layers: &[Layer],
        mut x: Value,
        depth: usize,
    ) -> Result<Value> {
        for (i, layer) in layers.iter().enumerate() {
            let name = format!("{prefix}.{}", first + i);
            x = Value { shape: self.layer(&name, layer, x, depth)?, vocabulary: None };
        }
        Ok(x)
    }

    fn layer(&mut self, name: &str, layer: &Layer, x: Value, depth: usize) -> Result<Vec<usize>> {
        let at = format!("{name} ({})", layer.kind());
        if x.vocabulary.is_some() && !matches!(layer, Layer::Embed { .. }) {
            let got = format!("tokens of shape {}", shown(&x.shape));
            return Err(Error::mismatch(at, "an `embed` layer for tokens", got));
        }
        let (slots, before) = (self.slots.len(), &x.shape);
        let mut flops = 0;
        let output = match layer {
            Layer::Conv { .. } => self.conv(name, &at, layer, before, &mut flops)?,
            Layer::ConvTranspose { .. } => {
                self.conv_transpose(name, &at, layer, before, &mut flops)?
            }
            Layer::BatchNorm { epsilon, momentum, .. } => {
                self.batch_norm(name, &at, [*epsilon, *momentum], before)?
            }
            Layer::Activation { .. } => before.clone(),
            Layer::MaxPool { kernel, stride, padding }
            | Layer::MeanPool { kernel, stride, padding, .. } => {
                Windows::pool(&at, before, [kernel, stride, padding])?.output(before[0])
            }
            Layer::GlobalMean | Layer::GlobalMax => {
                axes(&at, before, 2..=3)?;
                vec![before[0]]
            }
            Layer::Upsample { factor } => upsampled(&at, before, factor)?,
            Layer::Flatten => vec![before.iter().product()],
            Layer::Dense { size, bias, .. } => {
                self.dense(name, &at, (*size, *bias), before, &mut flops)?
            }
            Layer::Embed { size } => self.embed(name, &at, *size, &x)?,
            Layer::Attention { heads } => self.attention(name, &at, *heads, before, &mut flops)?,
            Layer::Gru { size, sequence } => {
                self.recurrent(name, &at, (3, *size, *sequence), before, &mut flops)?
            }
            Layer::Lstm { size, sequence } => {
                self.recurrent(name, &at, (4, *size, *sequence), before, &mut flops)?
            }
            Layer::Residual { layers } => self.residual(name, &at, layers, &x, depth)?,
            Layer::Concat { branches } => {
                let names = (0..branches.len()).map(|i| format!("{name}.branches.{i}"));
                let mut outputs = Vec::new();
                within(&format!("{at}.branches (number)"), branches.len(), 1, MAX_LAYERS)?;
                for (name, layers) in names.zip(branches) {
                    outputs.push(self.list(&name, layers, x.clone(), depth + 1)?.shape);
                }
                concatenated(&at, &outputs)?
            }
            Layer::Inputs { .. } => {
                return Err(Error::mismatch(at, "the first layer of the network", "a later layer"));
            }
        };
        let own = match layer {
            Layer::Residual { .. } | Layer::Concat { .. } => slots..slots,
            _ => slots..self.slots.len(),
        };
        product(&format!("{at} (values)"), &output, MAX_VALUES)?;
        self.close(name, layer.kind(), &output, own, flops)?;
        Ok(output)
    }

    /// Adds a layer to the outline, with the weights in a range.
    fn close(
        &mut self,
        name: &str,
        kind: &'static str,
        output: &[usize],
        own: std::ops::Range<usize>,
        flops: u64,
    ) -> Result<()> {
        let own = self.slots[own].iter().filter(|slot| slot.trainable);
        let parameters = own.map(|slot| slot.shape.iter().product::<usize>()).sum();
        let (name, output) = (name.to_owned(), output.to_vec());
        self.layers.push(LayerOutline { name, kind, output, parameters, flops });
        Ok(())
    }

    fn slot(&mut self, name: String, shape: Vec<usize>, initial: Initial) -> Result<()> {
        let all = self.slots.iter().map(|slot| slot.shape.iter().product::<usize>()).sum::<usize>();
        let size = product(&name, &shape, MAX_PARAMETERS)?;
        within(&format!("{name} (weights of the network)"), all + size, 0, MAX_PARAMETERS)?;
        let trainable = !name.contains(".running_");
        self.slots.push(Slot { name, shape, initial, trainable });
        Ok(())
    }

    /// A weight and a bias, uniform within `1 / sqrt(fan_in)` as PyTorch draws them.
    fn linear(&mut self, name: &str, shape: Vec<usize>, bias: bool) -> Result<u64> {
        let fan_in = product(&format!("{name}.weight"), &shape[1..], MAX_PARAMETERS)?;
        let (out, initial) = (shape[0], Initial::Uniform(1.0 / (fan_in as f64).sqrt()));
        self.slot(format!("{name}.weight"), shape, initial)?;
        if bias {
            self.slot(format!("{name}.bias"), vec![out], initial)?;
        }
        Ok(2 * fan_in as u64 * out as u64)
    }

    fn conv(
        &mut self,
        name: &str,
        at: &str,
        layer: &Layer,
        x: &[usize],
        flops: &mut u64,
    ) -> Result<Vec<usize>> {
        let Layer::Conv { filters, kernel, stride, padding, dilation, groups, bias, .. } = layer
        else {
            return Err(Error::mismatch(at, "a convolution", layer.kind()));
        };
        within(&format!("{at}.filters"), *filters, 1, MAX_SIZE)?;
        within(&format!("{at}.groups"), *groups, 1, MAX_SIZE)?;
        let windows = Windows::new(at, x, [kernel, stride, padding], dilation)?;
        let fits = |n: usize| n.is_multiple_of(*groups);
        if !fits(x[0]) || !fits(*filters) {
            let got = format!("{} input channels and {filters} filters", x[0]);
            return Err(Error::mismatch(at, format!("multiples of {groups} groups"), got));
        }
        let mut shape = vec![*filters, x[0] / groups];
        shape.extend(kernel);
        let each = self.linear(name, shape, *bias)?;
        let output = windows.output(*filters);
        let pixels = product(&format!("{at} (values)"), &output, MAX_VALUES)? / filters;
        *flops = each.saturating_mul(pixels as u64);
        Ok(output)
    }

    fn batch_norm(
        &mut self,
        name: &str,
        at: &str,
        [epsilon, momentum]: [f32; 2],
        x: &[usize],
    ) -> Result<Vec<usize>> {
        for (field, value, min) in [("epsilon", epsilon, 1e-12), ("momentum", momentum, 0.0)] {
            if !(min..=1.0).contains(&value) {
                let field = format!("{at}.{field}");
                return Err(Error::out_of_range(field, value.into(), min.into(), 1.0));
            }
        }
        for (field, value) in
            [("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)]
        {
            self.slot(format!("{name}.{field}"), vec![x[0]], Initial::Constant(value))?;
        }
        Ok(x.to_vec())
    }

    fn dense(
        &mut self,
        name: &str,
        at: &str,
        (size, bias): (usize, bool),
        x: &[usize],
        flops: &mut u64,
    ) -> Result<Vec<usize>> {
        within(&format!("{at}.size"), size, 1, MAX_SIZE)?;
        axes(at, x, 1..=1)?;
        *flops = self.linear(name, vec![size, x[0]], bias)?;
        Ok(vec![size])
    }

    fn embed(&mut self, name: &str, at: &str, size: usize, x: &Value) -> Result<Vec<usize>> {
        within(&format!("{at}.size"), size, 1, MAX_SIZE)?;
        let Some(vocabulary) = x.vocabulary else {
            return Err(Error::mismatch(at, "tokens of shape [t]", shown(&x.shape)));
        };
        self.slot(format!("{name}.weight"), vec![vocabulary, size], Initial::Normal)?;
        Ok(vec![size, x.shape[0]])
    }

    fn attention(
        &mut self,
        name: &str,
        at: &str,
        heads: usize,
        x: &[usize],
        flops: &mut u64,
    ) -> Result<Vec<usize>> {
        within(&format!("{at}.heads"), heads, 1, MAX_SIZE)?;
        axes(at, x, 2..=2)?;
        let (c, t) = (x[0], x[1]);
        if !c.is_multiple_of(heads) {
            return Err(Error::mismatch(at, format!("a multiple of {heads} heads"), shown(x)));
        }
        product(&format!("{at} (values)"), &[3 * c, t], MAX_VALUES)?;
        let (xavier, uniform) = (6.0 / (4 * c) as f64, 1.0 / c as f64);
        let weights = [
            ("in_proj_weight", vec![3 * c, c], Initial::Uniform(xavier.sqrt())),
            ("in_proj_bias", vec![3 * c], Initial::Constant(0.0)),
            ("out_proj.weight", vec![c, c], Initial::Uniform(uniform.sqrt())),
            ("out_proj.bias", vec![c], Initial::Constant(0.0)),
        ];
        for (field, shape, initial) in weights {
            self.slot(format!("{name}.{field}"), shape, initial)?;
        }
        let (c, t) = (c as u64, t as u64);
        *flops = 2 * t * (4 * c * c + 2 * t * c);
        Ok(x.to_vec())
    }

    fn recurrent(
        &mut self,
        name: &str,
        at: &str,
        (gates, size, sequence): (usize, usize, bool),
        x: &[usize],
        flops: &mut u64,
    ) -> Result<Vec<usize>> {
        within(&format!("{at}.size"), size, 1, MAX_SIZE)?;
        axes(at, x, 2..=2)?;
        let (c, t, wide) = (x[0], x[1], gates * size);
        product(&format!("{at} (values)"), &[wide, t], MAX_VALUES)?;
        let initial = Initial::Uniform(1.0 / (size as f64).sqrt());
        for (field, shape) in [
            ("weight_ih_l0", vec![wide, c]),
            ("weight_hh_l0", vec![wide, size]),
            ("bias_ih_l0", vec![wide]),
            ("bias_hh_l0", vec![wide]),
        ] {
            self.slot(format!("{name}.{field}"), shape, initial)?;
        }
        *flops = 2 * t as u64 * wide as u64 * (c + size) as u64;
        Ok(if sequence { vec![size, t] } else { vec![size] })
    }

    fn residual(
        &mut self,
        name: &str,
        at: &str,
        layers: &[Layer],
        x: &Value,
        depth: usize,
    ) -> Result<Vec<usize>> {
        let y = self.list(&format!("{name}.layers"), layers, x.clone(), depth + 1)?;
        match y.shape == x.shape {
            true => Ok(y.shape),
            false => Err(Error::mismatch(at, shown(&x.shape), shown(&y.shape))),
        }
    }

    fn inputs_layer(&mut self, branches: &[(String, Vec<Layer>)]) -> Result<Vec<usize>> {
        let at = "layers.0 (inputs)";
        let names = |names: Vec<&str>| format!("[{}]", names.join(", "));
        let mut declared: Vec<&str> = self.inputs.iter().map(|x| &*x.name).collect();
        within(&format!("{at}.branches (number)"), branches.len(), 1, 64)?;
        let mut read: Vec<&str> = branches.iter().map(|(name, _)| &**name).collect();
        declared.sort_unstable();
        read.sort_unstable();
        if declared != read {
            return Err(Error::mismatch(at, names(declared), names(read)));
        }
        let mut outputs = Vec::new();
        for (i, (name, layers)) in branches.iter().enumerate() {
            let input = self.inputs.iter().find(|input| input.name == *name);
            let input = input.ok_or_else(|| Error::not_found(format!("input {name}")))?;
            let x = Value { shape: input.shape.clone(), vocabulary: input.vocabulary };
            let prefix = format!("layers.0.branches.{i}");
            let y = self.list(&prefix, layers, x, 2)?;
            if y.vocabulary.is_some() {
                return Err(Error::mismatch(prefix, "an `embed` layer for tokens", "none"));
            }
            outputs.push(y.shape);
        }
        let output = concatenated(at, &outputs)?;
        product(&format!("{at} (values)"), &output, MAX_VALUES)?;
        self.close("layers.0", "inputs", &output, 0..0, 0)?;
        Ok(output)
    }
}

/// Checks the number of axes.
fn axes(at: &str, x: &[usize], range: std::ops::RangeInclusive<usize>) -> Result<()> {
    match range.contains(&x.len()) {
        true => Ok(()),
        false => {
            let names = ["[n]", "[c, t]", "[c, h, w]"];
            let fits = names.iter().enumerate().filter(|(i, _)| range.contains(&(i + 1)));
            let fits: Vec<&str> = fits.map(|(_, name)| *name).collect();
            Err(Error::mismatch(at, fits.join(" or "), shown(x)))
        }
    }
}

fn upsampled(at: &str, x: &[usize], factor: &[usize]) -> Result<Vec<usize>> {
    axes(at, x, 2..=3)?;
    if factor.len() + 1 != x.len() {
        let got = format!("factor {}", shown(factor));
        return Err(Error::mismatch(at, format!("{} factors", x.len() - 1), got));
    }
    let mut output = vec![x[0]];
    for (n, factor) in x[1..].iter().zip(factor) {
        within(&format!("{at}.factor"), *factor, 1, MAX_SIZE)?;
        output.push(n * factor);
        within(&format!("{at} (output)"), n * factor, 1, MAX_SIZE)?;
    }
    Ok(output)
}

/// The shape of a concatenation along the first axis.
fn concatenated(at: &str, shapes: &[Vec<usize>]) -> Result<Vec<usize>> {
    let Some((first, others)) = shapes.split_first() else {
        return Err(Error::mismatch(at, "a branch", "none"));
    };
    let mut all = first.clone();
    for shape in others {
        if shape.get(1..) != first.get(1..) {
            return Err(Error::mismatch(at, shown(first), shown(shape)));
        }
        all[0] += shape[0];
    }
    within(&format!("{at} (channels)"), all[0], 1, MAX_VALUES)?;
    Ok(all)
}

/// A shape as text.
pub(crate) fn shown(shape: &[usize]) -> String {
    format!("{shape:?}")
}
