//! Layers, a file for each kind. A layer maps rows `[n, width]` to rows.

pub(crate) mod attention;
pub(crate) mod dense;
pub(crate) mod min_rnn;
pub(crate) mod mlp;
pub(crate) mod recurrent;
pub(crate) mod stack;
