//! Layers and backbones against PyTorch's float64 vectors: forward, gradient and carried state. Forms of ExPhil against
//! what Axon computed. Where
//! `SCONCE_TEST_CARD` is set, they also run on the card.

#[path = "../../../ops/tests/common/mod.rs"]
mod common;

mod attention;
mod exphil;
mod gated;
mod layers;
mod mamba;
mod matrix;
