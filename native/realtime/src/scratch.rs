//! Where the numbers of a step lie while it runs.

use crate::gemv::Active;

/// Vectors as long as the longest of a plan, taken at the first step. What a step leaves in them means
/// nothing: it serves any plan.
#[derive(Default)]
pub struct Scratch {
    /// What one layer gives to the next.
    pub(crate) x: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) z: Vec<f32>,
    pub(crate) active: Active,
}

impl Scratch {
    /// Makes room for a plan whose longest vector has so many numbers, if there is none yet.
    pub(crate) fn fit(&mut self, widest: usize) {
        if self.x.len() < widest {
            let [x, y, z] = std::array::from_fn(|_| vec![0.0; widest]);
            *self = Scratch { x, y, z, active: Active::new(widest) };
        }
    }
}
