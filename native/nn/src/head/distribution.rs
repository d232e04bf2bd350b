//! The interface of a kind of head: a distribution over labels, whose parameters are logits.

use sconce_tensor::{Tensor, tensor};
use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::sampling::Sampling;
use crate::{Result, memory};

/// A distribution over the labels of one head. Its parameters are called logits for every kind of head. Its values are
/// called labels: bits, a class, or bounded numbers.
///
/// Slices have the lengths [`logits`](Self::logits) and [`labels`](Self::labels).
pub(super) trait Distribution {
    /// Number of parameters of the distribution.
    fn logits(&self) -> usize;

    /// Number of labels. A head with 0 labels chooses no action and runs before any head makes a choice.
    fn labels(&self) -> usize;

    /// Number of values of one label; 0 for a bounded number.
    fn classes(&self) -> usize {
        0
    }

    /// Number of labels that are bits, such as buttons.
    fn bits(&self) -> usize {
        0
    }

    /// The smallest and the largest label.
    fn bounds(&self) -> [f32; 2];

    fn is_label(&self, label: f32) -> bool {
        let [least, largest] = self.bounds();
        let whole = self.classes() == 0 || label.fract() == 0.0;
        least <= label && label <= largest && whole
    }

    /// Number of this kind in `heads.cuh`, if its loss has a CUDA kernel.
    fn on_card(&self) -> Option<i32> {
        None
    }

    /// Checks that every number is in range, before any memory is allocated. Errors name `field`.
    fn validate(&self, field: &str) -> Result<()>;

    /// Draws a label, or takes the most likely one.
    fn choose(&self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]);

    /// Certainty in 0..1.
    fn confidence(&self, logits: &[f32]) -> f32;

    /// True if the label is the most likely one.
    fn is_likely(&self, logits: &[f32], label: &[f32]) -> bool;

    /// Number of features that encode a label as input of later heads.
    fn features(&self) -> usize {
        self.logits()
    }

    /// Writes the features that encode a label as input of later heads.
    fn encode(&self, label: &[f32], out: &mut [f32]);

    /// [`encode`](Self::encode) on the device of the labels. The head's labels are the columns from `first` on of
    /// `labels [n, all]`, f32 on a card.
    fn encode_there(&self, labels: &Tensor, [n, all]: [usize; 2], first: usize) -> Result<Tensor> {
        let own = labels.reshape((n, all))?.narrow(1, first, self.labels())?;
        let (own, width) = (tensor::to_vec(&own.contiguous()?)?, self.features());
        let mut features = memory::zeros(n * width);
        let rows =
            own.chunks_exact(self.labels().max(1)).zip(features.chunks_exact_mut(width.max(1)));
        rows.for_each(|(label, out)| self.encode(label, out));
        Ok(tensor::beside(labels, features, (n, width))?)
    }

    /// Negative log-likelihood of a label in nats; for bounded numbers, negative log-density.
    fn nll(&self, logits: &[f32], label: &[f32]) -> f64;

    /// Entropy in nats; for bounded numbers, differential entropy.
    fn entropy(&self, logits: &[f32]) -> f64;

    /// Loss and entropy of a label. Writes the gradient of `pull.loss * loss - pull.entropy * entropy` to `gradient`,
    /// which is overwritten.
    fn learn(
        &self,
        logits: &[f32],
        label: &[f32],
        shape: &Shape<'_>,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Pair;

    /// Kullback-Leibler divergence in nats between the distributions of `x`, the learner, and `y`. Adds `scale` times
    /// its gradient at `x` to `gradient`.
    fn divergence(
        &self,
        direction: Direction,
        x: &[f32],
        y: &[f32],
        scale: f64,
        gradient: &mut [f32],
    ) -> f64;

    /// Writes the logits of the mixture of some distributions in equal parts, whose probabilities are the mean of theirs.
    /// Returns false, and writes nothing, if no logits describe it.
    fn mixture(&self, parts: &[&[f32]], out: &mut [f32]) -> bool {
        let _ = (parts, out);
        false
    }

    /// Rows and columns of the prior's table, which starts as zero. The prior adds to the logits an offset that depends
    /// on the previous label.
    fn prior(&self) -> [usize; 2];

    /// The way in which a previous label selects from the prior's table.
    fn prior_read(&self) -> PriorRead;

    /// Appends the key of a previous label for [`prior_read`](Self::prior_read): ids, or f32 factors as bits.
    fn prior_key(&self, previous: Option<&[f32]>, out: &mut Vec<u32>);

    /// Adds the offset of a previous label to the logits.
    fn add_prior(&self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]);

    /// Length of the array of label counts. Counts of several shards are summed.
    fn counts(&self) -> usize;

    /// Counts a label, and its pair with the previous label.
    fn count(&self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]);

    /// The table of a prior that makes the head equal to a baseline.
    fn fit(&self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32>;

    /// Share of the counted labels with each bit set.
    fn press_rates(&self, _counts: &[f64]) -> Vec<f64> {
        vec![]
    }
}

