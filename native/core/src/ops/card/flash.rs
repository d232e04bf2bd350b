//! Attention by the kernels of flash attention.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::ROTARY;

use super::launch::{Launch, unwritten};
use crate::Result;
use crate::ops::attention::{Pairing, Window};
use crate::ops::composed::frames::blank;
use crate::ops::lengths::Lengths;

/// Threads of a block.
const THREADS: usize = 256;

/// What attention makes of f32 numbers `qkv`, in no graph, of frames that are the first of their games and of which
/// each sees all before it: by `numbers` of 16 bits, bf16 or f16, whose sums are f32. As [`Window`] has them, positions
/// are counted from the first frame.
pub fn attention(
    qkv: &Tensor,
    window: &Window,
    lengths: &Lengths,
    numbers: DType,
) -> Result<Tensor> {
    let turned = turned(qkv, window, numbers)?;
    let part = |part| turned.narrow(2, part, 1)?.squeeze(2);
    let (queries, keys, values) = (part(0)?, part(1)?, part(2)?);
    let y = candle_flash_attn::flash_attn(&queries, &keys, &values, window.scale(), true)?;
    // Frames that do not exist see those that do.
    blank(y.flatten_from(2)?.to_dtype(qkv.dtype())?, lengths)
}

/// Queries and keys turned by their position, and values, `[b, t, 3, heads, head_dim]` of `numbers`.
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
    // SAFETY: as rotary.cu says: a thread for each pair, and the tables have a position for each frame.
    unsafe { launch.run([pairs.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?;
    Ok(turned)
}
