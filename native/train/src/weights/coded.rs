//! Weights as integer codes.

/// A matrix as integer codes with a scale for each group: weight = scale * code, rounded once to f32.
#[derive(Debug, Clone, PartialEq)]
pub struct Coded {
    /// Bits of a code.
    pub bits: u32,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Columns of the matrix.
    pub inputs: usize,
    /// Consecutive columns of a row that share a scale; the last group of a row may be shorter.
    pub group: usize,
    /// The codes, row by row.
    pub codes: Vec<i8>,
    /// The scales, row by row.
    pub scales: Vec<f32>,
}

impl Coded {
    /// The weights that the codes stand for, row by row.
    pub fn values(&self) -> Vec<f32> {
        let rows = self.codes.chunks(self.inputs.max(1));
        let groups = rows.flat_map(|row| row.chunks(self.group.max(1)));
        let mut values = Vec::with_capacity(self.codes.len());
        for (codes, scale) in groups.zip(&self.scales) {
            values.extend(codes.iter().map(|code| scale * f32::from(*code)));
        }
        values
    }
}
