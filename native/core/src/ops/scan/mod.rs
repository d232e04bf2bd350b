//! Recurrences that are linear in their state, channel by channel.
//!
//! What belongs here walks `h_t = a_t * h_{t-1} + b_t` over a sequence; where the state of a head is a
//! matrix, see [`super::matrix_state`], where it goes through a product and a tanh, [`super::recurrent`].

pub mod linear_recurrence;
pub mod lower_bound;
pub mod mamba;
pub mod selective_scan;
pub mod wkv;

pub use linear_recurrence::{diagonal_ssm, hgrn, linear_recurrence, min_gru, min_lstm, rg_lru};
pub use lower_bound::lower_bound;
pub use mamba::{MambaWeights, mamba, mamba_residual};
pub use selective_scan::{Selective, selective_scan};
pub use wkv::{Wkv, wkv};
