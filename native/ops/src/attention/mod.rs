//! Causal attention over a sliding window, including the rotation of queries and keys.

pub(crate) mod cache;
mod card;
mod composed;
#[cfg(any(test, feature = "flash-attn"))]
pub(crate) mod flash;
mod pass;
mod residual;
pub mod softmax;
mod tiles;
pub(crate) mod window;

use std::sync::Arc;

pub use cache::{Cache, count_on, frames_seen};
use candle_core::Tensor;
pub use residual::{Projections, attention_residual};
pub use softmax::{masked_softmax, softmax};
pub use tiles::exponentials;
pub use window::{Pairing, THETA, Window};

use self::pass::{Append, Attend, Part, Pass};
use self::tiles::weights_of_head;
use crate::form::Form;
use crate::lengths::Lengths;
use crate::{Error, Result, memory, op, tape, tensor};

/// `softmax(rotate(q) rotate(k)^T / sqrt(head_dim)) v` of each head, and the cache after the sequence
/// (Vaswani et al. 2017, eq. 1; RoPE: Su et al. 2021, eq. 34; the window: Beltagy et al. 2020).
///
/// `qkv [b, t, 3 * heads * head_dim]` holds queries, keys and values, each head after head; the result is `[b, t, heads
/// * head_dim]`. The query of frame t sees the frames s with `0 <= t - s < window`, including those in the cache.
///
/// Scores exist for one block of queries at a time. The forward pass saves the logarithm of each softmax's denominator;
/// the backward pass recomputes the scores from it (Dao et al. 2022).
pub fn attention(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
) -> Result<(Tensor, Cache)> {
    match attend(qkv, cache, window, lengths, true)? {
        (y, Some(cache)) => Ok((y, cache)),
        (_, None) => Err(Error::not_found("the cache after a sequence")),
    }
}

/// [`attention()`], and the cache after the sequence if `cached`.
pub fn attend(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
    cached: bool,
) -> Result<(Tensor, Option<Cache>)> {
    match Form::of(qkv) {
        Form::Cpu => {}
        Form::Card if card::has_heads_of(window) => {
            return card::attention(qkv, cache, window, &lengths, cached);
        }
        Form::Card | Form::Composed => {
            return composed::attend(qkv, cache, window, lengths, cached);
        }
    }
    let pass = Arc::new(Pass::of(qkv, cache, window, lengths)?);
    let qkv = tape::contiguous(qkv)?;
    let [keys, values] = pass.rings(cache)?;
    let shape = (pass.batch, pass.time, window.width());
    let op = Attend { pass: pass.clone(), log_sums: vec![] };
    let y = op::apply(op, &[&qkv, &keys, &values], shape)?;
    Ok((y, cached.then(|| append(&pass, &qkv, cache)).transpose()?))
}

/// The cache after the sequence.
fn append(pass: &Arc<Pass>, qkv: &Tensor, cache: &Cache) -> Result<Cache> {
    let append = |ring: &Tensor, part| {
        op::apply(Append { pass: pass.clone(), part }, &[ring, qkv], ring.shape())
    };
    let (keys, values) = (append(&cache.keys, Part::Keys)?, append(&cache.values, Part::Values)?);
    Ok(Cache { keys, values, seen: pass.seen_after()? })
}

/// Computes [`attention()`] for only the last query of each row, `[b, 1, heads * head_dim]`, and if `cached` the cache
/// after the sequence. If a gradient may be needed, this computes all queries and slices the last.
pub fn attention_of_last(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    cached: bool,
) -> Result<(Tensor, Option<Cache>)> {
    let form = Form::of(qkv);
    let wants = [qkv, &cache.keys, &cache.values].into_iter().any(tape::wants);
    if form == Form::Card && card::has_heads_of(window) && !wants {
        return card::attention_of_last(qkv, cache, window, cached);
    }
    if form != Form::Cpu || wants {
        let (y, cache) = attend(qkv, cache, window, None, cached)?;
        return Ok((y.narrow(1, y.dim(1)? - 1, 1)?, cache));
    }
    let pass = Arc::new(Pass::of(qkv, cache, window, None)?);
    let qkv = qkv.contiguous()?;
    let [keys, values] = pass.rings(cache)?;
    let y = tensor::with_all(&[qkv.clone(), keys, values], |all| Ok(pass.of_last(all)))?;
    let y = tensor::tensor(y, (pass.batch, 1, window.width()))?;
    Ok((y, cached.then(|| append(&pass, &qkv, cache)).transpose()?))
}

/// The weights that [`attention`] gives to the frames a query sees, `[b, heads, t, window]`. The last index is the age
/// of the frame; age 0 is the query's own frame. For inspection: slow, and not part of any graph.
pub fn attention_weights(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
) -> Result<Tensor> {
    if Form::of(qkv) != Form::Cpu {
        return composed::attention_weights(qkv, cache, window, lengths);
    }
    let pass = Pass::of(qkv, cache, window, lengths)?;
    let (t, heads, size) = (pass.time, window.heads, window.window);
    let mut weights = memory::zeros(pass.batch * heads * t * size);
    tensor::with(qkv, |qkv| {
        tensor::with(&cache.keys, |keys| {
            for (at, weights) in weights.chunks_exact_mut(t * size).enumerate() {
                // The weights do not depend on values, so keys replace them.
                let row = pass.row(at / heads, qkv, keys, keys);
                weights_of_head(window, &row, at % heads, weights);
            }
            Ok(())
        })
    })?;
    Ok(tensor::tensor(weights, (pass.batch, heads, t, size))?)
}
