//! Positions as sines.

use std::sync::{Arc, Mutex};

use sconce_tensor::Tensor;
use sconce_tensor::tensor::{moved, tensor};

use crate::ops::arrange::add;
use crate::{Result, memory};

/// `sin(t / (1 + 0.01 d))` for place t of a window and channel d, both counted from 0.
#[derive(Default)]
pub(super) struct Positions {
    /// The sines of the last pass, `[t, d]`, and d.
    last: Mutex<Option<(Arc<[f32]>, usize)>>,
}

impl Positions {
    /// Adds the sines to `x [b, t, d]`.
    pub(super) fn add(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, time, width) = x.dims3()?;
        let sines = self.sines(time, width);
        let mut table = memory::with_capacity(batch * sines.len());
        for _ in 0..batch {
            table.extend_from_slice(&sines);
        }
        add(x, &moved(&tensor(table, (batch, time, width))?, x)?)
    }

    fn sines(&self, time: usize, width: usize) -> Arc<[f32]> {
        let mut last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((sines, _)) =
            last.as_ref().filter(|(s, d)| (s.len(), *d) == (time * width, width))
        {
            return sines.clone();
        }
        let sine = |at| ((at / width) as f64 / (1.0 + 0.01 * (at % width) as f64)).sin() as f32;
        let sines: Arc<[f32]> = (0..time * width).map(sine).collect();
        *last = Some((sines.clone(), width));
        sines
    }
}

#[cfg(test)]
mod tests {
    use sconce_tensor::tensor::to_vec;

    use super::*;

    #[test]
    fn each_window_gets_the_sines_of_its_frames() -> Result<()> {
        let positions = Positions::default();
        let want = |t: f32, d: f32| 0.5 + (t / (1.0 + 0.01 * d)).sin();
        // Twice the same shape, another batch, and shapes of as many numbers.
        for (b, time, width) in [(2, 3, 2), (2, 3, 2), (1, 3, 2), (1, 2, 3), (1, 6, 1)] {
            let x = tensor(vec![0.5; b * time * width], (b, time, width))?;
            for (i, y) in to_vec(&positions.add(&x)?)?.iter().enumerate() {
                let (t, d) = ((i / width % time) as f32, (i % width) as f32);
                assert!((y - want(t, d)).abs() < 1e-6, "{i}: {y}");
            }
        }
        Ok(())
    }
}
