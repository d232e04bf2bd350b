//! Elementwise functions, and products of one branch with a gate.

pub(crate) mod card;
pub mod clip;
pub(crate) mod composed;
pub mod glu;
pub mod skip;

use std::mem::MaybeUninit;

use candle_core::Tensor;

use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::simd::{dispatch, exp_with, mul_add, sigmoid, softplus, tanh_with};
use crate::uninit::copy;
use crate::{Result, memory, pool, tensor};

/// Values of one shard.
const SHARD: usize = 1 << 14;

/// An elementwise function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x`.
    None,
    /// `max(x, 0)`.
    Relu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `x sigmoid(x)` (Elfwing et al. 2018).
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))` (Hendrycks & Gimpel 2016), the tanh form.
    Gelu,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `max(x, 0)^2` (So et al. 2021).
    SquaredRelu,
    /// `x Phi(x)` with the distribution function Phi of the standard normal (Hendrycks & Gimpel 2016), the exact form.
    GeluErf,
}

/// `sqrt(2 / pi)`.
const GELU: f32 = 0.797_884_6;
const CUBE: f32 = 0.044_715;

/// Computes a relu that keeps NaN; `f32::max` would turn NaN into 0.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn silu_slope(x: f32) -> f32 {
    let s = sigmoid(x);
    s * (1.0 + x * (1.0 - s))
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    // x / 2 (1 + tanh u) is x sigmoid(2 u).
    x * sigmoid(2.0 * GELU * (x + CUBE * x * x * x))
}

#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let s = sigmoid(2.0 * GELU * (x + CUBE * x * x * x));
    s + x * s * (1.0 - s) * 2.0 * GELU * (1.0 + 3.0 * CUBE * x * x)
}

/// Coefficients of a polynomial in `t = 1 / (1 + 0.38 z)` for `exp(z^2) erfc(z) / t`, lowest degree first. Its relative
/// error over 0..12 is at most 2.1e-8.
const ERFC: [f32; 9] = [
    0.214_411_87,
    0.213_905_04,
    0.204_002,
    0.138_299_33,
    0.230_803_88,
    -0.162_531_2,
    0.364_756_64,
    -0.262_696_68,
    0.059_049_163,
];

/// Phi(x) with an error near 1e-7, and `e^(-x^2 / 2)`. For a negative x the error is relative.
#[inline(always)]
fn normal<const FMA: bool>(x: f32) -> (f32, f32) {
    let t = 1.0 / (1.0 + 0.38 * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
    let mut p = 0.0;
    for c in ERFC.iter().rev() {
        p = mul_add::<FMA>(p, t, *c);
    }
    let bell = exp_with::<FMA>(-0.5 * x * x);
    let tail = 0.5 * p * t * bell;
    (if x < 0.0 { tail } else { 1.0 - tail }, bell)
}

#[inline(always)]
fn gelu_erf_slope<const FMA: bool>(x: f32) -> f32 {
    /// `1 / sqrt(2 pi)`.
    const DENSITY: f32 = 0.398_942_3;
    let (phi, bell) = normal::<FMA>(x);
    phi + x * bell * DENSITY
}

macro_rules! each {
    ($name:ident, $fill:ident, $slope:ident, $both:ident, |$x:ident| $f:expr, $d:expr) => {
        dispatch! {
            fn $name(y: &mut [f32]) {
                for v in y.iter_mut() {
                    let $x = *v;
                    *v = $f;
                }
            }
        }
        dispatch! {
            fn $fill(y: &mut [MaybeUninit<f32>], x: &[f32]) {
                for (y, &$x) in y.iter_mut().zip(x) {
                    y.write($f);
                }
            }
        }
        dispatch! {
            fn $slope(dy: &mut [f32], x: &[f32]) {
                for (d, &$x) in dy.iter_mut().zip(x) {
                    *d *= $d;
                }
            }
        }
        dispatch! {
            fn $both(dy: &mut [f32], x: &mut [f32]) {
                for (d, v) in dy.iter_mut().zip(x) {
                    let $x = *v;
                    *d *= $d;
                    *v = $f;
                }
            }
        }
    };
}

each!(relu_, relu_fill, relu_d, relu_both, |x| relu(x), if x > 0.0 { 1.0 } else { 0.0 });
each!(sigmoid_, sigmoid_fill, sigmoid_d, sigmoid_both, |x| sigmoid(x), {
    let s = sigmoid(x);
    s * (1.0 - s)
});
each!(tanh_, tanh_fill, tanh_d, tanh_both, |x| tanh_with::<FMA>(x), {
    let t = tanh_with::<FMA>(x);
    1.0 - t * t
});
each!(silu_, silu_fill, silu_d, silu_both, |x| x * sigmoid(x), silu_slope(x));
each!(gelu_, gelu_fill, gelu_d, gelu_both, |x| gelu(x), gelu_slope(x));
each!(softplus_, softplus_fill, softplus_d, softplus_both, |x| softplus(x), sigmoid(x));
each!(
    squared_relu_,
    squared_relu_fill,
    squared_relu_d,
    squared_relu_both,
    |x| relu(x) * relu(x),
    2.0 * relu(x)
);
each!(
    gelu_erf_,
    gelu_erf_fill,
    gelu_erf_d,
    gelu_erf_both,
    |x| x * normal::<FMA>(x).0,
    gelu_erf_slope::<FMA>(x)
);

dispatch! {
    /// Computes `dy *= slope` from the output of a sigmoid.
    fn sigmoid_from_output(dy: &mut [f32], y: &[f32]) {
        for (d, y) in dy.iter_mut().zip(y) {
            *d *= y * (1.0 - y);
        }
    }
}

dispatch! {
    /// Computes `dy *= slope` from the output of a tanh.
    fn tanh_from_output(dy: &mut [f32], y: &[f32]) {
        for (d, y) in dy.iter_mut().zip(y) {
            *d *= 1.0 - y * y;
        }
    }
}

dispatch! {
    /// `y[i] *= x[i]`.
    pub fn multiply(y: &mut [f32], x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y *= x;
        }
    }
}

impl Activation {
    /// Whether the slope depends on the input and not on the output alone.
    pub fn needs_input(self) -> bool {
        matches!(
            self,
            Activation::Silu
                | Activation::Gelu
                | Activation::Softplus
                | Activation::SquaredRelu
                | Activation::GeluErf
        )
    }

    /// `y = activation(y)`, in place.
    pub fn apply(self, y: &mut [f32]) {
        match self {
            Activation::None => {}
            Activation::Relu => relu_(y),
            Activation::Sigmoid => sigmoid_(y),
            Activation::Tanh => tanh_(y),
            Activation::Silu => silu_(y),
            Activation::Gelu => gelu_(y),
            Activation::Softplus => softplus_(y),
            Activation::SquaredRelu => squared_relu_(y),
            Activation::GeluErf => gelu_erf_(y),
        }
    }

    /// Writes `y = activation(x)` into uninitialised memory of the same length; returns it as initialised.
    pub(crate) fn fill<'a>(self, y: &'a mut [MaybeUninit<f32>], x: &[f32]) -> &'a mut [f32] {
        assert_eq!(y.len(), x.len(), "length of activations");
        match self {
            Activation::None => copy(y, x),
            Activation::Relu => relu_fill(y, x),
            Activation::Sigmoid => sigmoid_fill(y, x),
            Activation::Tanh => tanh_fill(y, x),
            Activation::Silu => silu_fill(y, x),
            Activation::Gelu => gelu_fill(y, x),
            Activation::Softplus => softplus_fill(y, x),
            Activation::SquaredRelu => squared_relu_fill(y, x),
            Activation::GeluErf => gelu_erf_fill(y, x),
        }
        // SAFETY: the lengths are equal, so every value was written.
        unsafe { std::slice::from_raw_parts_mut(y.as_mut_ptr().cast(), y.len()) }
    }

    /// Multiplies `dy` by the slope at `x`, in place.
    pub fn backward(self, dy: &mut [f32], x: &[f32]) {
        match self {
            Activation::None => {}
            Activation::Relu => relu_d(dy, x),
            Activation::Sigmoid => sigmoid_d(dy, x),
            Activation::Tanh => tanh_d(dy, x),
            Activation::Silu => silu_d(dy, x),
            Activation::Gelu => gelu_d(dy, x),
            Activation::Softplus => softplus_d(dy, x),
            Activation::SquaredRelu => squared_relu_d(dy, x),
            Activation::GeluErf => gelu_erf_d(dy, x),
        }
    }

    /// Multiplies `dy` by the slope at `x`, and replaces `x` by the output.
    pub(crate) fn backward_and_apply(self, dy: &mut [f32], x: &mut [f32]) {
        match self {
            Activation::None => {}
            Activation::Relu => relu_both(dy, x),
            Activation::Sigmoid => sigmoid_both(dy, x),
            Activation::Tanh => tanh_both(dy, x),
            Activation::Silu => silu_both(dy, x),
            Activation::Gelu => gelu_both(dy, x),
            Activation::Softplus => softplus_both(dy, x),
            Activation::SquaredRelu => squared_relu_both(dy, x),
            Activation::GeluErf => gelu_erf_both(dy, x),
        }
    }

    /// Multiplies `dy` by the slope, computed from the output `y`; see [`needs_input`](Self::needs_input).
    pub(crate) fn backward_from_output(self, dy: &mut [f32], y: &[f32]) {
        match self {
            // The output of a relu is positive exactly where its input is.
            Activation::Relu => relu_d(dy, y),
            Activation::Sigmoid => sigmoid_from_output(dy, y),
            Activation::Tanh => tanh_from_output(dy, y),
            _ => debug_assert!(!self.needs_input(), "the slope of {self:?} needs its input"),
        }
    }
}

/// `activation(x)`, of any shape.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::activate(x, activation),
        Form::Composed => return composed::activate(x, activation),
    }
    op::apply(Activate(activation), &[x], x.shape())
}

struct Activate(Activation);

impl Op for Activate {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let mut y = memory::copied(inputs[0]);
        pool::for_each_rows(&mut y, 1, SHARD, |_, y| self.0.apply(y));
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, mut dx) = (pass.inputs[0], memory::copied(pass.gradient()?));
        pool::for_each_rows(&mut dx, 1, SHARD, |first, dx| {
            self.0.backward(dx, &x[first..first + dx.len()]);
        });
        Ok(vec![dx])
    }
}

/// `x * activation(gate)`, of one shape (Dauphin et al. 2017; Shazeer 2020).
pub fn gated(x: &Tensor, gate: &Tensor, activation: Activation) -> Result<Tensor> {
    tensor::check_shape("gate", x.dims(), gate.dims())?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::gated(x, gate, activation),
        Form::Composed => return composed::gated(x, gate, activation),
    }
    op::apply(Gated(activation), &[x, gate], x.shape())
}

struct Gated(Activation);

impl Op for Gated {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, mut y) = (inputs[0], memory::copied(inputs[1]));
        pool::for_each_rows(&mut y, 1, SHARD, |first, y| {
            self.0.apply(y);
            multiply(y, &x[first..first + y.len()]);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, gate, dy) = (pass.inputs[0], pass.inputs[1], pass.gradient()?);
        let (mut dx, mut dg) = (memory::copied(gate), memory::copied(dy));
        pool::for_each_rows(&mut dx, 1, SHARD, |first, dx| {
            self.0.apply(dx);
            multiply(dx, &dy[first..first + dx.len()]);
        });
        pool::for_each_rows(&mut dg, 1, SHARD, |first, dg| {
            let span = first..first + dg.len();
            multiply(dg, &x[span.clone()]);
            self.0.backward(dg, &gate[span]);
        });
        Ok(vec![dx, dg])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_written_elsewhere_have_the_bits_of_values_in_place() {
        use Activation::*;
        let x: Vec<f32> = (0..50).map(|i| (i as f32 - 25.0) * 0.3).collect();
        for activation in [None, Relu, Sigmoid, Tanh, Silu, Gelu, Softplus, SquaredRelu, GeluErf] {
            let mut expected = x.clone();
            activation.apply(&mut expected);
            let mut y = memory::with_capacity(x.len());
            let y = activation.fill(&mut y.spare_capacity_mut()[..x.len()], &x);
            assert_eq!(y, expected, "{activation:?}");
        }
    }
}
