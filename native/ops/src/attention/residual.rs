//! An attention layer with its norm, dropout and residual sum, as one op.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{Shape, Tensor};

use super::cache::Cache;
use super::pass::{Part, Pass, only_wanted};
use super::window::Window;
use crate::columns::{filled, filled_and_summed, shard_of_rows};
use crate::dense::composites::affine_to;
use crate::form::Form;
use crate::lengths::Lengths;
use crate::linear::weight_gradient;
use crate::matmul::{Operand, View};
use crate::norm::{HeadNorms, head_norm, parameters};
use crate::op::{self, Op};
use crate::residual::composed::around;
use crate::{Affine, Error, Residual, Result, memory, simd};

/// Rows of one shard of a product.
const ROWS: usize = 128;

/// Weights of `W_out attend(norm(W_q x), norm(W_k x), W_v x)`.
#[derive(Clone)]
pub struct Projections {
    /// Queries, keys and values, each head after head: weight `[3 * heads * head_dim, h]`.
    pub qkv: Affine,
    /// Norms of the heads of queries and keys.
    pub norms: Option<HeadNorms>,
    /// The output: weight `[h, heads * head_dim]`.
    pub out: Affine,
}

impl Projections {
    fn check(&self, h: usize, width: usize) -> Result<()> {
        let expected = [3 * width, h];
        let got = [self.qkv.check("query, key and value", h)?, self.out.check("output", width)?];
        if got != expected {
            let (expected, got) = (format!("{expected:?}"), format!("{got:?}"));
            return Err(Error::mismatch("widths of an attention's layers", expected, got));
        }
        self.norms.as_ref().map_or(Ok(()), |norms| norms.check(3 * width))
    }
}

/// `x + dropout(W_out attend(W_qkv norm(x)))`, `x [b, t, h]` -> `[b, t, h]`, and if `append` the cache after the
/// sequence. See [`attention`](super::attention()) and [`Residual`].
///
/// The forward pass saves the queries, keys and values, the attention output, and the logarithms of the denominators.
/// Gradients of weights accumulate in the weights.
pub fn attention_residual(
    x: &Tensor,
    residual: &Residual,
    projections: &Projections,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
    append: bool,
) -> Result<(Tensor, Option<Cache>)> {
    let (batch, time, h) = x.dims3()?;
    residual.norm.check(h)?;
    projections.check(h, window.width())?;
    let rounds = projections.qkv.weight.rounds() || projections.out.weight.rounds();
    if Form::of(x) != Form::Cpu || rounds {
        return by_parts(x, residual, projections, cache, window, lengths, append);
    }
    let Projections { qkv, norms, out } = projections;
    let pass = Arc::new(Pass::new([batch, time], cache, window, lengths)?);
    let op = Layer {
        pass: pass.clone(),
        append,
        h,
        norm: residual.norm.values()?,
        heads: norms.as_ref().map(HeadNorms::values).transpose()?,
        biases: [qkv.bias()?, out.bias()?],
        residual: residual.clone(),
        projections: projections.clone(),
        kept: Kept::default(),
    };
    let [keys, values] = pass.rings(cache)?;
    let inputs: [&Tensor; 5] = [x, &keys, &values, &qkv.weight, &out.weight];
    if !append {
        return Ok((op::apply(op, &inputs, x.shape())?, None));
    }
    let ring = Shape::from((batch, window.window, window.width()));
    let [y, keys, values] = op::apply_all(op, &inputs, [x.shape().clone(), ring.clone(), ring])?;
    Ok((y, Some(Cache { keys, values, seen: pass.seen_after()? })))
}

/// Composes the layer of other ops, on any device.
fn by_parts(
    x: &Tensor,
    residual: &Residual,
    projections: &Projections,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
    append: bool,
) -> Result<(Tensor, Option<Cache>)> {
    let mut after = None;
    let y = around(x, residual, |x, rest| {
        let mut qkv = affine_to(x, &projections.qkv, None)?;
        if let Some(norms) = &projections.norms {
            qkv = head_norm::head_norm(&qkv, norms)?;
        }
        let (mixed, cache) = super::attend(&qkv, cache, window, lengths, append)?;
        after = cache;
        affine_to(&mixed, &projections.out, rest)
    })?;
    Ok((y, after))
}

