//! Attention over a sliding window, composed of candle's ops.

use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor};

use crate::Result;
use crate::attention::cache::Cache;
use crate::attention::window::{CHUNK, Pairing, Window};
use crate::lengths::{Lengths, blank};
use crate::matmul::composed::product;
use crate::rotary::composed::turn;

pub(super) fn softmax(x: &Tensor) -> Result<Tensor> {
    // A row of minus infinities gives zeros.
    let most = x.detach().max_keepdim(D::Minus1)?.maximum(f32::MIN)?;
    let e = x.broadcast_sub(&most)?.exp()?;
    let sum = e.sum_keepdim(D::Minus1)?;
    let nothing = sum.detach().eq(0f32)?.to_dtype(x.dtype())?;
    Ok(e.broadcast_div(&(sum + nothing)?)?)
}

pub(super) fn masked_softmax(x: &Tensor, mask: Arc<[bool]>) -> Result<Tensor> {
    let mask = mask.iter().map(|&wanted| u8::from(wanted));
    softmax_of(x, &Tensor::from_iter(mask, x.device())?.reshape(x.shape())?)
}

/// The softmax over the entries where `wanted` is not 0; the others become 0.
fn softmax_of(x: &Tensor, wanted: &Tensor) -> Result<Tensor> {
    let out = Tensor::new(f32::NEG_INFINITY, x.device())?.to_dtype(x.dtype())?;
    softmax(&wanted.where_cond(x, &out.broadcast_as(x.shape())?)?)
}

/// Attention, and the cache after the sequence if it is wanted.
pub(super) fn attend(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
    cached: bool,
) -> Result<(Tensor, Option<Cache>)> {
    let pass = Pass::of(qkv, cache, window, &lengths)?;
    let mixed = pass.by_chunk(|begin| {
        let weights = pass.weights(begin)?;
        let values = pass.values.narrow(1, begin, weights.dim(3)?)?;
        Ok(product(&weights, &pass.heads(&values)?)?)
    })?;
    let y = mixed.transpose(1, 2)?.flatten_from(2)?;
    let next = cached.then(|| pass.append(cache, &lengths)).transpose()?;
    Ok((blank(y, &lengths)?, next))
}

pub(super) fn attention_weights(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
) -> Result<Tensor> {
    let pass = Pass::of(&qkv.detach(), cache, window, &lengths)?;
    let weights = pass.by_chunk(|begin| {
        let weights = pass.weights(begin)?;
        let ages = pass.ages(weights.dim(2)?)?;
        let ages =
            ages.broadcast_as((pass.batch, window.heads(), weights.dim(2)?, ages.dim(1)?))?;
        Ok(weights.gather(&ages.contiguous()?, 3)?)
    })?;
    let by_frame = weights.transpose(1, 2)?;
    let held = blank(by_frame.flatten_from(2)?, &lengths)?.reshape(by_frame.shape())?;
    Ok(held.transpose(1, 2)?.contiguous()?.detach())
}

