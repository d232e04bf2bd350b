//! The cells: the gate and the addend of a channel as functions of its inputs in a frame, and their
//! backward pass.

use crate::simd::{expm1_with, sigmoid, sigmoid_with, softplus_with};

/// Gradients through one frame of one channel, from the gradient `g` of the new state.
pub struct Gradient<const N: usize, const K: usize> {
    /// The gate `a`; the gradient of the previous state is `a g`.
    pub a: f32,
    /// Gradients of the inputs.
    pub inputs: [f32; N],
    /// Gradients of the parameters.
    pub parameters: [f32; K],
}

/// One channel of a cell with N inputs per frame and K parameters.
pub trait Cell<const N: usize, const K: usize>: Copy + Send + Sync + 'static {
    /// The name of the cell in errors and of its kernels.
    const NAME: &'static str;

    /// The parameters of a channel: functions of its weights, computed once and not once per frame.
    fn parameters(self, weights: [f32; K]) -> [f32; K] {
        weights
    }

    /// The gradient of the weights, from the gradient of the parameters.
    fn weights_backward(self, _weights: [f32; K], d: [f32; K]) -> [f32; K] {
        d
    }

    /// The gate and the addend, from inputs x and parameters p.
    fn gates<const FMA: bool>(self, x: [f32; N], p: [f32; K]) -> (f32, f32);

    /// The gradients through one frame; `g` is the gradient of the new state, `h` the previous
    /// state.
    fn backward<const FMA: bool>(self, x: [f32; N], p: [f32; K], h: f32, g: f32) -> Gradient<N, K>;
}

/// The inputs are the gate and the addend.
#[derive(Clone, Copy)]
pub struct Plain;

impl Cell<2, 0> for Plain {
    const NAME: &'static str = "linear-recurrence";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [a, b]: [f32; 2], _: [f32; 0]) -> (f32, f32) {
        (a, b)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [a, _]: [f32; 2],
        _: [f32; 0],
        h: f32,
        g: f32,
    ) -> Gradient<2, 0> {
        Gradient { a, inputs: [g * h, g], parameters: [] }
    }
}

/// The gate is a weight, the addend the input.
#[derive(Clone, Copy)]
pub struct Constant;

impl Cell<1, 1> for Constant {
    const NAME: &'static str = "linear-recurrence-constant";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [b]: [f32; 1], [a]: [f32; 1]) -> (f32, f32) {
        (a, b)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        _: [f32; 1],
        [a]: [f32; 1],
        h: f32,
        g: f32,
    ) -> Gradient<1, 1> {
        Gradient { a, inputs: [g], parameters: [g * h] }
    }
}

/// The cell of [`min_gru`](super::min_gru()).
#[derive(Clone, Copy)]
pub struct MinGru;

impl Cell<2, 0> for MinGru {
    const NAME: &'static str = "min-gru";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [z, c]: [f32; 2], _: [f32; 0]) -> (f32, f32) {
        let z = sigmoid_with::<FMA>(z);
        (1.0 - z, z * c)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [z, c]: [f32; 2],
        _: [f32; 0],
        h: f32,
        g: f32,
    ) -> Gradient<2, 0> {
        let z = sigmoid_with::<FMA>(z);
        Gradient { a: 1.0 - z, inputs: [g * (c - h) * z * (1.0 - z), g * z], parameters: [] }
    }
}

/// The cell of [`min_lstm`](super::min_lstm()).
#[derive(Clone, Copy)]
pub struct MinLstm {
    /// Added to the sum of the gates, so that it is never 0.
    pub eps: f32,
}

impl Cell<3, 0> for MinLstm {
    const NAME: &'static str = "min-lstm";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [f, i, c]: [f32; 3], _: [f32; 0]) -> (f32, f32) {
        let (f, i) = (sigmoid_with::<FMA>(f), sigmoid_with::<FMA>(i));
        let scale = 1.0 / (f + i + self.eps);
        (f * scale, i * scale * c)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [f, i, c]: [f32; 3],
        _: [f32; 0],
        h: f32,
        g: f32,
    ) -> Gradient<3, 0> {
        let (f, i) = (sigmoid_with::<FMA>(f), sigmoid_with::<FMA>(i));
        let scale = 1.0 / (f + i + self.eps);
        let (keep, take) = (f * scale, i * scale);
        // d keep / d ln f = keep (1 - keep), d take / d ln f = -keep take, and likewise for i.
        let df = g * (h * (1.0 - keep) - c * take) * keep;
        let di = g * (c * (1.0 - take) - h * keep) * take;
        Gradient { a: keep, inputs: [df * (1.0 - f), di * (1.0 - i), g * take], parameters: [] }
    }
}

/// The cell of [`rg_lru`](super::rg_lru()).
#[derive(Clone, Copy)]
pub struct RgLru;

