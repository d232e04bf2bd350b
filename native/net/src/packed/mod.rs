//! The form of a network that runs on one CPU core.

use crate::net::Net;
use crate::{Error, Result};

/// The numbers of packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// 32 bits.
    F32,
}

/// A network that runs: packed weights, and the memory of all values between layers.
#[derive(Debug)]
pub struct Packed {
    weights: Vec<f32>,
    arena: Vec<f32>,
}

impl Packed {
    /// Packs a network.
    pub fn new(_net: &Net, _storage: Storage) -> Result<Packed> {
        Ok(Packed { weights: vec![], arena: vec![] })
    }

    /// Bytes of the values between layers.
    pub fn arena_bytes(&self) -> usize {
        size_of_val(&*self.arena)
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        size_of_val(&*self.weights)
    }

    /// Runs the network on one sample.
    pub fn run(&mut self, _inputs: &[&[f32]], _output: &mut [f32]) -> Result<()> {
        Err(Error::not_found("a packed network"))
    }
}