struct Layer {
    pass: Arc<Pass>,
    /// Whether the outputs include the cache after the sequence.
    append: bool,
    h: usize,
    residual: Residual,
    projections: Projections,
    norm: parameters::Values,
    heads: Option<head_norm::Values>,
    biases: [Option<Vec<f32>>; 2],
    /// Saved for the backward pass.
    kept: Kept,
}

#[derive(Default)]
struct Kept {
    /// Queries, keys and values before the norms of heads.
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    log_sums: Vec<f32>,
}

/// Gradients of a bias and of a norm over the rows of a shard.
#[derive(Default)]
struct Sums {
    bias: Vec<f32>,
    norm: parameters::Gradients,
}

impl Layer {
    /// Width of the queries; the keys and the values have the same width.
    fn width(&self) -> usize {
        self.pass.window.width()
    }

    fn rows(&self) -> usize {
        self.pass.batch * self.pass.time
    }

    fn project(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let (h, n) = (self.h, 3 * self.width());
        let weight = self.projections.qkv.weight.operand(weight, 0..n, true, self.rows());
        // SAFETY: the products write every element of their outputs.
        let [qkv] = unsafe {
            filled(self.rows(), shard_of_rows(self.rows()), [n], |rows, [qkv]| {
                let x = self.norm.rows(&x[rows.start * h..rows.end * h]);
                weight.fill(qkv, View::rows(&x, rows.len(), h), self.biases[0].as_deref());
            })
        };
        qkv
    }

