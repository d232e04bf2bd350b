//! Activations, gates, dropout, skips.
