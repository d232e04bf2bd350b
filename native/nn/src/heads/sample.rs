//! Choices of independent heads that stay on the card, by `sample.cu`.

use sconce_cuda::kernels::SAMPLE;
use sconce_tensor::{Device, Tensor};

use crate::device::launch::Launch;
use crate::rng::Rng;
use crate::spec::{Heads, HeadsKind};
use crate::{Error, Result};

/// Threads of a block.
const THREADS: usize = 128;

/// Kinds of heads that the kernel supports, by their numbers in heads.cuh: classes, numbers, a value.
const KINDS: [i32; 3] = [1, 2, 3];

/// Independent heads as the kernels of a card read them.
#[derive(Debug)]
pub struct CardHeads {
    /// Kind, first logit, number of logits and first label of each head, i32 `[heads, 4]`.
    pub places: Tensor,
    /// Options of the plain likelihood, and the least and the largest label, of each head, `[heads, 6]`.
    pub terms: Tensor,
    /// Number of heads.
    pub heads: usize,
    /// Numbers of all logits and of all labels.
    pub widths: [usize; 2],
}

/// The columns that choices fill, on a card.
#[derive(Debug)]
pub struct Chosen<'a> {
    /// Labels, `[n, num_labels]`.
    pub labels: &'a Tensor,
    /// Log-likelihoods of the labels in nats, `[n]`.
    pub log_likelihoods: &'a Tensor,
    /// Values, `[n]`; not written without a value head.
    pub values: &'a Tensor,
    /// `[1]`; a logit that is not finite is written to it.
    pub fault: &'a Tensor,
}

impl CardHeads {
    /// The heads of a Spec on a card.
    ///
    /// # Errors
    /// `Unavailable` for heads that read each other's choices, with a prior, or of bits.
    pub fn new(spec: &Heads, device: &Device) -> Result<Self> {
        let refused = |what: &str| {
            let reason = "kernels choose for independent heads of classes and of numbers".into();
            Err(Error::Unavailable { what: format!("{what} that choose on a card"), reason })
        };
        if spec.kind != HeadsKind::Independent {
            return refused("autoregressive heads");
        }
        if spec.prior {
            return refused("heads with a prior");
        }
        let (mut places, mut terms) = (vec![], vec![]);
        for part in spec.iter() {
            let kind = part.head.kind;
            let Some(number) = kind.on_card().filter(|number| KINDS.contains(number)) else {
                return refused("heads of bits");
            };
            let own = [part.logits, kind.logits(), part.labels];
            places.push(number);
            places.extend(own.map(|place| place as i32));
            // Scale, smoothing, focal exponent and weight at the edge.
            terms.extend([1.0, 0.0, 0.0, 1.0, kind.least(), kind.largest()]);
        }
        let heads = spec.parts.len();
        Ok(CardHeads {
            places: Tensor::from_vec(places, (heads, 4), device)?,
            terms: Tensor::from_vec(terms, (heads, 6), device)?,
            heads,
            widths: [spec.num_logits(), spec.num_labels()],
        })
    }

    /// Draws an action for each row of logits `[n, num_logits]`. Row `i` has the random numbers of step `first + i` of
    /// the stream, as [`Heads::act`](super::Heads::act) draws them with such a generator.
    ///
    /// # Errors
    /// `Mismatch` for tensors of other sizes; those of a launch.
    pub fn choose(&self, logits: &Tensor, rng: Rng, first: u64, to: &Chosen<'_>) -> Result<()> {
        let [num_logits, num_labels] = self.widths;
        let n = logits.dim(0)?;
        for (what, expected, got) in [
            ("logits", n * num_logits, logits),
            ("labels", n * num_labels, to.labels),
            ("log-likelihoods", n, to.log_likelihoods),
            ("values", n, to.values),
            ("fault", 1, to.fault),
        ] {
            if got.elem_count() != expected {
                return Err(Error::mismatch(what, expected, got.elem_count()));
            }
        }
        let [key0, key1, ..] = rng.words();
        let launch = Launch::of(SAMPLE, "sample", logits)?.tensor(logits)?.tensor(&self.places)?;
        let launch = launch.tensor(&self.terms)?.tensor(to.labels)?.tensor(to.log_likelihoods)?;
        let launch = launch.tensor(to.values)?.tensor(to.fault)?.long(n).int(self.heads);
        let launch = launch.int(num_logits).int(num_labels).word(key0).word(key1);
        let launch = launch.long(first as usize);
        // SAFETY: a thread for each row, and columns of the sizes that sample.cu requires.
        Ok(unsafe { launch.run([n.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?)
    }
}
