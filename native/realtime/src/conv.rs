//! A causal depthwise convolution, one frame at a time.

use std::ops::Range;

use sconce_core::Result;
use sconce_core::ops::Activation;

use crate::arena::Packer;

/// `f(bias + sum of weight * x)` over each channel's last k inputs, as `sconce_core::ops::causal_conv`.
pub struct Conv {
    /// `[c, k]`
    weight: Range<usize>,
    /// `[c]`
    bias: Range<usize>,
    kernel: usize,
    activation: Activation,
}

impl Conv {
    /// Of the weights `NAME.weight` and `NAME.bias`.
    pub fn new(packer: &mut Packer, name: &str, activation: Activation) -> Result<Self> {
        let weight = packer.keep(&format!("{name}.weight"))?;
        let bias = packer.keep(&format!("{name}.bias"))?;
        let kernel = weight.len() / bias.len().max(1);
        Ok(Conv { weight, bias, kernel, activation })
    }

    /// Of the last inputs, `[c, k - 1]`.
    pub fn state_len(&self) -> usize {
        self.bias.len() * (self.kernel - 1)
    }

    /// `x [c]` becomes what comes out; the state takes in what was there.
    pub fn step(&self, arena: &[f32], x: &mut [f32], state: &mut [f32]) {
        let (weight, bias) = (&arena[self.weight.clone()], &arena[self.bias.clone()]);
        let before = self.kernel - 1;
        for (c, (x, bias)) in x.iter_mut().zip(bias).enumerate() {
            let (state, weight) = (&mut state[c * before..][..before], &weight[c * self.kernel..]);
            let past: f32 = state.iter().zip(weight).map(|(x, w)| x * w).sum();
            let now = *x;
            *x = bias + past + now * weight[before];
            if let Some(last) = before.checked_sub(1) {
                state.copy_within(1.., 0);
                state[last] = now;
            }
        }
        self.activation.apply(x);
    }
}