/// Sources of a random choice.
#[derive(Clone, Copy)]
pub struct Chance<'a> {
    /// Options of drawing.
    pub sampling: &'a Sampling,
    /// Random generator of the row.
    pub rng: &'a Rng,
    /// Index of the first random number of this head.
    pub index: u64,
    /// The previous label, if there is one.
    pub held: Option<&'a [f32]>,
}

/// Options of a loss. The default gives the plain negative log-likelihood.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    /// Factor of the loss of heads of bits.
    pub scale: f32,
    /// Factor of the loss of each bit, applied if its label is set.
    pub pos_weight: &'a [f32],
    /// Share of the target spread over the other classes.
    pub smoothing: f64,
    /// Exponent of the focal factor.
    pub gamma: f64,
    /// Weight of a class at the edge, relative to 1 for the class in the centre.
    pub edge: Option<f64>,
    /// Factor of the entropy.
    pub entropy: f64,
    /// Bound of the absolute value of logits of bits and classes. Logits beyond it have no gradient.
    pub clamp: f32,
}

/// Loss and entropy of one head in one row, or the factors of their gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pair {
    /// The loss in nats, or its factor.
    pub loss: f64,
    /// The entropy in nats, or its factor.
    pub entropy: f64,
}

/// The distribution over which a divergence is averaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// KL(learner || teacher), averaged over the learner. The learner may omit choices of the teacher and is penalised
    /// for choices that the teacher would not make.
    #[default]
    Forward,
    /// KL(teacher || learner), averaged over the teacher. The learner is penalised for choices of the teacher that it
    /// omits.
    Reverse,
}

/// The way in which a previous label selects from a prior's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PriorRead {
    /// Looks up rows of this width by ids.
    Rows(usize),
    /// Multiplies the table by this many factors.
    Product(usize),
}

/// Baselines that a policy should beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineKind {
    /// Predicts each value with its frequency.
    Marginal,
    /// Repeats the previous value with a fitted probability; otherwise predicts the marginal.
    Repeat,
    /// Predicts each value with its frequency after the previous value.
    Pairs,
}

impl BaselineKind {
    /// All baselines.
    pub const ALL: [BaselineKind; 3] =
        [BaselineKind::Marginal, BaselineKind::Repeat, BaselineKind::Pairs];

    /// Name, for example `marginal`.
    pub fn name(self) -> &'static str {
        match self {
            BaselineKind::Marginal => "marginal",
            BaselineKind::Repeat => "repeat",
            BaselineKind::Pairs => "pairs",
        }
    }
}

impl Default for Shape<'_> {
    fn default() -> Self {
        Shape {
            scale: 1.0,
            pos_weight: &[],
            smoothing: 0.0,
            gamma: 0.0,
            edge: None,
            entropy: 1.0,
            clamp: f32::MAX,
        }
    }
}

/// `log sum exp` of a few numbers.
pub(super) fn log_sum_exp(all: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = all.clone().fold(f64::NEG_INFINITY, f64::max);
    largest + all.map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// A logit clamped to `-clamp..=clamp`.
#[inline]
pub(super) fn clip(x: f32, clamp: f32) -> f32 {
    x.max(-clamp).min(clamp)
}

/// `base^gamma`. Small whole exponents, which are usual, take only a few multiplications.
pub(super) fn power(base: f64, gamma: f64) -> f64 {
    match gamma {
        0.0 => 1.0,
        whole if whole.fract() == 0.0 => base.powi(whole as i32),
        other => base.powf(other),
    }
}
