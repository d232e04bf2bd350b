//! The state that a sequence of states ends with.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::Result;
use crate::memory;
use crate::ops::lengths::{Lengths, check_lengths};
use crate::ops::{composed, tensor};

/// `[b, c]`: of each row of `states [b, t, c]` the one after its last frame, or `first [b, c]` where a
/// row has no frame.
pub fn last(states: &Tensor, first: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    let (batch, time, channels) = states.dims3()?;
    tensor::check_shape("first state", &[batch, channels], first.dims())?;
    check_lengths(lengths, batch, time)?;
    if lengths.is_none() && time > 0 {
        return Ok(states.narrow(1, time - 1, 1)?.squeeze(1)?.contiguous()?);
    }
    if composed::wanted(states) {
        return composed::frames::last(states, first, lengths);
    }
    let ends = lengths.as_ref().map_or_else(|| vec![time; batch], |l| l.to_vec());
    let last = Last { ends, time, channels };
    Ok(states.contiguous()?.apply_op2(&first.contiguous()?, last)?)
}

struct Last {
    /// Frames of each row.
    ends: Vec<usize>,
    time: usize,
    channels: usize,
}

impl Last {
    /// For each row its own numbers, and where its end lies among the states.
    fn rows(
        &self,
    ) -> impl Iterator<Item = (std::ops::Range<usize>, Option<std::ops::Range<usize>>)> {
        let (time, c) = (self.time, self.channels);
        self.ends.iter().enumerate().map(move |(row, &end)| {
            let at = end.checked_sub(1).map(|t| (row * time + t) * c);
            (row * c..(row + 1) * c, at.map(|at| at..at + c))
        })
    }
}

impl CustomOp2 for Last {
    fn name(&self) -> &'static str {
        "last"
    }

    fn cpu_fwd(
        &self,
        states: &CpuStorage,
        sl: &Layout,
        first: &CpuStorage,
        fl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (states, first) = (tensor::slice(states, sl)?, tensor::slice(first, fl)?);
        let mut y = memory::with_capacity(first.len());
        for (own, end) in self.rows() {
            y.extend_from_slice(end.map_or(&first[own], |end| &states[end]));
        }
        Ok((CpuStorage::F32(y), Shape::from((self.ends.len(), self.channels))))
    }

    fn bwd(
        &self,
        states: &Tensor,
        first: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let mut d_states = memory::zeros(states.elem_count());
        let mut d_first = memory::zeros(first.elem_count());
        tensor::with(dy, |dy| {
            for (own, end) in self.rows() {
                match end {
                    Some(end) => d_states[end].copy_from_slice(&dy[own]),
                    None => d_first[own.clone()].copy_from_slice(&dy[own]),
                }
            }
            Ok(())
        })?;
        let d_states = tensor::tensor(d_states, states.shape())?;
        Ok((Some(d_states), Some(tensor::tensor(d_first, first.shape())?)))
    }
}
