//! Ops by kernels of ours, on an NVIDIA card: `native/cuda/kernels` has them, this launches them.
//!
//! 1. A function has the name, the arguments and the result of its op, whose front door calls it where the input is
//!    [`wanted`]. It calls no other form of an op.
//! 2. A launch depends on sizes alone. Lengths, seeds and the like lie on the card, so that what was captured once as a
//!    graph may be played again, and nothing is read back.
//! 3. All work on a card is in the order of its one stream: nothing waits for another.

mod activation;
pub mod adamw;
mod arrange;
mod attention;
mod columns;
mod decide;
mod dense;
mod dropout;
#[cfg(feature = "flash-attn")]
mod flash;
mod frames;
mod gather;
mod gemm;
mod linear_recurrence;
pub mod loss;
mod mamba_step;
mod matrix_state;
mod norm;
mod op;
mod product;
mod recurrent;
mod rows;
mod selective_scan;
mod wkv;

pub(in crate::ops) use activation::{activate, finished, gated, glu, skip};
pub(in crate::ops) use arrange::{join, reshape};
pub(in crate::ops) use attention::{attention, attention_of_last, has_heads_of};
pub(in crate::ops) use dense::{layer, linear_parts};
pub(in crate::ops) use dropout::dropout;
pub(in crate::ops) use frames::{TAPS, causal_conv, last, token_shift};
pub(in crate::ops) use gather::gather;
pub(in crate::ops) use linear_recurrence::{
    constant_recurrence, diagonal_ssm, hgrn, linear_recurrence, min_gru, min_lstm, rg_lru,
};
pub(in crate::ops) use mamba_step::mamba_step;
pub(in crate::ops) use matrix_state::{has_states_of, matrix_state};
pub(in crate::ops) use norm::{group_norm, row_norm};
pub(in crate::ops) use recurrent::{gru, lstm, slstm};
pub(in crate::ops) use selective_scan::{MOST_STATES, selective_scan};
pub(in crate::ops) use wkv::wkv;

pub(crate) use decide::{Head, Rows, Table, decide, row_words};
pub use dropout::counted;
pub(crate) use gather::one_hot;
pub(crate) use rows::end_step;
pub use rows::{Intake, copy};

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
