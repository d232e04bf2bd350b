//! Attention of every frame to all frames.

use sconce_ops::matmul::{View, matmul};
use sconce_ops::op::{self, Op, Pass};
use sconce_tensor::Tensor;
use sconce_tensor::{memory, pool, simd};

use crate::{Error, Result};

/// `softmax(q k^T / sqrt(d)) v` of each head (Vaswani et al. 2017, eq. 1). `qkv [b, t, 3 c]` holds queries, keys and values,
/// each head after head -> `[b, t, c]`.
pub(super) fn self_attention(qkv: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, time, width) = qkv.dims3()?;
    let channels = width / 3;
    if heads == 0 || !channels.is_multiple_of(heads) {
        return Err(Error::mismatch("heads of attention", "a divisor of the channels", heads));
    }
    let op = SelfAttention { time, channels, heads, weights: vec![] };
    op::apply(op, &[qkv], (batch, time, channels))
}

struct SelfAttention {
    time: usize,
    channels: usize,
    heads: usize,
    /// The softmax of each head, `[b, heads, t, t]`, if a backward pass may follow.
    weights: Vec<f32>,
}

impl SelfAttention {
    /// Values of a head.
    fn depth(&self) -> usize {
        self.channels / self.heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.depth() as f32).sqrt()
    }

    /// Queries (0), keys (1) or values (2) of a head in an item `[t, 3 c]`.
    fn part<'a>(&self, item: &'a [f32], part: usize, head: usize) -> View<'a> {
        let first = part * self.channels + head * self.depth();
        View::strided(&item[first..], self.time, self.depth(), 3 * self.channels)
    }

    /// Weights of a head, `[t, t]`.
    fn softmax(&self, weights: &mut [f32], item: &[f32], head: usize) {
        let (t, scale) = (self.time, self.scale());
        let keys = self.part(item, 1, head).transposed();
        matmul(weights, t, self.part(item, 0, head), keys, false);
        for row in weights.chunks_exact_mut(t) {
            let most = row.iter().fold(f32::NEG_INFINITY, |most, w| most.max(*w));
            row.iter_mut().for_each(|w| *w = simd::exp((*w - most) * scale));
            let total: f32 = row.iter().sum();
            row.iter_mut().for_each(|w| *w /= total);
        }
    }

    /// Gradients of queries, keys and values of a head. `d_weights` is memory for `[t, t]`.
    fn head_gradients(
        &self,
        dx: &mut [f32],
        d_weights: &mut [f32],
        (item, weights, dy): (&[f32], &[f32], &[f32]),
        head: usize,
    ) {
        let (t, row, d) = (self.time, 3 * self.channels, self.depth());
        let dy = View::strided(&dy[head * d..], t, d, self.channels);
        let first = |part: usize| part * self.channels + head * d;
        let softmax = View::rows(weights, t, t);
        matmul(&mut dx[first(2)..], row, softmax.transposed(), dy, false);
        matmul(d_weights, t, dy, self.part(item, 2, head).transposed(), false);
        for (d, w) in d_weights.chunks_exact_mut(t).zip(weights.chunks_exact(t)) {
            let mean = simd::dot(d, w);
            d.iter_mut().zip(w).for_each(|(d, w)| *d = (*d - mean) * w * self.scale());
        }
        let d_scores = View::rows(d_weights, t, t);
        matmul(&mut dx[first(0)..], row, d_scores, self.part(item, 1, head), false);
        matmul(&mut dx[first(1)..], row, d_scores.transposed(), self.part(item, 0, head), false);
    }
}

impl Op for SelfAttention {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, t, c) = (inputs[0], self.time, self.channels);
        let batch = x.len() / (3 * t * c).max(1);
        let squares = self.heads * t * t;
        let mut y = memory::zeros(batch * t * c);
        let mut weights = memory::zeros(if track { batch * squares } else { 0 });
        let kept = if track { squares } else { 0 };
        let buffers = [(&mut y[..], t * c), (&mut weights[..], kept)];
        pool::for_each_shard(batch, 1, buffers, |items, [y, kept]| {
            let item = &x[items.start * 3 * t * c..][..3 * t * c];
            let mut own = memory::zeros(if track { 0 } else { t * t });
            for head in 0..self.heads {
                let weights = match track {
                    true => &mut kept[head * t * t..][..t * t],
                    false => &mut own[..],
                };
                self.softmax(weights, item, head);
                let weights = View::rows(weights, t, t);
                let y = &mut y[head * self.depth()..];
                matmul(y, c, weights, self.part(item, 2, head), false);
            }
        });
        self.weights = weights;
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, dy) = (pass.inputs[0], pass.gradient()?);
        let (t, c) = (self.time, self.channels);
        let mut dx = memory::zeros(x.len());
        pool::for_each_rows(&mut dx, 3 * t * c, 1, |i, dx| {
            let mut d_weights = memory::zeros(t * t);
            let (item, dy) = (&x[i * 3 * t * c..][..3 * t * c], &dy[i * t * c..][..t * c]);
            for head in 0..self.heads {
                let weights = &self.weights[(i * self.heads + head) * t * t..][..t * t];
                self.head_gradients(dx, &mut d_weights, (item, weights, dy), head);
            }
        });
        Ok(vec![dx])
    }
}
