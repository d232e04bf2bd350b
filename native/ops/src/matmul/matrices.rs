//! Products of strided matrices, such as one frame of each row of a batch, or the heads of a layer: other values may
//! lie between their rows, and the output is existing memory.

use candle_core::{Result, Tensor, bail};

use crate::device::launch::{self, Operand, pointer};

/// Matrices in a contiguous tensor: the index of the first one, the distance of matrices, and the distance of their
/// rows.
#[derive(Clone, Copy)]
pub(crate) struct Matrices<'a> {
    of: &'a Tensor,
    first: usize,
    apart: usize,
    row: usize,
    turned: bool,
}

impl<'a> Matrices<'a> {
    pub(crate) fn new(of: &'a Tensor, [first, apart, row]: [usize; 3]) -> Self {
        Matrices { of, first, apart, row, turned: false }
    }

    /// A single matrix of contiguous rows, `[.., row]`.
    pub(crate) fn rows(of: &'a Tensor, row: usize) -> Self {
        Matrices::new(of, [0, 0, row])
    }

    /// The transposes of these matrices.
    pub(crate) fn turned(self) -> Self {
        Matrices { turned: !self.turned, ..self }
    }

    /// The operand of `count` matrices `[rows, columns]`.
    fn operand(&self, count: usize, [rows, columns]: [usize; 2]) -> Result<Operand> {
        let &Matrices { of, first, apart, row, turned } = self;
        let [rows, columns] = if turned { [columns, rows] } else { [rows, columns] };
        let end = first + (count - 1) * apart + (rows - 1) * row + columns;
        if end > of.elem_count() || columns > row {
            bail!("{count} matrices [{rows}, {columns}] exceed a tensor {:?}", of.shape());
        }
        let place = pointer(of)? + (first * of.dtype().size_in_bytes()) as u64;
        Ok(Operand { place, apart, row, dtype: of.dtype(), turned })
    }
}

/// `c = a b` for each of `count` matrices `a [m, k]` and `b [k, n]` of one type; sums are f32.
pub(crate) fn product(
    c: Matrices,
    a: Matrices,
    b: Matrices,
    count: usize,
    sizes: [usize; 3],
) -> Result<()> {
    multiply(c, a, b, (count, sizes), 0.0)
}

/// `c += a b` for one matrix each.
pub(crate) fn add_product(c: Matrices, a: Matrices, b: Matrices, sizes: [usize; 3]) -> Result<()> {
    multiply(c, a, b, (1, sizes), 1.0)
}

fn multiply(
    c: Matrices,
    a: Matrices,
    b: Matrices,
    (count, [m, n, k]): (usize, [usize; 3]),
    beta: f32,
) -> Result<()> {
    if [count, m, n].contains(&0) {
        return Ok(());
    }
    if k == 0 || c.turned || a.of.dtype() != b.of.dtype() {
        bail!("no kernel for matrices [{m}, {k}] and [{k}, {n}]");
    }
    let operands =
        [c.operand(count, [m, n])?, a.operand(count, [m, k])?, b.operand(count, [k, n])?];
    // SAFETY: all matrices lie within their tensors, which are on one card.
    unsafe { launch::product(c.of, operands, (count, [m, n, k]), beta) }
}
