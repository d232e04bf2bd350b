//! A causal depthwise convolution in steps of one frame.

use std::ops::Range;

use sconce_ops::Activation;
use sconce_ops::weights::Weight;
use sconce_tensor::Result;
use sconce_tensor::simd::dispatch;

use crate::arena::Packer;

/// `f(bias + sum of weight * x)` over the last `k` inputs of each channel; the step form of `sconce_ops::causal_conv`.
pub struct Conv {
    /// `[c, k]`
    weight: Range<usize>,
    /// `[c]`
    bias: Range<usize>,
    kernel: usize,
    activation: Activation,
}

impl Conv {
    /// Packs the weights `weight: [c, 1, k]` and `bias: [c]`.
    pub fn new(
        packer: &mut Packer,
        weight: &Weight,
        bias: &Weight,
        activation: Activation,
    ) -> Result<Self> {
        let (weight, bias) = (packer.keep(weight)?, packer.keep(bias)?);
        let kernel = weight.len() / bias.len().max(1);
        Ok(Conv { weight, bias, kernel, activation })
    }

    /// The length of the state: the last inputs, `[c, k - 1]`.
    pub fn state_len(&self) -> usize {
        self.bias.len() * (self.kernel - 1)
    }

    /// Appends the input `x: [c]` to the state and overwrites `x` with the output.
    pub fn step(&self, arena: &[f32], x: &mut [f32], state: &mut [f32]) {
        let (weight, bias) = (&arena[self.weight.clone()], &arena[self.bias.clone()]);
        match self.kernel {
            // The published kernel width gets loops of constant length.
            4 => convolve(x, bias, weight, state.as_chunks_mut::<3>().0),
            kernel => convolve_any(x, bias, weight, state, kernel),
        }
        self.activation.apply(x);
    }
}

dispatch! {
    fn convolve<[const BEFORE: usize], [BEFORE]>(x: &mut [f32], bias: &[f32], weight: &[f32], state: &mut [[f32; BEFORE]]) {
        let channels = x.iter_mut().zip(bias).zip(weight.chunks_exact(BEFORE + 1));
        for (((x, bias), weight), state) in channels.zip(state) {
            let now = *x;
            *x = bias + now * weight[BEFORE];
            for i in 0..BEFORE {
                *x += state[i] * weight[i];
                state[i] = if i + 1 < BEFORE { state[i + 1] } else { now };
            }
        }
    }
}

dispatch! {
    /// [`convolve`] for any kernel width.
    fn convolve_any(x: &mut [f32], bias: &[f32], weight: &[f32], state: &mut [f32], kernel: usize) {
        let before = kernel - 1;
        for (c, (x, bias)) in x.iter_mut().zip(bias).enumerate() {
            let (state, weight) = (&mut state[c * before..][..before], &weight[c * kernel..]);
            let past: f32 = state.iter().zip(weight).map(|(x, w)| x * w).sum();
            let now = *x;
            *x = bias + past + now * weight[before];
            if let Some(last) = before.checked_sub(1) {
                state.copy_within(1.., 0);
                state[last] = now;
            }
        }
    }
}
