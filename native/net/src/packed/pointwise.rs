//! A scale, a shift and a function of each number.

use std::ops::Range;

use sconce_tensor::simd::{dispatch, mul_add, sigmoid_with, tanh_with};

use crate::packed::values::Value;
use crate::spec::Function;

/// `f(scale x + shift)` by channel.
pub(crate) struct Pointwise {
    pub(crate) scale_and_shift: Option<[Range<usize>; 2]>,
    pub(crate) function: Function,
}

impl Pointwise {
    pub(crate) fn run(
        &self,
        weights: &[f32],
        (xs, x): (&Value, &[f32]),
        (ys, y): (&Value, &mut [f32]),
    ) {
        for row in 0..xs.size.rows {
            let y = &mut y[ys.row(row)];
            y.copy_from_slice(&x[xs.row(row)]);
            if let Some([scale, shift]) = &self.scale_and_shift {
                affine(y, &weights[scale.clone()], &weights[shift.clone()]);
            }
            apply(self.function, y);
        }
    }
}

dispatch! {
    fn affine(y: &mut [f32], scale: &[f32], shift: &[f32]) {
        for y in y.chunks_exact_mut(scale.len()) {
            for ((y, scale), shift) in y.iter_mut().zip(scale).zip(shift) {
                *y = mul_add::<FMA>(*y, *scale, *shift);
            }
        }
    }
}

/// Whether a convolution cannot apply a function by itself.
pub(crate) fn apart(function: Function) -> bool {
    !matches!(function, Function::None | Function::Relu | Function::Relu6)
}

/// Applies a function to all rows of a value.
pub(crate) fn apply_to(function: Function, (ys, y): (&Value, &mut [f32])) {
    for row in 0..ys.size.rows {
        apply(function, &mut y[ys.row(row)]);
    }
}

fn apply(function: Function, y: &mut [f32]) {
    match function {
        Function::None => {}
        Function::Relu => cut(y, 0.0, f32::INFINITY),
        Function::Relu6 => cut(y, 0.0, 6.0),
        Function::Sigmoid => sigmoid(y),
        Function::Tanh => tanh(y),
        Function::Silu => silu(y),
        Function::Gelu => gelu(y),
        Function::HardSwish => hard_swish(y),
    }
}

dispatch! {
    fn cut(y: &mut [f32], low: f32, high: f32) {
        for y in y {
            // Comparisons keep NaN.
            *y = if *y < low { low } else { *y };
            *y = if *y > high { high } else { *y };
        }
    }
}

dispatch! {
    fn sigmoid(y: &mut [f32]) {
        for y in y {
            *y = sigmoid_with::<FMA>(*y);
        }
    }
}

dispatch! {
    fn tanh(y: &mut [f32]) {
        for y in y {
            *y = tanh_with::<FMA>(*y);
        }
    }
}

dispatch! {
    fn silu(y: &mut [f32]) {
        for y in y {
            *y *= sigmoid_with::<FMA>(*y);
        }
    }
}

dispatch! {
    fn gelu(y: &mut [f32]) {
        for y in y {
            // x / 2 (1 + tanh u) is x sigmoid(2 u).
            let x = *y;
            *y = x * sigmoid_with::<FMA>(1.595_769 * (x + 0.044_715 * x * x * x));
        }
    }
}

dispatch! {
    fn hard_swish(y: &mut [f32]) {
        for y in y {
            let gate = *y + 3.0;
            let gate = if gate < 0.0 { 0.0 } else { gate };
            *y *= if gate > 6.0 { 1.0 } else { gate / 6.0 };
        }
    }
}
