//! The memory of a step.

use crate::gemv::{Input, Tap};

/// Vectors as long as a plan's longest, one for each game of a batched step. The first step allocates them. No contents
/// carry over between steps, so one scratch serves any plan.
#[derive(Default)]
pub struct Scratch {
    /// The output of one layer and input of the next, `[rows, width]`.
    pub x: Vec<f32>,
    /// Intermediate results.
    pub y: Vec<f32>,
    /// Intermediate results.
    pub z: Vec<f32>,
    /// The residual stream.
    pub stream: Vec<f32>,
    /// The input of a backbone, kept while another backbone reads it. Empty until a step needs it.
    pub kept: Vec<f32>,
    /// The input vectors of a matrix product.
    pub input: Input,
    widest: usize,
    rows: usize,
}

impl Scratch {
    /// Calls `tap` with each vector that a matrix multiplies, and the place of the matrix among those of the plan.
    pub fn listen(&mut self, tap: Tap) {
        self.input.tap = Some(tap);
    }

    /// Grows the vectors for `rows` games of a plan whose longest vector has `widest` values. A no-op if the vectors
    /// are large enough.
    pub fn fit(&mut self, widest: usize, rows: usize) {
        if self.widest < widest || self.rows < rows {
            let (widest, rows) = (widest.max(self.widest), rows.max(self.rows));
            let [x, y, z, stream] = std::array::from_fn(|_| vec![0.0; widest * rows]);
            let mut input = Input::new(widest, rows);
            input.tap = self.input.tap.take();
            *self = Scratch { x, y, z, stream, kept: vec![], input, widest, rows };
        }
    }
}
