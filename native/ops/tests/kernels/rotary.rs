//! `rotary.cu` compared with the rotations of a window.

use half::{bf16, f16};
use sconce_ops::attention::{Pairing, THETA, Window};
use sconce_tensor::rng::Rng;

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Element, Memory};

const BATCH: usize = 2;
const TIME: usize = 7;
const HEADS: usize = 3;
const THREADS: usize = 32;

fn kernel_is_the_rotation<T: Element>(kernels: &impl Kernels) {
    for (head_dim, pairing) in [(6, Pairing::Half), (32, Pairing::Interleaved)] {
        let window = Window::new(HEADS, head_dim, TIME, pairing, THETA).unwrap();
        let (half, rng) = (head_dim / 2, Rng::new(1, "qkv", 0));
        let qkv: Vec<f32> =
            (0..(BATCH * TIME * 3 * HEADS * head_dim) as u64).map(|i| rng.normal(i)).collect();
        let mut want = qkv.clone();
        for (row, frame) in want.chunks_exact_mut(3 * HEADS * head_dim).enumerate() {
            let (cos, sin) = window.rotation(row % TIME);
            // Only queries and keys are rotated.
            for head in frame.chunks_exact_mut(head_dim).take(2 * HEADS) {
                for i in 0..half {
                    let (a, b) = match pairing {
                        Pairing::Half => (i, half + i),
                        Pairing::Interleaved => (2 * i, 2 * i + 1),
                    };
                    (head[a], head[b]) =
                        (head[a] * cos[i] - head[b] * sin[i], head[b] * cos[i] + head[a] * sin[i]);
                }
            }
        }

        let table = |of: fn(&Window, usize) -> &[f32]| {
            Memory::<f32>::of(&(0..TIME).flat_map(|t| of(&window, t).to_vec()).collect::<Vec<_>>())
        };
        let mut cos = table(|window, t| window.rotation(t).0);
        let mut sin = table(|window, t| window.rotation(t).1);
        let (mut given, mut out) = (Memory::<f32>::of(&qkv), Memory::<T>::unwritten(qkv.len()));
        let mut arguments = vec![given.argument(), cos.argument(), sin.argument(), out.argument()];
        arguments.push(Long((BATCH * TIME) as i64));
        let interleaved = usize::from(pairing == Pairing::Interleaved);
        arguments.extend([TIME, HEADS, head_dim, interleaved].map(|n| Int(n as i32)));
        let grid = [(qkv.len() / 2).div_ceil(THREADS) as u32, 1, 1];
        let kernel = format!("rotary_{}", T::NAME);
        kernels.launch(&kernel, grid, [THREADS as u32, 1, 1], &mut arguments);
        for (i, (got, want)) in out.read().into_iter().zip(want).enumerate() {
            // The tolerance is half a unit of bf16.
            assert!(
                (got - want).abs() <= 2f32.powi(-8) * want.abs().max(1e-3),
                "{i}: {got}, {want}"
            );
        }
    }
}

#[test]
fn rotated_queries_and_keys_equal_the_cpu() {
    let kernels = Emulated::compile("rotary");
    kernel_is_the_rotation::<bf16>(&kernels);
    kernel_is_the_rotation::<f16>(&kernels);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn rotated_queries_and_keys_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::ROTARY.ptx;
    let kernels = crate::card::Card::open("rotary", ptx);
    kernel_is_the_rotation::<bf16>(&kernels);
    kernel_is_the_rotation::<f16>(&kernels);
}
