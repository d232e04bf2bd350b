//! Attention by the kernels of flash attention.

use candle_core::cuda_backend::cudarc::driver::sys::CUdeviceptr;
use candle_core::{DType, Tensor};
use sconce_cuda::kernels::{FLASH_ATTENTION_BF16, FLASH_ATTENTION_F16, ROTARY};

use crate::Result;
use crate::attention::window::{Pairing, Window};
use crate::device::launch::{Launch, pointer, unwritten};
use crate::lengths::{Lengths, blank};

/// Threads of a block that rotates queries and keys.
const THREADS: usize = 256;

/// Queries of a block, keys of a tile, and threads of a block, as in flash_attention.cuh.
const QUERIES: usize = 64;
const KEYS: usize = 64;
const FORWARD_THREADS: usize = 128;

/// Attention of f32 `qkv`, outside any graph, for the first frames of games, each of which sees all frames before it.
/// Operands are rounded to the 16-bit type `numbers`, bf16 or f16; sums are f32. As in [`Window`], positions are
/// counted from the first frame.
pub(crate) fn attention(
    qkv: &Tensor,
    window: &Window,
    lengths: &Lengths,
    numbers: DType,
) -> Result<Tensor> {
    let y = forward(&turned(qkv, window, numbers)?, window.scale())?;
    // Frames that do not exist attend to frames that exist, so their outputs are set to 0.
    blank(y.flatten_from(2)?.to_dtype(qkv.dtype())?, lengths)
}

/// `softmax(scale q k^T) v` of each head, causal, `[b, t, heads, head_dim]`, from queries, keys and values `[b, t, 3,
/// heads, head_dim]`: flash attention 2 (Dao 2023).
fn forward(qkv: &Tensor, scale: f32) -> Result<Tensor> {
    let (batch, time, parts, heads, head_dim) = qkv.dims5()?;
    let y = unwritten((batch, time, heads, head_dim), qkv.dtype(), qkv)?;
    let log_sums = unwritten((batch, heads, time), DType::F32, qkv)?;
    let (module, numbers) = match qkv.dtype() {
        DType::BF16 => (FLASH_ATTENTION_BF16, "bf16"),
        _ => (FLASH_ATTENTION_F16, "f16"),
    };
    let kernel = format!("flash_attention_{numbers}_{head_dim}");
    let (first, width) = (pointer(qkv)?, heads * head_dim);
    let bytes = (width * qkv.dtype().size_in_bytes()) as CUdeviceptr;
    let launch = Launch::of(module, &kernel, qkv)?;
    let launch = launch.place(first).place(first + bytes).place(first + 2 * bytes);
    let launch = launch.tensor(&y)?.tensor(&log_sums)?;
    let strides = [time * parts * width, parts * width, head_dim];
    let launch = [strides; 3].into_iter().flatten().fold(launch, Launch::long);
    let launch = [batch, time, heads].into_iter().fold(launch, Launch::int).float(scale);
    let shared = 2 * head_dim * (QUERIES + 2 * KEYS);
    // SAFETY: the arguments are those of flash_attention.cuh, which has kernels for the heads that `attention::flash`
    // admits. The kernel writes every element of `y` and `log_sums`.
    unsafe { launch.run([time.div_ceil(QUERIES), batch, heads], [FORWARD_THREADS, 1, 1], shared) }?;
    Ok(y)
}

/// Rotated queries and keys, and values, `[b, t, 3, heads, head_dim]` in the type `numbers`.
fn turned(qkv: &Tensor, window: &Window, numbers: DType) -> Result<Tensor> {
    let (batch, time, _) = qkv.dims3()?;
    let (heads, head_dim) = (window.heads(), window.head_dim());
    let turned = unwritten((batch, time, 3, heads, head_dim), numbers, qkv)?;
    let kernel = if numbers == DType::BF16 { "rotary_bf16" } else { "rotary_f16" };
    let launch = Launch::of(ROTARY, kernel, qkv)?.tensor(qkv)?;
    let launch = window.rotations(qkv.device())?.iter().try_fold(launch, Launch::tensor)?;
    let launch = launch.tensor(&turned)?.long(batch * time);
    let launch = [time, heads, head_dim].into_iter().fold(launch, Launch::int);
    let launch = launch.int(usize::from(window.pairing() == Pairing::Interleaved));
    let pairs = turned.elem_count() / 2;
    // SAFETY: as rotary.cu requires, a thread for each pair, and the tables have a position for each frame.
    unsafe { launch.run([pairs.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?;
    Ok(turned)
}
