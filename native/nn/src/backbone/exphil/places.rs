//! The places of frames in a window.

use sconce_tensor::Tensor;
use sconce_tensor::tensor::{beside, granted};

use crate::Result;

/// Adds `sin(t / (1 + 0.01 d))` to `x [b, t, h]`, where t counts the frames of the window and d the channels from 0 on.
pub(super) fn placed(x: &Tensor) -> Result<Tensor> {
    let (_, time, width) = x.dims3()?;
    let sine = |i: usize| {
        let (t, d) = ((i / width) as f64, (i % width) as f64);
        (t / (1.0 + 0.01 * d)).sin() as f32
    };
    let places = beside(x, (0..time * width).map(sine).collect(), (1, time, width))?;
    granted(&[x]);
    Ok(x.broadcast_add(&places)?)
}
