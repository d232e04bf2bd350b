//! One product whose result is wanted in parts.

use candle_core::{Shape, Tensor};

use super::linear::{row_sum, weight_gradient};
use super::many::{self, Many};
use super::matmul::{View, matmul};
use super::tensor;
use crate::weights::Weight;
use crate::{Error, Result, pool};

/// Rows of one shard of a product.
const ROWS: usize = 128;

/// `y = x W^T + b` as tensors of `widths` columns each: nothing is computed whole and cut apart, nor are the
/// gradients joined. `x [.., k]`, `weight [sum of widths, k]`, `bias [sum of widths]`.
pub fn linear_parts<const N: usize>(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    widths: [usize; N],
) -> Result<[Tensor; N]> {
    let (n, k) = weight.dims2()?;
    let total: usize = widths.iter().sum();
    if x.dims().last() != Some(&k) || n != total {
        let (expected, got) = (format!("[.., {k}] to {n}"), format!("{:?} to {total}", x.dims()));
        return Err(Error::mismatch("a linear layer in parts", expected, got));
    }
    if let Some(bias) = bias
        && bias.dims() != [n]
    {
        let got = format!("{:?}", bias.dims());
        return Err(Error::mismatch("bias of a linear layer", format!("[{n}]"), got));
    }
    let op = LinearParts {
        weight: weight.clone(),
        bias: bias.cloned(),
        numbers: bias.map(|b| tensor::to_vec(b)).transpose()?,
        widths: widths.to_vec(),
        shape: x.dims().to_vec(),
    };
    let parts = many::apply(op, &[x, weight])?;
    <[Tensor; N]>::try_from(parts)
        .map_err(|all| Error::mismatch("parts of a linear layer", N, all.len()))
}

struct LinearParts {
    weight: Weight,
    bias: Option<Weight>,
    numbers: Option<Vec<f32>>,
    widths: Vec<usize>,
    /// Of x.
    shape: Vec<usize>,
}

impl LinearParts {
    /// First row of the weight and width of each part.
    fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.widths.iter().scan(0, |at, &n| {
            *at += n;
            Some((*at - n, n))
        })
    }

    fn k(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    fn part(&self, x: &[f32], weight: &[f32], first: usize, n: usize) -> Vec<f32> {
        let k = self.k();
        let mut y = vec![0.0; x.len() / k.max(1) * n];
        let weight = View::rows(&weight[first * k..], n, k).transposed();
        pool::for_each_rows(&mut y, n, ROWS, |row, y| {
            let rows = y.len() / n;
            if let Some(bias) = &self.numbers {
                let bias = &bias[first..first + n];
                y.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias));
            }
            let x = View::rows(&x[row * k..], rows, k);
            matmul(y, n, x, weight, self.numbers.is_some());
        });
        y
    }

    fn gradients(&self, x: &[f32], weight: &[f32], outputs: &[Option<&[f32]>]) -> Vec<f32> {
        let k = self.k();
        let mut dx = vec![0.0; x.len()];
        pool::for_each_rows(&mut dx, k, ROWS, |row, dx| {
            let rows = dx.len() / k;
            for ((first, n), dy) in self.parts().zip(outputs) {
                let Some(dy) = dy else { continue };
                let dy = View::rows(&dy[row * n..], rows, n);
                matmul(dx, k, dy, View::rows(&weight[first * k..], n, k), true);
            }
        });
        dx
    }
}

impl Many for LinearParts {
    fn name(&self) -> &'static str {
        "linear-parts"
    }

    fn forward(&self, inputs: &[&[f32]], _track: bool) -> Vec<(Vec<f32>, Shape)> {
        let part = |(first, n)| {
            let mut shape = self.shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = n;
            }
            (self.part(inputs[0], inputs[1], first, n), Shape::from(shape))
        };
        self.parts().map(part).collect()
    }

    fn backward(
        &self,
        inputs: &[&[f32]],
        outputs: &[Option<&[f32]>],
        wanted: &[bool],
    ) -> Vec<Vec<f32>> {
        let k = self.k();
        self.weight.accumulate(|dw, accumulate| {
            for ((first, n), dy) in self.parts().zip(outputs) {
                let dw = &mut dw[first * k..(first + n) * k];
                match dy {
                    Some(dy) => {
                        let rows = dy.len() / n.max(1);
                        let x = View::rows(inputs[0], rows, k);
                        weight_gradient(dw, View::rows(dy, rows, n), x, accumulate);
                    }
                    None if !accumulate => dw.fill(0.0),
                    None => {}
                }
            }
        });
        if let Some(bias) = &self.bias {
            bias.accumulate(|db, accumulate| {
                for ((first, n), dy) in self.parts().zip(outputs) {
                    let db = &mut db[first..first + n];
                    match dy {
                        Some(dy) => row_sum(db, dy, accumulate),
                        None if !accumulate => db.fill(0.0),
                        None => {}
                    }
                }
            });
        }
        let dx = match wanted[0] {
            true => self.gradients(inputs[0], inputs[1], outputs),
            false => vec![],
        };
        vec![dx, vec![]]
    }
}
