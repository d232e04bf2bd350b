//! Sizes of an attention, and its table of rotations.

use std::sync::Mutex;

use candle_core::{Device, Tensor};

use crate::simd::LANES;
use crate::{Error, Result, tensor};

/// The pairs of elements of a head that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Pairs `(i, i + head_dim / 2)`.
    Half,
    /// Pairs `(2i, 2i + 1)`.
    Interleaved,
}

/// The base of the angles in Su et al. 2021.
pub const THETA: f64 = 10_000.0;

/// Sizes of an attention, and its table of rotations. A window is built once and used in every pass.
#[derive(Debug)]
pub struct Window {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    /// Frames that a query sees, including its own.
    pub(super) window: usize,
    pub(super) pairing: Pairing,
    /// Cosines of the angles `position * theta^(-2i / head_dim)`, `[positions, head_dim / 2]`; `sin` has the sines.
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
    /// Copies of both tables on the devices that have used them.
    pub(super) on_devices: Mutex<Vec<[Tensor; 2]>>,
}

/// Queries that share one copy of the keys they see. Positions are counted from the first of these keys, so the table
/// ends at `window + CHUNK`, and angles stay small in a long game.
pub(crate) const CHUNK: usize = 64;

impl Window {
    /// Shape of the stored table.
    pub fn table(head_dim: usize, window: usize) -> [usize; 2] {
        [window.saturating_add(CHUNK), head_dim]
    }

    /// Sizes of an attention and its table of rotations; `window` counts the frames that a query sees, `theta` is the
    /// base of the angles.
    ///
    /// # Errors
    /// `Mismatch` for no heads, an empty window, or an odd `head_dim`.
    pub fn new(
        heads: usize,
        head_dim: usize,
        window: usize,
        pairing: Pairing,
        theta: f64,
    ) -> Result<Self> {
        for (name, n) in [("heads", heads), ("window", window)] {
            if n == 0 {
                return Err(Error::mismatch(format!("{name} of an attention"), "at least 1", n));
            }
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(Error::mismatch("head_dim of an attention", "an even number", head_dim));
        }
        let half = head_dim / 2;
        let angles = (0..(window + CHUNK) * half).map(|at| {
            let (position, i) = ((at / half) as f64, (at % half) as f64);
            position * theta.powf(-2.0 * i / head_dim as f64)
        });
        let (cos, sin) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        let on_devices = Mutex::default();
        Ok(Window { heads, head_dim, window, pairing, cos, sin, on_devices })
    }

    /// Sizes of an attention that turns no queries and keys: it sees the order of frames only in what they hold.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn without_positions(heads: usize, head_dim: usize, window: usize) -> Result<Self> {
        let turned = Window::new(heads, head_dim, window, Pairing::Half, THETA)?;
        let (cos, sin) = (vec![1.0; turned.cos.len()], vec![0.0; turned.sin.len()]);
        Ok(Window { cos, sin, ..turned })
    }

    /// Width of the queries of all heads side by side; the keys and the values have the same width.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Frames that a query sees, including its own.
    pub fn frames(&self) -> usize {
        self.window
    }

    /// The factor of scores, `1 / sqrt(head_dim)`.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Cosines and sines of a position, `[head_dim / 2]` each.
    #[inline(always)]
    pub fn rotation(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.head_dim / 2;
        (&self.cos[position * half..][..half], &self.sin[position * half..][..half])
    }

    /// The number of heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// The pairs of elements that are rotated together.
    pub fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// Cosines and sines of all positions, `[positions, head_dim / 2]`, cached on the device.
    pub(crate) fn rotations(&self, device: &Device) -> Result<[Tensor; 2]> {
        let mut made = self.on_devices.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(tables) = made.iter().find(|[cos, _]| cos.device().same_device(device)) {
            return Ok(tables.clone());
        }
        let half = self.head_dim / 2;
        let table = |x: &[f32]| Tensor::from_slice(x, (x.len() / half, half), device);
        let tables = [table(&self.cos)?, table(&self.sin)?];
        made.push(tables.clone());
        Ok(tables)
    }

    /// Checks the shape of queries, keys and values, and returns `[b, t]`.
    pub(super) fn check_streams(&self, qkv: &Tensor) -> Result<[usize; 2]> {
        let (batch, time, width) = qkv.dims3()?;
        let expected = [batch, time, 3 * self.width()];
        tensor::check_shape("queries, keys and values", &expected, &[batch, time, width])?;
        Ok([batch, time])
    }

    pub(super) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }
}

impl Window {
    /// Computes `out = scale * rotation(position) x`. Pairs are always laid out as halves: scores do not depend on the
    /// order of the elements.
    #[inline(always)]
    pub(super) fn rotate(&self, out: &mut [f32], x: &[f32], position: usize, scale: f32) {
        let (half, (cos, sin)) = (self.head_dim / 2, self.rotation(position));
        let (first, second) = out[..2 * half].split_at_mut(half);
        let out = first.iter_mut().zip(second).zip(cos.iter().zip(sin));
        match self.pairing {
            Pairing::Half => {
                let (first, second) = x[..2 * half].split_at(half);
                for (((p, q), (cos, sin)), (a, b)) in out.zip(first.iter().zip(second)) {
                    *p = (a * cos - b * sin) * scale;
                    *q = (b * cos + a * sin) * scale;
                }
            }
            Pairing::Interleaved => {
                for (((p, q), (cos, sin)), [a, b]) in out.zip(x.as_chunks::<2>().0) {
                    *p = (a * cos - b * sin) * scale;
                    *q = (b * cos + a * sin) * scale;
                }
            }
        }
    }

    /// Computes `dx += scale * rotation(-position) d`, the backward pass of [`Window::rotate`].
    #[inline(always)]
    pub(super) fn rotate_back(&self, dx: &mut [f32], d: &[f32], position: usize, scale: f32) {
        let (half, (cos, sin)) = (self.head_dim / 2, self.rotation(position));
        let (first, second) = d[..2 * half].split_at(half);
        let d = first.iter().zip(second).zip(cos.iter().zip(sin));
        match self.pairing {
            Pairing::Half => {
                let (first, second) = dx[..2 * half].split_at_mut(half);
                for (((p, q), (cos, sin)), (a, b)) in d.zip(first.iter_mut().zip(second)) {
                    *a += (p * cos + q * sin) * scale;
                    *b += (q * cos - p * sin) * scale;
                }
            }
            Pairing::Interleaved => {
                for (((p, q), (cos, sin)), [a, b]) in d.zip(dx.as_chunks_mut::<2>().0) {
                    *a += (p * cos + q * sin) * scale;
                    *b += (q * cos - p * sin) * scale;
                }
            }
        }
    }
}
