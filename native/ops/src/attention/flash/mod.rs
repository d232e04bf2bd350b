//! Conditions under which attention uses the kernels of flash attention.

#[cfg(feature = "flash-attn")]
pub(super) mod card;

use candle_core::{DType, Tensor};

use super::{Cache, Window};
use crate::Precision;

/// Head sizes for which there are kernels.
const HEADS: [usize; 3] = [32, 64, 128];
/// The most rows of a batch, and the most heads.
const MOST: usize = 65_535;

/// The 16-bit type in which flash attention takes queries, keys and values `[b, t, 3 * heads * head_dim]`; `None` where
/// the op uses its own kernels: where a gradient may be needed, where the cache holds frames, where the window slides
/// within the sequence, and where products have the precision of f32.
pub(crate) fn numbers(qkv: &Tensor, cache: &Cache, window: &Window) -> Option<DType> {
    let &[batch, time, _] = qkv.dims() else { return None };
    let tracked = [qkv, &cache.keys, &cache.values].into_iter().any(Tensor::track_op);
    let fits = (2..=window.frames()).contains(&time)
        && HEADS.contains(&window.head_dim)
        && batch.max(window.heads) <= MOST
        && qkv.dtype() == DType::F32
        && cache.is_blank()
        && !tracked;
    match Precision::current() {
        Precision::Bf16 if fits => Some(DType::BF16),
        Precision::F16 if fits => Some(DType::F16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::super::{Pairing, THETA};
    use super::*;

    /// A window from heads, head_dim and frames.
    fn window([heads, head_dim, frames]: [usize; 3]) -> Window {
        Window::new(heads, head_dim, frames, Pairing::Half, THETA).unwrap()
    }

    fn qkv(batch: usize, time: usize, window: &Window) -> Tensor {
        Tensor::zeros((batch, time, 3 * window.width()), DType::F32, &Device::Cpu).unwrap()
    }

    /// Whether `[heads, head_dim, window]` is accepted in bf16.
    fn taken(sizes: [usize; 3], time: usize) -> bool {
        let window = window(sizes);
        let (qkv, cache) = (qkv(2, time, &window), Cache::empty(&window, 2).unwrap());
        Precision::Bf16.during(|| numbers(&qkv, &cache, &window)).is_some()
    }

    #[test]
    fn a_window_from_the_first_frame_is_accepted_in_the_precision_of_products() {
        let window = window([4, 64, 60]);
        let (qkv, cache) = (qkv(128, 60, &window), Cache::empty(&window, 128).unwrap());
        for (precision, expected) in [
            (Precision::F32, None),
            (Precision::Bf16, Some(DType::BF16)),
            (Precision::F16, Some(DType::F16)),
        ] {
            assert_eq!(precision.during(|| numbers(&qkv, &cache, &window)), expected);
        }
    }

    #[test]
    fn heads_and_frames_without_a_kernel_are_rejected() {
        for head_dim in [32, 64, 128] {
            assert!(taken([2, head_dim, 60], 60));
        }
        for head_dim in [16, 48, 96, 256] {
            assert!(!taken([2, head_dim, 60], 60));
        }
        assert!(taken([2, 64, 60], 2) && taken([2, 64, 600], 512));
        // Rejected: a single frame, and a sliding window.
        assert!(!taken([2, 64, 60], 1) && !taken([2, 64, 60], 61));
        assert!(!taken([65_536, 32, 2], 2));
    }

    #[test]
    fn inputs_with_a_gradient_or_cached_frames_are_rejected() {
        let window = window([4, 64, 60]);
        let (qkv, empty) = (qkv(1, 60, &window), Cache::empty(&window, 1).unwrap());
        let of = |qkv: &Tensor, cache: &Cache| {
            Precision::Bf16.during(|| numbers(qkv, cache, &window)).is_some()
        };
        assert!(of(&qkv, &empty));
        let variable = Var::from_tensor(&qkv).unwrap();
        assert!(!of(&variable, &empty) && !of(&(variable.as_tensor() * 2.0).unwrap(), &empty));
        assert!(of(&variable.detach(), &empty));

        let ring = Tensor::zeros((1, 60, 256), DType::F32, &Device::Cpu).unwrap();
        let begun = Cache { keys: ring.clone(), values: ring, seen: empty.seen.clone() };
        assert!(!of(&qkv, &begun));
        assert!(!of(&qkv.to_dtype(DType::BF16).unwrap(), &empty));
    }
}
