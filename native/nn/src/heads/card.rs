//! Choices of autoregressive heads, made on the card.

use sconce_cuda::kernels::DECIDE;
use sconce_tensor::candle::Result;
use sconce_tensor::{DType, Tensor};

use crate::device::launch::{Launch, pointer, unwritten};
use crate::head::{HeadKind, NONE, to_word};
use crate::rng::Rng;
use crate::sampling::{Draw, Sampling};
use crate::spec::Heads;
use crate::weights::Weight;

/// Threads of a block, maximum width of a stream, and maximum number of logits of a head. decide.cu defines the same
/// constants.
const THREADS: usize = 256;
const STREAM: usize = 2048;
const LOGITS: usize = 1024;

/// Kinds of heads that the kernel supports, by their numbers in heads.cuh.
const BITS: i32 = 0;
const CLASSES: i32 = 1;

/// Number of u32 words that hold the drawing options of a row.
const DRAW: usize = 8;

/// A head: the offsets of its first logit and first label, and its weights as in `heads/mod.rs`.
pub(crate) struct Head {
    pub kind: HeadKind,
    pub first: [usize; 2],
    pub decode: Weight,
    pub bias: Weight,
    pub encode: Option<Weight>,
    pub prior: Option<Weight>,
}

/// The heads in the form that the kernel takes.
pub(crate) struct Table {
    /// Eight i64 words for each head.
    words: Tensor,
    heads: usize,
    stream: usize,
    logits: usize,
    labels: usize,
}

impl Table {
    /// True if the kernel supports the kinds and sizes of the heads.
    pub(crate) fn takes(spec: &Heads) -> bool {
        let takes = |kind: HeadKind| match kind.on_card() {
            Some(BITS | CLASSES) => kind.logits() <= LOGITS,
            _ => false,
        };
        spec.stream_size <= STREAM && spec.parts.iter().all(|head| takes(head.kind))
    }

    /// A table of the heads of a spec, in order. The weights of the heads must live as long as the table.
    pub(crate) fn new(spec: &Heads, heads: &[Head], beside: &Tensor) -> Result<Self> {
        let place =
            |weight: Option<&Weight>| Result::Ok(weight.map_or(Ok(0), |w| pointer(w))? as i64);
        let mut words = vec![];
        for Head { kind, first, decode, bias, encode, prior } in heads {
            words.extend([place(Some(decode))?, place(Some(bias))?]);
            words.extend([place(encode.as_ref())?, place(prior.as_ref())?, kind.logits() as i64]);
            words.push(i64::from(kind.on_card() == Some(CLASSES)));
            words.extend(first.map(|first| first as i64));
        }
        Ok(Table {
            words: Tensor::from_slice(&words, words.len(), beside.device())?,
            heads: heads.len(),
            stream: spec.stream_size,
            logits: spec.num_logits(),
            labels: spec.num_labels(),
        })
    }
}

/// Inputs of the decision of each row, except the streams. All inputs are u32.
pub(crate) struct Rows {
    /// Previous labels `[n, num_labels]`; `given` has the same shape.
    previous: Tensor,
    given: Tensor,
    /// `[n, DRAW]`
    draws: Tensor,
}

impl Rows {
    /// Inputs of `rows` rows, zero until they are written.
    pub(crate) fn zeros(rows: usize, num_labels: usize, beside: &Tensor) -> Result<Self> {
        let of = |width: usize| Tensor::zeros((rows, width), DType::U32, beside.device());
        Ok(Rows { previous: of(num_labels)?, given: of(num_labels)?, draws: of(DRAW)? })
    }

    /// Uploads the inputs of `rows` rows from words in the order of [`row_words`].
    pub(crate) fn of(
        words: &[u32],
        rows: usize,
        num_labels: usize,
        beside: &Tensor,
    ) -> Result<Self> {
        let mut at = 0;
        let mut next = |width: usize| {
            let own = &words[at..at + rows * width];
            at += rows * width;
            Tensor::from_slice(own, (rows, width), beside.device())
        };
        Ok(Rows { previous: next(num_labels)?, given: next(num_labels)?, draws: next(DRAW)? })
    }

    /// The tensors, in the order of [`row_words`].
    pub(crate) fn tensors(&self) -> [&Tensor; 3] {
        [&self.previous, &self.given, &self.draws]
    }
}

/// Appends the words of all rows: previous labels (no label if `previous` is empty), given labels, and drawing options.
/// Each draw has one row.
pub(crate) fn row_words(
    draws: &[Draw<'_>],
    previous: &[f32],
    num_labels: usize,
    words: &mut Vec<u32>,
) {
    let word = |label: &f32| u32::from(to_word(*label));
    let none = std::iter::repeat_n(word(&NONE), num_labels);
    match previous.is_empty() {
        true => draws.iter().for_each(|_| words.extend(none.clone())),
        false => words.extend(previous.iter().map(word)),
    }
    for draw in draws {
        match draw.given {
            Some(given) => words.extend(given.iter().map(word)),
            None => words.extend(none.clone()),
        }
    }
    draws.iter().for_each(|draw| words.extend(drawn_by(draw.sampling, draw.rngs.first())));
}

fn drawn_by(sampling: &Sampling, rng: Option<&Rng>) -> [u32; DRAW] {
    let [key0, key1, step0, step1] = rng.map_or([0; 4], Rng::words);
    let flags = u32::from(sampling.deterministic) | u32::from(sampling.deterministic_buttons) << 1;
    let [temperature, press, release] =
        [sampling.temperature, sampling.press_threshold, sampling.release_threshold]
            .map(f32::to_bits);
    [key0, key1, step0, step1, temperature, press, release, flags]
}

/// Decides on streams `[n, size]`. Returns `[n, num_logits + num_labels]`: logits, then labels as f32.
pub(crate) fn decide(table: &Table, streams: &Tensor, rows: &Rows) -> Result<Tensor> {
    let (n, streams) = (streams.dim(0)?, streams.contiguous()?);
    let out = unwritten((n, table.logits + table.labels), DType::F32, &streams)?;
    let launch = Launch::of(DECIDE, "decide", &streams)?.tensor(&streams)?.tensor(&table.words)?;
    let launch = launch.tensor(&rows.previous)?.tensor(&rows.given)?.tensor(&rows.draws)?;
    let launch = launch.tensor(&out)?.int(table.heads).int(table.stream);
    let launch = launch.int(table.logits).int(table.labels);
    // SAFETY: one block for each row, and heads of supported sizes, as decide.cu requires.
    unsafe { launch.run([n, 1, 1], [THREADS, 1, 1], 0) }?;
    Ok(out)
}
