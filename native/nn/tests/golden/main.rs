//! Layers and backbones against PyTorch's float64 vectors: forward, gradient and carried state; backbones of ExPhil
//! against Axon's vectors. Where
//! `SCONCE_TEST_CARD` is set, they also run on the card.

#[path = "../../../ops/tests/common/mod.rs"]
mod common;

mod attention;
mod exphil;
mod exphil_ssm;
mod gated;
mod layers;
mod mamba;
mod matrix;