    fn normed<'a>(&self, qkv: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.heads {
            Some(heads) => heads.forward(qkv, 3 * self.width()).into(),
            None => qkv.into(),
        }
    }

    fn output(&self, x: &[f32], weight: &[f32], mixed: &[f32]) -> Vec<f32> {
        let (h, d) = (self.h, self.width());
        let weight = self.projections.out.weight.operand(weight, 0..h, true, self.rows());
        // SAFETY: the products write every element of their outputs.
        let [y] = unsafe {
            filled(self.rows(), shard_of_rows(self.rows()), [h], |rows, [y]| {
                let mixed = View::rows(&mixed[rows.start * d..], rows.len(), d);
                let y = weight.fill(y, mixed, self.biases[1].as_deref());
                self.residual.add(rows.start, y, &x[rows.start * h..rows.end * h], h);
            })
        };
        y
    }

    /// The gradient of the attention output; gradients of the output layer's weights accumulate in the weights.
    fn output_backward(&self, dy: &[f32], weight: &[f32], mixed: &[f32]) -> Vec<f32> {
        let (h, d, out) = (self.h, self.width(), &self.projections.out);
        let weight = out.weight.operand(weight, 0..h, false, self.rows());
        // SAFETY: the products write every element of their outputs.
        let ([d_mixed], sums) = unsafe {
            filled_and_summed(self.rows(), ROWS, [d], |rows, [d_mixed], sum| {
                let dy = &dy[rows.start * h..rows.end * h];
                weight.fill(d_mixed, View::rows(dy, rows.len(), h), None);
                *sum = out.bias_gradient(dy, h);
            })
        };
        out.accumulate_bias(&sums);
        self.accumulate_weight(out, [dy, mixed], [h, d]);
        d_mixed
    }

    /// Gradients of queries, keys and values before the norms of heads, and of the rings.
    fn attend_backward(
        &self,
        inputs: &[&[f32]],
        outputs: &[Option<&[f32]>],
        kept: &Kept,
        d_mixed: &[f32],
        cached: bool,
    ) -> [Vec<f32>; 3] {
        let given = [&self.normed(&kept.qkv), inputs[1], inputs[2]];
        let of_mixed = [&kept.mixed, d_mixed, &kept.log_sums];
        let [mut d_qkv, mut d_keys, mut d_values] = self.pass.backward(given, of_mixed, cached);
        let rings = [(Part::Keys, &mut d_keys), (Part::Values, &mut d_values)];
        for ((part, d_ring), d_next) in rings.into_iter().zip(&outputs[1..]) {
            let Some(d_next) = d_next else { continue };
            let mut d_before = d_next.to_vec();
            self.pass.append_backward(part, &mut d_before, &mut d_qkv);
            if cached {
                simd::add_assign(d_ring, &d_before);
            }
        }
        if let (Some(heads), Some(norms)) = (&self.heads, &self.projections.norms) {
            norms.accumulate(&heads.backward(&mut d_qkv, &kept.qkv, 3 * self.width()));
        }
        [d_qkv, d_keys, d_values]
    }

    /// The gradient of `x`; gradients of the projection and the norm accumulate in the weights.
    fn input_backward(&self, x: &[f32], weight: &[f32], d_qkv: &[f32], dy: &[f32]) -> Vec<f32> {
        let (h, n, qkv) = (self.h, 3 * self.width(), &self.projections.qkv);
        let weight = qkv.weight.operand(weight, 0..n, false, self.rows());
        // SAFETY: the products and the norm write every element of their outputs.
        let ([dx, normed], sums) = unsafe {
            filled_and_summed(self.rows(), ROWS, [h, h], |rows, [dx, normed], sums: &mut Sums| {
                let (d, span) =
                    (&d_qkv[rows.start * n..rows.end * n], rows.start * h..rows.end * h);
                let (x, dy) = (&x[span.clone()], &dy[span]);
                let dx = weight.fill(dx, View::rows(d, rows.len(), n), None);
                *sums = Sums { bias: qkv.bias_gradient(d, n), norm: self.norm.zeros() };
                self.norm.backward_residual(dx, &mut sums.norm, x, dy, normed);
            })
        };
        self.residual.norm.accumulate(sums.iter().map(|sums| &sums.norm));
        qkv.accumulate_bias(sums.iter().map(|sums| &sums.bias));
        self.accumulate_weight(qkv, [d_qkv, &normed], [n, h]);
        dx
    }

    fn accumulate_weight(&self, layer: &Affine, [d, input]: [&[f32]; 2], [n, k]: [usize; 2]) {
        let input = Operand::of(View::rows(input, self.rows(), k));
        let d = View::rows(d, self.rows(), n);
        layer.weight.accumulate(|dw, adds| weight_gradient(dw, d, &input, adds));
    }
}

impl Op for Layer {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let qkv = self.project(inputs[0], inputs[3]);
        let normed = self.normed(&qkv);
        let [mixed, log_sums] = self.pass.forward([&normed, inputs[1], inputs[2]], track);
        let mut outputs = vec![self.output(inputs[0], inputs[4], &mixed)];
        if self.append {
            for (part, ring) in [(Part::Keys, inputs[1]), (Part::Values, inputs[2])] {
                outputs.push(self.pass.append(part, ring, &normed));
            }
        }
        drop(normed);
        if track {
            self.kept = Kept { qkv, mixed, log_sums };
        }
        Ok(outputs)
    }

    fn backward(&mut self, pass: &op::Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let &op::Pass { inputs, gradients, wanted, .. } = pass;
        let kept = std::mem::take(&mut self.kept);
        // If no later op reads the outputs, the gradient comes from the cache alone.
        let dy = gradients[0].map_or_else(|| memory::zeros(inputs[0].len()).into(), Cow::from);
        let of_layer = self.residual.of_layer(&dy, self.h);
        let d_mixed = self.output_backward(&of_layer, inputs[4], &kept.mixed);
        let cached = wanted[1] || wanted[2];
        let [d_qkv, d_keys, d_values] =
            self.attend_backward(inputs, gradients, &kept, &d_mixed, cached);
        drop((kept, d_mixed));
        let dx = self.input_backward(inputs[0], inputs[3], &d_qkv, &dy);
        let mut all = only_wanted([dx, d_keys, d_values], wanted);
        all.resize(inputs.len(), vec![]);
        Ok(all)
    }
}
