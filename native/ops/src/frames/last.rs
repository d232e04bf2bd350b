//! The last state of a sequence of states.

use candle_core::Tensor;

use super::{card, composed};
use crate::form::Form;
use crate::lengths::{Lengths, check_lengths};
use crate::op::{self, Op, Pass};
use crate::{Result, memory, tape, tensor};

/// For each row of `states [b, t, c]` the state after its last frame, or `first [b, c]` where the row has no frame;
/// `[b, c]`.
pub fn last(states: &Tensor, first: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    let (batch, time, channels) = states.dims3()?;
    tensor::check_shape("first state", &[batch, channels], first.dims())?;
    check_lengths(lengths, batch, time)?;
    let whole = lengths.is_none() && time > 0;
    if whole && !tape::wants(states) {
        return Ok(states.narrow(1, time - 1, 1)?.squeeze(1)?.contiguous()?);
    }
    match Form::of(states) {
        Form::Cpu => {}
        Form::Card if first.dtype() == states.dtype() && lengths.is_some() => {
            return card::last(states, first, lengths);
        }
        Form::Card | Form::Composed => return composed::last(states, first, lengths),
    }
    let ends = lengths.as_ref().map_or_else(|| vec![time; batch], |l| l.to_vec());
    let last = Last { ends, time, channels };
    op::apply(last, &[states, first], (batch, channels))
}

struct Last {
    /// Frames of each row.
    ends: Vec<usize>,
    time: usize,
    channels: usize,
}

impl Last {
    /// The index range of each row in `first` and the output, and that of the row's last state.
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

impl Op for Last {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (states, first) = (inputs[0], inputs[1]);
        let mut y = memory::with_capacity(first.len());
        for (own, end) in self.rows() {
            y.extend_from_slice(end.map_or(&first[own], |end| &states[end]));
        }
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let dy = pass.gradient()?;
        let mut d_states = memory::zeros(pass.inputs[0].len());
        let mut d_first = memory::zeros(pass.inputs[1].len());
        for (own, end) in self.rows() {
            match end {
                Some(end) => d_states[end].copy_from_slice(&dy[own]),
                None => d_first[own.clone()].copy_from_slice(&dy[own]),
            }
        }
        Ok(vec![d_states, d_first])
    }
}
