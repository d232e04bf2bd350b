//! The loss on a card, by `ppo.cu`.

use sconce_cuda::kernels::PPO;
use sconce_nn::heads::CardHeads;
use sconce_nn::spec::Heads;
use sconce_tensor::device::launch::{Launch, overwrite, unwritten};
use sconce_tensor::{DType, Device, Result, Tensor};
use sconce_train::objective::add_parts;

use super::{Normalise, SUMS, Terms};
use crate::heads::Choosing;
use crate::segment::CardSegment;

/// Threads of a block, and rows of a part, as in ppo.cu.
const THREADS: usize = 256;
const ROWS: usize = 32;

/// The loss of frames of a segment on a card, and the sums of the last batch.
pub(crate) struct CardLoss {
    heads: CardHeads,
    /// Factors on the loss of set bits, which no head here has, `[num_logits]`.
    pos_weights: Tensor,
    /// Index of the value among the logits.
    value: usize,
    /// Clip, clip of values (negative: none), weights of value and entropy, f64.
    weights: Tensor,
    normalise: Normalise,
    /// Mean and inverse deviation of the advantages of a batch, f64.
    moments: Tensor,
    totals: Tensor,
}

impl CardLoss {
    /// The loss over `heads` on a card.
    ///
    /// # Errors
    /// `Mismatch` for heads without a value; those of [`CardHeads::new`].
    pub(crate) fn new(heads: &Heads, device: &Device) -> Result<Self> {
        let (value, n) = (Choosing::of(heads)?.value, heads.num_logits());
        let numbers = |n: usize| Tensor::from_vec(vec![0f64; n], n, device);
        Ok(CardLoss {
            heads: CardHeads::new(heads, device)?,
            pos_weights: Tensor::from_vec(vec![1f32; n], n, device)?,
            value,
            weights: numbers(4)?,
            normalise: Normalise::default(),
            moments: numbers(2)?,
            totals: numbers(SUMS)?,
        })
    }

    /// Sets the terms of the next batches.
    pub(crate) fn set(&mut self, terms: Terms) -> Result<()> {
        self.normalise = terms.normalise;
        let clip = terms.value_clip.unwrap_or(-1.0);
        let weights = [terms.clip, clip, terms.value_weight, terms.entropy_weight];
        Ok(overwrite(&self.weights, &weights)?)
    }

    /// Sums of the last batch on the card, f64, in the order of [`Clipped`](super::Clipped)'s.
    pub(crate) fn totals(&self) -> &Tensor {
        &self.totals
    }

    /// Launches the loss of the frames `order` (u32 `[n]`) of a segment, whose logits are `[n, num_logits]`. Returns its
    /// gradient at the logits.
    pub(crate) fn gradient(
        &self,
        logits: &Tensor,
        segment: &CardSegment,
        order: &Tensor,
    ) -> Result<Tensor> {
        let n = logits.dim(0)?;
        self.launch_moments(&segment.advantages, order)?;
        let gradient = unwritten(logits.shape(), DType::F32, logits)?;
        let parts = unwritten((n.div_ceil(ROWS), SUMS), DType::F64, logits)?;
        let [num_logits, num_labels] = self.heads.widths;
        let launch = Launch::of(PPO, "ppo_loss", logits)?.tensor(logits)?;
        let launch = launch.tensor(&segment.labels)?.tensor(&segment.log_likelihoods)?;
        let launch = launch.tensor(&segment.values)?.tensor(&segment.advantages)?;
        let launch = launch.tensor(&segment.targets)?.tensor(order)?.tensor(&self.heads.places)?;
        let launch = launch.tensor(&self.heads.terms)?.tensor(&self.pos_weights)?;
        let launch = launch.tensor(&self.weights)?.tensor(&self.moments)?.tensor(&gradient)?;
        let launch = launch.tensor(&parts)?.long(n).int(self.heads.heads).int(num_logits);
        let launch = launch.int(num_labels).int(self.value);
        // SAFETY: a block for each part, and frames that the segment has, as ppo.cu requires.
        unsafe { launch.run([n.div_ceil(ROWS), 1, 1], [THREADS, 1, 1], 0) }?;
        add_parts(&parts, &self.totals, false)?;
        Ok(gradient)
    }

    fn launch_moments(&self, advantages: &Tensor, order: &Tensor) -> Result<()> {
        // Rows that a deviation subtracts from their count.
        let freedom = match self.normalise {
            Normalise::None => -1,
            Normalise::Sample => 1,
            Normalise::Population => 0i32,
        };
        let launch = Launch::of(PPO, "ppo_moments", order)?.tensor(advantages)?.tensor(order)?;
        let launch = launch.tensor(&self.moments)?.long(order.elem_count()).word(freedom as u32);
        // SAFETY: one block, and frames that the segment has, as ppo.cu requires.
        Ok(unsafe { launch.run([1; 3], [THREADS, 1, 1], 0) }?)
    }
}
