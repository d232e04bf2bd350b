//! The initial values of new weights.

use super::orthogonal::orthogonal;
use crate::rng::Rng;
use crate::{Error, Result, memory};

/// The initial values of a new weight.
#[derive(Debug, Clone, Copy)]
pub enum Init {
    /// Every value is this constant.
    Constant(f32),
    /// Uniform in `-bound..bound`.
    Uniform(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// A function of the index and of the random stream that belongs to the weight's name.
    With(fn(&Rng, u64) -> f32),
    /// Rows of this many columns; each value is `ln(1 + column)`.
    LogOfColumn(usize),
    /// The weight or the bias of a dense layer with this many inputs; see [`Init::fan_in`].
    Dense(usize),
}

/// Consecutive rows of a dense weight whose initial values are one orthogonal matrix, for example one gate of an LSTM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// Number of rows.
    pub rows: usize,
    /// Factor of the orthogonal matrix.
    pub gain: f32,
}

impl Init {
    /// A dense layer with `inputs` inputs: PyTorch's default, uniform within `1 / sqrt(inputs)`, or an orthogonal
    /// matrix without a bias if the [source](super::Source::Orthogonal) asks for it.
    pub fn fan_in(inputs: usize) -> Self {
        Init::Dense(inputs)
    }

    /// PyTorch's default for a weight that is not a plain dense matrix, such as the kernel of a convolution, with
    /// `inputs` inputs for each output. It is never an orthogonal matrix.
    pub fn kernel(inputs: usize) -> Self {
        Init::Uniform(1.0 / (inputs.max(1) as f32).sqrt())
    }

    pub(super) fn draw(self, seed: u64, name: &str, count: usize) -> Vec<f32> {
        if let Init::Dense(inputs) = self {
            return Init::kernel(inputs).draw(seed, name, count);
        }
        let rng = Rng::new(seed, &format!("init.{name}"), 0);
        let number = |i| match self {
            Init::Constant(v) => v,
            Init::Uniform(bound) => (2.0 * rng.uniform(i) - 1.0) * bound,
            Init::Normal(deviation) => rng.normal(i) * deviation,
            Init::With(draw) => draw(&rng, i),
            Init::LogOfColumn(columns) => ((i % columns.max(1) as u64 + 1) as f32).ln(),
            Init::Dense(_) => 0.0,
        };
        let mut numbers = memory::with_capacity(count);
        numbers.extend((0..count as u64).map(number));
        numbers
    }

    /// Values for [`Source::Orthogonal`](super::Source::Orthogonal). Without blocks, a dense weight is one block with
    /// the gain of a layer before a relu, sqrt(2).
    ///
    /// # Errors
    /// `Mismatch` for blocks that do not cover the rows of a weight.
    pub(super) fn orthogonal(
        self,
        seed: u64,
        name: &str,
        shape: &[usize],
        blocks: &[Block],
    ) -> Result<Vec<f32>> {
        let (rows, columns) = match (self, shape) {
            (Init::Dense(_), [rows, columns]) => (*rows, *columns),
            (Init::Dense(_), [count]) => return Ok(memory::zeros(*count)),
            _ => return Ok(self.draw(seed, name, shape.iter().product())),
        };
        let whole = [Block { rows, gain: std::f32::consts::SQRT_2 }];
        let blocks = if blocks.is_empty() { &whole } else { blocks };
        let covered: usize = blocks.iter().map(|block| block.rows).sum();
        if covered != rows {
            return Err(Error::mismatch(format!("rows of the blocks of {name}"), rows, covered));
        }
        let mut numbers = memory::with_capacity(rows * columns);
        for (i, block) in blocks.iter().enumerate() {
            let rng = Rng::new(seed, &format!("orthogonal.{name}"), i as u64);
            numbers.extend(orthogonal(&rng, [block.rows, columns], block.gain));
        }
        Ok(numbers)
    }
}
