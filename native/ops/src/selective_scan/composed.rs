//! The selective scan composed of candle's ops.

use candle_core::Tensor;

use crate::frames::composed::last;
use crate::lengths::{Lengths, blank};
use crate::linear_recurrence::composed::{softplus, states};
use crate::{Result, Selective};

pub(super) fn selective_scan(inputs: Selective<'_>, lengths: Lengths) -> Result<(Tensor, Tensor)> {
    let Selective { u, dt, dt_bias, dt_softplus, a, a_log, b, c, d, z, h } = inputs;
    let mut dt = dt.broadcast_as(u.shape())?;
    if let Some(bias) = dt_bias {
        dt = dt.broadcast_add(bias)?;
    }
    if dt_softplus {
        dt = softplus(&dt)?;
    }
    let a = if a_log { a.exp()?.neg()? } else { a.clone() };
    let decay = dt.unsqueeze(3)?.broadcast_mul(&a)?.exp()?;
    let input = (dt * u)?.unsqueeze(3)?.broadcast_mul(&b.unsqueeze(2)?)?;
    let states = states(&decay, &input, h)?;
    let mut y = states.broadcast_mul(&c.unsqueeze(2)?)?.sum(3)?;
    if let Some(d) = d {
        y = (y + u.broadcast_mul(d)?)?;
    }
    if let Some(z) = z {
        y = (y * z.silu()?)?;
    }
    let next = last(&states.flatten_from(2)?, &h.flatten_from(1)?, &lengths)?;
    Ok((blank(y, &lengths)?, next.reshape(h.shape())?))
}
