//! Positions as sines.

use sconce_tensor::Tensor;
use sconce_tensor::tensor::{moved, tensor};

use crate::ops::arrange::add;
use crate::{Result, memory};

/// `x[t, d] + sin(t / (1 + 0.01 d))` for `x [b, t, d]`: t counts frames from the first frame of the window, d counts
/// channels, both from 0.
pub(super) fn with_positions(x: &Tensor) -> Result<Tensor> {
    let (batch, time, width) = x.dims3()?;
    let mut table = memory::with_capacity(batch * time * width);
    for at in 0..time * width {
        let (t, d) = ((at / width) as f64, (at % width) as f64);
        table.push((t / (1.0 + 0.01 * d)).sin() as f32);
    }
    for _ in 1..batch {
        table.extend_from_within(..time * width);
    }
    add(x, &moved(&tensor(table, (batch, time, width))?, x)?)
}

#[cfg(test)]
mod tests {
    use sconce_tensor::tensor::to_vec;

    use super::*;

    #[test]
    fn each_window_gets_the_sines_of_its_frames() -> Result<()> {
        let x = tensor(vec![0.5; 2 * 3 * 2], (2, 3, 2))?;
        let y = to_vec(&with_positions(&x)?)?;
        let want = |t: f32, d: f32| 0.5 + (t / (1.0 + 0.01 * d)).sin();
        for (i, y) in y.iter().enumerate() {
            let (t, d) = ((i / 2 % 3) as f32, (i % 2) as f32);
            assert!((y - want(t, d)).abs() < 1e-6, "{i}: {y}");
        }
        Ok(())
    }
}