impl RgLru {
    /// The constant `c` of the paper.
    pub const POWER: f32 = 8.0;

    /// `(a, sqrt(1 - a^2))` from `log a`, without cancellation for `a` near 1.
    #[inline(always)]
    fn decay<const FMA: bool>(log_a: f32) -> (f32, f32) {
        let less = expm1_with::<FMA>(log_a);
        (1.0 + less, (-less * (2.0 + less)).sqrt())
    }
}

impl Cell<3, 1> for RgLru {
    const NAME: &'static str = "rg-lru";

    /// `log a` at r = 1.
    fn parameters(self, [lambda]: [f32; 1]) -> [f32; 1] {
        [-Self::POWER * softplus_with::<false>(-lambda)]
    }

    fn weights_backward(self, [lambda]: [f32; 1], [d]: [f32; 1]) -> [f32; 1] {
        [d * Self::POWER * sigmoid(-lambda)]
    }

    #[inline(always)]
    fn gates<const FMA: bool>(self, [r, i, x]: [f32; 3], [p]: [f32; 1]) -> (f32, f32) {
        let (a, keep) = Self::decay::<FMA>(sigmoid_with::<FMA>(r) * p);
        (a, keep * sigmoid_with::<FMA>(i) * x)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [r, i, x]: [f32; 3],
        [p]: [f32; 1],
        h: f32,
        g: f32,
    ) -> Gradient<3, 1> {
        let (r, i) = (sigmoid_with::<FMA>(r), sigmoid_with::<FMA>(i));
        let (a, keep) = Self::decay::<FMA>(r * p);
        // d keep / d log a = -a^2 / keep; at a = 1 keep is 0, and no gradient reaches the decay.
        let slope = a * a / keep.max(1e-18);
        let d_log_a = g * (h * a - i * x * slope);
        let d_i = g * keep * x;
        let inputs = [d_log_a * p * r * (1.0 - r), d_i * i * (1.0 - i), g * keep * i];
        Gradient { a, inputs, parameters: [d_log_a * r] }
    }
}

/// The cell of [`hgrn`](super::hgrn()).
#[derive(Clone, Copy)]
pub struct Hgrn;

impl Cell<3, 1> for Hgrn {
    const NAME: &'static str = "hgrn";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [f, i, v]: [f32; 3], [bound]: [f32; 1]) -> (f32, f32) {
        (
            bound + (1.0 - bound) * sigmoid_with::<FMA>(f),
            sigmoid_with::<FMA>(i) * v * sigmoid_with::<FMA>(v),
        )
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [f, i, v]: [f32; 3],
        [bound]: [f32; 1],
        h: f32,
        g: f32,
    ) -> Gradient<3, 1> {
        let (f, i, s) = (sigmoid_with::<FMA>(f), sigmoid_with::<FMA>(i), sigmoid_with::<FMA>(v));
        let df = g * h;
        let inputs = [
            df * (1.0 - bound) * f * (1.0 - f),
            g * v * s * i * (1.0 - i),
            g * i * s * (1.0 + v * (1.0 - s)),
        ];
        Gradient { a: bound + (1.0 - bound) * f, inputs, parameters: [df * (1.0 - f)] }
    }
}

/// The cell of [`diagonal_ssm`](super::diagonal_ssm()).
#[derive(Clone, Copy)]
pub struct Diagonal;

impl Cell<1, 2> for Diagonal {
    const NAME: &'static str = "diagonal-ssm";

    fn parameters(self, [a_log, dt_log]: [f32; 2]) -> [f32; 2] {
        let rate = a_log.exp();
        let less = (-rate * dt_log.exp()).exp_m1();
        [1.0 + less, -less / rate]
    }

    fn weights_backward(self, [a_log, dt_log]: [f32; 2], [da, dscale]: [f32; 2]) -> [f32; 2] {
        let (rate, dt) = (f64::from(a_log).exp(), f64::from(dt_log).exp());
        let (da, dscale) = (f64::from(da), f64::from(dscale));
        let decay = rate * dt;
        let (a, less) = ((-decay).exp(), (-decay).exp_m1());
        let d_rate = -da * dt * a + dscale * (decay * a + less) / (rate * rate);
        let d_dt = -da * rate * a + dscale * a;
        [(d_rate * rate) as f32, (d_dt * dt) as f32]
    }

    #[inline(always)]
    fn gates<const FMA: bool>(self, [u]: [f32; 1], [a, scale]: [f32; 2]) -> (f32, f32) {
        (a, scale * u)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [u]: [f32; 1],
        [a, scale]: [f32; 2],
        h: f32,
        g: f32,
    ) -> Gradient<1, 2> {
        Gradient { a, inputs: [g * scale], parameters: [g * h, g * u] }
    }
}
