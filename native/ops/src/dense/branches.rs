//! Several networks with one hidden layer that take the same input vector.

use std::ops::Range;

use candle_core::Tensor;

use super::composites;
use super::layers::Branch;
use crate::form::Form;
use crate::matmul::{Operand, Packed, View, matmul};
use crate::op::{self, Op, Pass};
use crate::pool::for_each_shard;
use crate::simd::row_sum;
use crate::{Activation, Error, Result, memory, pool, tensor};

/// Rows of one shard.
const ROWS: usize = 128;

/// `W_2 relu(W_1 x + b_1) + b_2` of all branches side by side, `x [.., k]` -> `[n, sum of outputs]`.
///
/// This is one op because each product is small, and separate ops would concatenate and split their gradients.
pub fn branches(x: &Tensor, branches: &[Branch]) -> Result<Tensor> {
    let k = tensor::rows(x.dims()).1;
    let mut all = Vec::with_capacity(branches.len());
    let (mut hidden, mut out) = (0, 0);
    for branch in branches {
        let (h, width) = branch.hidden.weight.dims2()?;
        let (n, inner) = branch.out.weight.dims2()?;
        for (what, expected, got) in [
            ("input of a branch", width, k),
            ("hidden layer of a branch", h, inner),
            ("bias of a hidden layer", h, branch.hidden.bias.elem_count()),
            ("bias of a branch", n, branch.out.bias.elem_count()),
        ] {
            if expected != got {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        let (from_hidden, from_out) = (hidden, out);
        (hidden, out) = (hidden + h, out + n);
        let (hidden, out) = (from_hidden..hidden, from_out..out);
        all.push(Part { branch: branch.clone(), hidden, out });
    }
    let Some(first) = branches.first() else { return Err(Error::not_found("branches")) };
    let rounds = |branch: &Branch| branch.hidden.weight.rounds() || branch.out.weight.rounds();
    if Form::of(x) != Form::Cpu || branches.iter().any(rounds) {
        return composites::branches(x, branches);
    }
    let op = Branches { all, k, hidden, out, kept: vec![] };
    op::apply(op, &[x, &first.hidden.weight], (tensor::rows(x.dims()).0, out))
}

/// A branch, and its columns among those of all branches.
struct Part {
    branch: Branch,
    hidden: Range<usize>,
    out: Range<usize>,
}

impl Part {
    /// The right operands of the first and the second layer.
    fn operands<'a>(
        &self,
        [w1, w2]: [&'a [f32]; 2],
        turned: bool,
        uses: usize,
    ) -> (Operand<'a>, Operand<'a>) {
        let Branch { hidden, out } = &self.branch;
        let (h, n) = (self.hidden.len(), self.out.len());
        let first = hidden.weight.operand(w1, 0..h, turned, uses);
        (first, out.weight.operand(w2, 0..n, turned, uses))
    }
}

/// The second input ties the weights to the graph; their gradients accumulate in the weights.
struct Branches {
    all: Vec<Part>,
    k: usize,
    hidden: usize,
    out: usize,
    /// Hidden layers of all branches, saved for the backward pass.
    kept: Vec<f32>,
}

impl Branches {
    /// The output, and the hidden layers of all branches.
    fn outputs(&self, x: &[f32]) -> Result<[Vec<f32>; 2]> {
        let (k, hidden, out) = (self.k, self.hidden, self.out);
        let m = x.len() / k.max(1);
        let mut h = memory::zeros(m * hidden);
        let mut y = memory::zeros(m * out);
        let (mut b1, mut b2) = (vec![], vec![]);
        for part in &self.all {
            b1.extend(tensor::to_vec(&part.branch.hidden.bias)?);
            b2.extend(tensor::to_vec(&part.branch.out.bias)?);
        }
        self.with_operands(true, m, |all| {
            let buffers = [(&mut h[..], hidden), (&mut y[..], out)];
            for_each_shard(m, ROWS, buffers, |rows, [h, y]| {
                let count = rows.len();
                let x = View::rows(&x[rows.start * k..], count, k);
                h.chunks_exact_mut(hidden).for_each(|row| row.copy_from_slice(&b1));
                for (part, (w1, _)) in self.all.iter().zip(all) {
                    w1.matmul(&mut h[part.hidden.start..], hidden, x, true);
                }
                Activation::Relu.apply(h);
                y.chunks_exact_mut(out).for_each(|row| row.copy_from_slice(&b2));
                let h = View::rows(h, count, hidden);
                for (part, (_, w2)) in self.all.iter().zip(all) {
                    let h = h.columns(part.hidden.clone());
                    w2.matmul(&mut y[part.out.start..], out, h, true);
                }
            });
        })?;
        Ok([y, h])
    }

    /// Accumulates the gradients of the weights in the weights, and returns the gradient of `x` if `wanted`.
    fn gradients(&self, x: &[f32], h: &[f32], dy: &[f32], wanted: bool) -> Result<Vec<f32>> {
        let (k, hidden, out) = (self.k, self.hidden, self.out);
        let m = x.len() / k.max(1);
        let width = if wanted { k } else { 0 };
        let (mut dx, mut dh) = (memory::zeros(m * width), memory::zeros(m * hidden));
        self.with_operands(false, m, |all| {
            let buffers = [(&mut dh[..], hidden), (&mut dx[..], width)];
            for_each_shard(m, ROWS, buffers, |rows, [dh, dx]| {
                let count = rows.len();
                let dy = View::rows(&dy[rows.start * out..], count, out);
                for (part, (_, w2)) in self.all.iter().zip(all) {
                    let dy = dy.columns(part.out.clone());
                    w2.matmul(&mut dh[part.hidden.start..], hidden, dy, false);
                }
                // The output of a relu is positive exactly where its input is.
                Activation::Relu.backward(dh, &h[rows.start * hidden..]);
                if wanted {
                    let dh = View::rows(dh, count, hidden);
                    for (i, (part, (w1, _))) in self.all.iter().zip(all).enumerate() {
                        w1.matmul(dx, k, dh.columns(part.hidden.clone()), i > 0);
                    }
                }
            });
        })?;
        self.weight_gradients(x, h, &dh, dy);
        Ok(dx)
    }

    fn weight_gradients(&self, x: &[f32], h: &[f32], dh: &[f32], dy: &[f32]) {
        let (k, hidden, out) = (self.k, self.hidden, self.out);
        let m = x.len() / k.max(1);
        let x = Packed::new(View::rows(x, m, k));
        let (h, d1, d2) =
            (View::rows(h, m, hidden), View::rows(dh, m, hidden), View::rows(dy, m, out));
        pool::for_each(self.all.len(), |i| {
            let Some(Part { branch, hidden: own, out: to }) = self.all.get(i) else { return };
            branch.hidden.weight.accumulate(|dw, adds| {
                x.matmul(dw, k, d1.columns(own.clone()).transposed(), adds);
            });
            branch.out.weight.accumulate(|dw, adds| {
                let d = d2.columns(to.clone()).transposed();
                matmul(dw, own.len(), d, h.columns(own.clone()), adds);
            });
        });
        let (mut b1, mut b2) = (memory::zeros(hidden), memory::zeros(out));
        row_sum(&mut b1, dh, false);
        row_sum(&mut b2, dy, false);
        for Part { branch, hidden: own, out: to } in &self.all {
            branch.hidden.bias.accumulate(|db, adds| row_sum(db, &b1[own.clone()], adds));
            branch.out.bias.accumulate(|db, adds| row_sum(db, &b2[to.clone()], adds));
        }
    }

    /// Calls `f` with the right operands of every branch.
    fn with_operands(
        &self,
        turned: bool,
        uses: usize,
        f: impl FnOnce(&[(Operand<'_>, Operand<'_>)]),
    ) -> Result<()> {
        let weights: Vec<Tensor> = self
            .all
            .iter()
            .flat_map(|p| [&p.branch.hidden.weight, &p.branch.out.weight])
            .map(|weight| weight.detach())
            .collect();
        tensor::with_all(&weights, |numbers| {
            let pairs = self.all.iter().zip(numbers.as_chunks::<2>().0);
            let all: Vec<_> =
                pairs.map(|(part, pair)| part.operands(*pair, turned, uses)).collect();
            f(&all);
            Ok(())
        })
    }
}

impl Op for Branches {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let [y, h] = self.outputs(inputs[0])?;
        if track {
            self.kept = h;
        }
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, dy) = (pass.inputs[0], pass.gradient()?);
        Ok(vec![self.gradients(x, &self.kept, dy, pass.wants(0))?, vec![]])
    }
}
