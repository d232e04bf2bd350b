//! Linear layers on a card.

use candle_core::{D, Result, Tensor, bail};
use sconce_cuda::kernels::FEW_ROWS;

use crate::activation::card::finished;
use crate::arrange::card::copy_columns;
use crate::device::launch::{Launch, output, pointer, suffix, unwritten};
use crate::matmul::card::{multiply, nn, nt, rounded, tn};
use crate::matmul::matrices::{Matrices, add_product, product};
use crate::op::card::{Op, Pass, apply, apply_all};
use crate::tensor::{rows, with_width};
use crate::{Activation, Precision, op, tape};

/// The most rows for which one kernel computes a whole layer.
pub(crate) const FEW: usize = 32;
/// Rows of a block of that kernel.
pub(crate) const BLOCK: usize = 8;
/// Threads of a block, and threads of each column, in the kernel for few rows.
const THREADS: usize = 128;
const WARP: usize = 32;
/// Rows and columns of a block in the kernel for more rows than [`BLOCK`], its threads, and the bytes that it loads at once.
const TILE: [usize; 2] = [32, 8];
const TILE_THREADS: usize = 256;
const AT_ONCE: u64 = 16;

/// `activation(x W^T + bias) + rest`.
pub(crate) fn layer(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    rest: Option<&Tensor>,
) -> crate::Result<Tensor> {
    let all = || [x, w].into_iter().chain(bias).chain(rest);
    let few = (1..=FEW).contains(&rows(x.dims()).0) && Precision::current() == Precision::F32;
    if few && all().all(|t| t.dtype() == x.dtype() && !tape::wants(t)) {
        return Ok(few_rows(x, w, bias, activation, rest)?);
    }
    finished(&linear(x, w)?, bias, activation, rest)
}

/// [`layer`] for inputs without gradient, as one kernel.
fn few_rows(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    rest: Option<&Tensor>,
) -> Result<Tensor> {
    let ((rows, k), n) = (rows(x.dims()), w.dim(0)?);
    let y = unwritten(with_width(x, n), x.dtype(), x)?;
    if w.dim(1)? != k || rest.is_some_and(|rest| rest.elem_count() != rows * n) {
        bail!("{x:?}, {w:?} and {rest:?} do not fit one layer");
    }
    let [x, w] = [x.contiguous()?, w.contiguous()?];
    let bias = bias.map(Tensor::contiguous).transpose()?;
    let rest = rest.map(Tensor::contiguous).transpose()?;
    let aligned = [pointer(&x)?, pointer(&w)?, (k * x.dtype().size_in_bytes()) as u64];
    let tiled = rows > BLOCK && aligned.iter().all(|place| place.is_multiple_of(AT_ONCE));
    let kernel = if tiled { "tile_of_rows" } else { "few_rows" };
    let launch = Launch::of(FEW_ROWS, &format!("{kernel}_{}", suffix(&x)), &x)?;
    let launch = launch.tensor(&x)?.tensor(&w)?.option(bias.as_ref())?.option(rest.as_ref())?;
    let launch = launch.tensor(&y)?.int(rows).int(n).int(k).int(activation as usize);
    let (grid, threads) = match tiled {
        true => ([n.div_ceil(TILE[1]), rows.div_ceil(TILE[0]), 1], TILE_THREADS),
        false => ([(n * WARP).div_ceil(THREADS), rows.div_ceil(BLOCK), 1], THREADS),
    };
    // SAFETY: as few_rows.cu requires, a block for each tile, or a warp for each column and a block for every eight rows.
    unsafe { launch.run(grid, [threads, 1, 1], 0) }?;
    Ok(y)
}

/// Multiplies `x` by consecutive blocks of `widths` rows of `w`, each block on its own: N times `[.., width]`.
pub(crate) fn linear_parts<const N: usize>(
    x: &Tensor,
    w: &Tensor,
    widths: [usize; N],
) -> crate::Result<[Tensor; N]> {
    // With one row, the parts of the whole product are contiguous.
    if rows(x.dims()).0 == 1 && !tape::wants(x) && !tape::wants(w) {
        let (y, mut end) = (layer(x, w, None, Activation::None, None)?, 0);
        let part = |width| {
            end += width;
            y.narrow(D::Minus1, end - width, width)
        };
        return op::take(widths.into_iter().map(part).collect::<Result<_>>()?);
    }
    apply_all(Parts { precision: Precision::current(), widths: widths.to_vec() }, &[x, w])
}

/// `x W^T` of `x [.., k]` and `w [n, k]`, `[.., n]`, with operands in the precision of [`Precision::current`], also in
/// the backward pass.
fn linear(x: &Tensor, w: &Tensor) -> crate::Result<Tensor> {
    apply(Linear(Precision::current()), &[x, w])
}

struct Linear(Precision);

