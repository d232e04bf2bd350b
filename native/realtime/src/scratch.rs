//! Where the numbers of a step lie while it runs.

use crate::gemv::Input;

/// Vectors as long as the longest of a plan, for each of the games that are stepped at once; taken at the first
/// step. What a step leaves in them means nothing: it serves any plan.
#[derive(Default)]
pub struct Scratch {
    /// What one layer gives to the next.
    pub x: Vec<f32>,
    pub y: Vec<f32>,
    pub z: Vec<f32>,
    /// To what residuals are added.
    pub stream: Vec<f32>,
    pub input: Input,
    widest: usize,
    rows: usize,
}

impl Scratch {
    /// Makes room for so many games of a plan whose longest vector has so many numbers, if there is none yet.
    pub fn fit(&mut self, widest: usize, rows: usize) {
        if self.widest < widest || self.rows < rows {
            let (widest, rows) = (widest.max(self.widest), rows.max(self.rows));
            let [x, y, z, stream] = std::array::from_fn(|_| vec![0.0; widest * rows]);
            let input = Input::new(widest, rows);
            *self = Scratch { x, y, z, stream, input, widest, rows };
        }
    }
}