/// The inputs of one call: the frames that a cache can hold, in order, followed by those of the sequence. The query of
/// frame t is therefore at place `window + t`.
struct Pass<'a> {
    window: &'a Window,
    batch: usize,
    time: usize,
    /// Queries `[b, t, heads * head_dim]`.
    queries: Tensor,
    /// Keys `[b, window + t, heads * head_dim]`, 0 in frames that do not exist.
    keys: Tensor,
    values: Tensor,
    /// Keys and values from the cache; frames that do not exist hold arbitrary data.
    rings: [Tensor; 2],
    /// Mask of the frames that exist, `[b, 1, 1, window + t]`.
    present: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl<'a> Pass<'a> {
    fn of(qkv: &Tensor, cache: &Cache, window: &'a Window, lengths: &Lengths) -> Result<Pass<'a>> {
        let [batch, time] = window.check(qkv, cache, lengths)?;
        let (d, size, device) = (window.width(), window.frames(), qkv.device());
        // Place j holds frame `seen - window + j` of a game, which lies in slot `(seen + j) % window`. `seen` stays on
        // its device: it is neither read back nor checked.
        let seen = cache.seen.detach().to_dtype(DType::F32)?;
        let places = seen.broadcast_add(&count(size, device)?)?;
        let slots = modulo(&places, size)?;
        let known = places.ge(size as f32)?;
        let present = Tensor::cat(&[known, Tensor::ones((batch, time), DType::U8, device)?], 1)?;
        let qkv = blank(qkv.clone(), lengths)?;
        let part = |part| qkv.narrow(2, part * d, d);
        let frames = |ring: &Tensor, own| -> Result<Tensor> {
            Ok(Tensor::cat(&[pick(ring, &slots)?, part(own)?], 1)?)
        };
        let rings = [frames(&cache.keys, 1)?, frames(&cache.values, 2)?];
        let [cos, sin] = window.rotations(device)?.map(|table| table.to_dtype(qkv.dtype()));
        Ok(Pass {
            window,
            batch,
            time,
            queries: part(0)?,
            keys: hold(&rings[0], &present)?,
            values: hold(&rings[1], &present)?,
            rings,
            present: present.reshape((batch, 1, 1, size + time))?,
            cos: cos?,
            sin: sin?,
        })
    }

    /// `f(first query)` of each chunk, concatenated along the queries `[b, heads, t, ..]`.
    fn by_chunk(&self, f: impl Fn(usize) -> Result<Tensor>) -> Result<Tensor> {
        let chunks = (0..self.time).step_by(CHUNK).map(f).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&chunks, 2)?)
    }

    /// Weights of the chunk that starts with query `begin`, `[b, heads, queries, window + queries]`.
    fn weights(&self, begin: usize) -> Result<Tensor> {
        let (n, size) = (CHUNK.min(self.time - begin), self.window.frames());
        let queries = self.turned(&self.queries.narrow(1, begin, n)?, size)?;
        let keys = self.turned(&self.keys.narrow(1, begin, size + n)?, 0)?;
        let scores = (product(&queries, &keys.t()?)? * f64::from(self.window.scale()))?;
        let seen = self.present.narrow(3, begin, size + n)?.broadcast_mul(&self.sees(n)?)?;
        softmax_of(&scores, &seen.broadcast_as(scores.shape())?)
    }

    /// Mask of the places that each of n queries sees, `[n, window + n]`.
    fn sees(&self, n: usize) -> Result<Tensor> {
        let size = self.window.frames();
        let sees =
            (0..n).flat_map(|i| (0..size + n).map(move |j| u8::from(i < j && j <= size + i)));
        Ok(Tensor::from_iter(sees, self.cos.device())?.reshape((n, size + n))?)
    }

    /// Places of the frames that n queries see, by age, `[n, window]`.
    fn ages(&self, n: usize) -> Result<Tensor> {
        let size = self.window.frames();
        let places = (0..n).flat_map(|i| (0..size).map(move |age| (size + i - age) as u32));
        Ok(Tensor::from_iter(places, self.cos.device())?.reshape((n, size))?)
    }

    /// `[b, n, heads * head_dim]` -> `[b, heads, n, head_dim]`.
    fn heads(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, n, _) = x.dims3()?;
        Ok(x.reshape((batch, n, self.window.heads(), ()))?.transpose(1, 2)?.contiguous()?)
    }

    /// Heads as [`heads`](Self::heads) returns them, rotated by positions from `first` on.
    fn turned(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        let x = self.heads(x)?;
        let (n, half) = (x.dim(2)?, x.dim(3)? / 2);
        let (cos, sin) = (self.cos.narrow(0, first, n)?, self.sin.narrow(0, first, n)?);
        let (a, b) = match self.window.pairing() {
            Pairing::Half => (x.narrow(3, 0, half)?, x.narrow(3, half, half)?),
            Pairing::Interleaved => {
                let pairs = x.reshape((self.batch, self.window.heads(), n, half, 2))?;
                (pairs.narrow(4, 0, 1)?.squeeze(4)?, pairs.narrow(4, 1, 1)?.squeeze(4)?)
            }
        };
        turn(&a, &b, &cos, &sin)
    }

    /// The cache after the sequence.
    fn append(&self, cache: &Cache, lengths: &Lengths) -> Result<Cache> {
        let (size, device) = (self.window.frames(), self.cos.device());
        let length = |row| lengths.as_ref().map_or(self.time, |lengths| lengths[row]) as f32;
        let frames = Tensor::from_iter((0..self.batch).map(length), device)?.unsqueeze(1)?;
        let seen = (cache.seen.detach().to_dtype(DType::F32)? + &frames)?;
        // The last frames of a row start at place `frames`; `behind` is the distance from there to a slot's frame.
        let behind = modulo(&count(size, device)?.broadcast_sub(&seen)?, size)?;
        let places = behind.broadcast_add(&frames)?;
        let [keys, values] = &self.rings;
        let wrapped = (modulo(&seen, size)? + size as f64)?;
        Ok(Cache {
            keys: pick(keys, &places)?,
            values: pick(values, &places)?,
            seen: seen
                .lt(size as f32)?
                .where_cond(&seen, &wrapped)?
                .to_dtype(cache.seen.dtype())?,
        })
    }
}

/// The integers `0..n`, `[1, n]`.
fn count(n: usize, device: &Device) -> Result<Tensor> {
    Ok(Tensor::arange(0f32, n as f32, device)?.unsqueeze(0)?)
}

/// Integers modulo `n`, in `0..n`.
fn modulo(x: &Tensor, n: usize) -> Result<Tensor> {
    // The offset 0.5 keeps the quotient away from integers, so its rounding error has no effect.
    let times = ((x + 0.5)? / n as f64)?.floor()?;
    Ok((x - (times * n as f64)?)?)
}

/// Frames of `x [b, n, d]` at the places `[b, m]`.
fn pick(x: &Tensor, places: &Tensor) -> Result<Tensor> {
    let (batch, n) = places.dims2()?;
    let places = places.to_dtype(DType::U32)?.unsqueeze(2)?;
    let places = places.broadcast_as((batch, n, x.dim(2)?))?;
    Ok(x.contiguous()?.gather(&places.contiguous()?, 1)?)
}

/// `x [b, n, d]`, with zeros where `wanted [b, n]` is 0.
fn hold(x: &Tensor, wanted: &Tensor) -> Result<Tensor> {
    let wanted = wanted.unsqueeze(2)?.broadcast_as(x.shape())?;
    Ok(wanted.where_cond(x, &x.zeros_like()?)?)
}