impl Op for Linear {
    /// Saves the rounded operands.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, w] = inputs else { bail!("a product takes two operands") };
        let ((m, k), n) = (rows(x.dims()), w.dim(0)?);
        let (a, b) = (rounded(x, self.0)?, rounded(w, self.0)?);
        let y = output(with_width(x, n), x.dtype(), x, track)?;
        multiply(&y, Matrices::rows(&a, k), Matrices::rows(&b, k).turned(), [m, n, k])?;
        Ok((y, if track { vec![a, b] } else { vec![] }))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, w], [a, b]) = (pass.inputs, pass.kept) else {
            bail!("a product takes two operands")
        };
        let dy = rounded(pass.dy, self.0)?;
        let wanted = |i: usize| pass.wanted[i];
        let dx = wanted(0).then(|| nn(&dy, b, x.dtype())?.reshape(x.shape())).transpose()?;
        let dw = wanted(1).then(|| tn(&dy, a, w.dtype())).transpose()?;
        Ok(vec![dx, dw])
    }
}

struct Parts {
    precision: Precision,
    widths: Vec<usize>,
}

/// Columns below which a product of its own does not pay for reading x again.
const NARROW: usize = 64;

impl Parts {
    /// Whether each part has a product of its own; otherwise all share one.
    fn are_apart(&self) -> bool {
        self.widths.iter().all(|&width| width >= NARROW)
    }

    /// The first row and the number of rows of each part.
    fn stretches(&self) -> impl Iterator<Item = (usize, usize)> {
        self.widths.iter().scan(0, |end, &width| {
            *end += width;
            Some((*end - width, width))
        })
    }

    /// Joins the gradients of all parts, side by side.
    fn joined(&self, gradients: &[Option<&Tensor>], x: &Tensor) -> Result<Tensor> {
        let all = with_width(x, self.widths.iter().sum());
        let d = match gradients.iter().all(Option::is_some) {
            true => unwritten(all, x.dtype(), x)?,
            false => Tensor::zeros(all, x.dtype(), x.device())?,
        };
        for ((first, _), gradient) in self.stretches().zip(gradients) {
            gradient.map_or(Ok(()), |gradient| copy_columns((gradient, 0), (&d, first)))?;
        }
        Ok(d)
    }
}

impl Op for Parts {
    /// Saves the rounded operands.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, w] = inputs else { bail!("a product takes two operands") };
        let (a, b) = (rounded(x, self.precision)?, rounded(w, self.precision)?);
        let (m, k) = rows(x.dims());
        let part = |(_, width)| output(with_width(x, width), x.dtype(), x, track);
        let mut outputs = self.stretches().map(part).collect::<Result<Vec<_>>>()?;
        if self.are_apart() {
            for ((first, width), y) in self.stretches().zip(&outputs) {
                let b = Matrices::new(&b, [first * k, 0, k]).turned();
                multiply(y, Matrices::rows(&a, k), b, [m, width, k])?;
            }
        } else {
            let all = nt(&a, &b, x.dtype())?;
            for ((first, _), y) in self.stretches().zip(&outputs) {
                copy_columns((&all, first), (y, 0))?;
            }
        }
        if track {
            outputs.extend([a, b]);
        }
        Ok((outputs.remove(0), outputs))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, w], [a, b]) = (pass.inputs, pass.kept) else {
            bail!("a product takes two operands")
        };
        let (m, k) = rows(x.dims());
        let gradients: Vec<_> = std::iter::once(Some(pass.dy))
            .chain(pass.d_others.iter().map(Option::as_ref))
            .collect();
        let [dx, dw] = [0, 1].map(|i| pass.wanted[i]);
        if !self.are_apart() || gradients.iter().any(Option::is_none) {
            let d = rounded(&self.joined(&gradients, x)?, self.precision)?;
            let dx = dx.then(|| nn(&d, b, x.dtype())?.reshape(x.shape())).transpose()?;
            return Ok(vec![dx, dw.then(|| tn(&d, a, w.dtype())).transpose()?]);
        }
        let like = |wanted: bool, t: &Tensor| {
            wanted.then(|| unwritten(t.shape(), t.dtype(), t)).transpose()
        };
        let (dx, dw) = (like(dx, x)?, like(dw, w)?);
        for ((first, width), d) in self.stretches().zip(gradients.into_iter().flatten()) {
            let d = &rounded(d, self.precision)?;
            if let Some(dx) = &dx {
                let (d, b) = (Matrices::rows(d, width), Matrices::new(b, [first * k, 0, k]));
                match first {
                    0 => product(Matrices::rows(dx, k), d, b, 1, [m, k, width])?,
                    _ => add_product(Matrices::rows(dx, k), d, b, [m, k, width])?,
                }
            }
            if let Some(dw) = &dw {
                let (d, to) = (Matrices::rows(d, width), Matrices::new(dw, [first * k, 0, k]));
                product(to, d.turned(), Matrices::rows(a, k), 1, [width, k, m])?;
            }
        }
        Ok(vec![dx, dw])
    }
}
