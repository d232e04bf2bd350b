//! Ops by kernels of ours, on an NVIDIA card: `native/cuda/kernels` has them, this launches them.
//!
//! 1. A function has the name, the arguments and the result of its [`composed`](super::composed) one, which calls it
//!    where it is [`wanted`], and stays what it is compared with.
//! 2. A launch depends on sizes alone. Lengths, seeds and the like lie on the card, so that what was captured once as a
//!    graph may be played again, and nothing is read back.
//! 3. All work on a card is in the order of its one stream: nothing waits for another.

mod attention;
mod gemm;
mod launch;
mod linear_recurrence;
mod norm;
mod op;
mod rows;
mod selective_scan;
mod wkv;

pub(in crate::ops) use attention::{attention, attention_of_last, has_heads_of};
pub(in crate::ops) use gemm::linear;
pub(in crate::ops) use linear_recurrence::{
    constant_recurrence, diagonal_ssm, hgrn, linear_recurrence, min_gru, min_lstm, rg_lru,
};
pub(in crate::ops) use norm::row_norm;
pub(in crate::ops) use selective_scan::{MOST_STATES, selective_scan};
pub(in crate::ops) use wkv::wkv;

pub(crate) use launch::{place_of, unwritten};
pub(crate) use rows::{answer_rows, copy_words, gather_rows, put_rows, upload};

use candle_core::{DType, Tensor};

use crate::Result;
use crate::ops::lengths::Lengths;

/// Whether an op of this tensor is a kernel's.
pub fn wanted(x: &Tensor) -> bool {
    x.device().is_cuda() && matches!(x.dtype(), DType::F32 | DType::BF16)
}

/// Frames of each row on the card, i32 `[b]`; nothing where all have all.
pub(in crate::ops) fn lengths_on_card(lengths: &Lengths, x: &Tensor) -> Result<Option<Tensor>> {
    let Some(lengths) = lengths else { return Ok(None) };
    let lengths: Vec<i32> = lengths.iter().map(|&n| i32::try_from(n).unwrap_or(i32::MAX)).collect();
    Ok(Some(Tensor::from_slice(&lengths, lengths.len(), x.device())?))
}
