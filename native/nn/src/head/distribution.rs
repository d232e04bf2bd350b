//! What a kind of head has to be: a distribution over labels, whose parameters are logits.

use sconce_tensor::{Tensor, tensor};
use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::sampling::Sampling;
use crate::{Result, memory};

/// A distribution over the labels of one head. Logits are its parameters, whatever those are, and labels its values: a
/// bit each, a class, or numbers within bounds.
///
/// Slices have the lengths that [`logits`](Self::logits) and [`labels`](Self::labels) say.
pub(super) trait Distribution {
    /// Parameters of the distribution.
    fn logits(&self) -> usize;

    /// Numbers of a label. A head without any chooses nothing, and reads the trunk before any choice is made.
    fn labels(&self) -> usize;

    /// Values that one number of a label can take; 0 where it is any number within bounds.
    fn classes(&self) -> usize {
        0
    }

    /// Numbers of a label that are bits: buttons, where a game has such.
    fn bits(&self) -> usize {
        0
    }

    /// The least and the largest number of a label.
    fn bounds(&self) -> [f32; 2];

    fn is_label(&self, label: f32) -> bool {
        let [least, largest] = self.bounds();
        let whole = self.classes() == 0 || label.fract() == 0.0;
        least <= label && label <= largest && whole
    }

    /// Its number in `heads.cuh`, if its loss has a form on a card.
    fn on_card(&self) -> Option<i32> {
        None
    }

    /// Checks every number before memory is taken for it; errors name `field`.
    fn validate(&self, field: &str) -> Result<()>;

    /// Draws a label, or takes the most likely one.
    fn choose(&self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]);

    /// How sure it is, 0..1.
    fn confidence(&self, logits: &[f32]) -> f32;

    /// Whether a label is what the distribution takes for the most likely one.
    fn is_likely(&self, logits: &[f32], label: &[f32]) -> bool;

    /// Numbers that heads behind this one read of a label.
    fn features(&self) -> usize {
        self.logits()
    }

    /// Writes what heads behind this one read of a label.
    fn encode(&self, label: &[f32], out: &mut [f32]);

    /// [`encode`](Self::encode) where labels are: the columns from `first` on of `labels [n, all]`, f32 on a card.
    fn encode_there(&self, labels: &Tensor, [n, all]: [usize; 2], first: usize) -> Result<Tensor> {
        let own = labels.reshape((n, all))?.narrow(1, first, self.labels())?;
        let (own, width) = (tensor::to_vec(&own.contiguous()?)?, self.features());
        let mut features = memory::zeros(n * width);
        let rows =
            own.chunks_exact(self.labels().max(1)).zip(features.chunks_exact_mut(width.max(1)));
        rows.for_each(|(label, out)| self.encode(label, out));
        Ok(tensor::beside(labels, features, (n, width))?)
    }

    /// Negative log-likelihood of a label, in nats; of numbers that of a density.
    fn nll(&self, logits: &[f32], label: &[f32]) -> f64;

    /// Entropy in nats; of numbers that of a density.
    fn entropy(&self, logits: &[f32]) -> f64;

    /// Loss and entropy of a label, and the gradient of `pull.loss * loss - pull.entropy * entropy`, which takes the place
    /// of what is in `gradient`.
    fn learn(
        &self,
        logits: &[f32],
        label: &[f32],
        shape: &Shape<'_>,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Pair;

    /// Kullback-Leibler divergence between the distributions of `x`, that of a learner, and `y`, in nats; adds `scale`
    /// times its gradient at `x`.
    fn divergence(
        &self,
        direction: Direction,
        x: &[f32],
        y: &[f32],
        scale: f64,
        gradient: &mut [f32],
    ) -> f64;

    /// Rows and columns of the table of a prior, zero at first. What it adds to the logits depends on the previous label.
    fn prior(&self) -> [usize; 2];

    /// How previous labels read that table.
    fn prior_read(&self) -> PriorRead;

    /// The ids or, as bits, the numbers of a previous label for [`prior_read`](Self::prior_read).
    fn prior_key(&self, previous: Option<&[f32]>, out: &mut Vec<u32>);

    /// Adds to the logits what a table says after a previous label.
    fn add_prior(&self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]);

    /// Numbers that labels are counted into, which are added where parts were counted apart.
    fn counts(&self) -> usize;

    /// Counts a label, and the pair with the one before it.
    fn count(&self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]);

    /// The table of a prior that says what a baseline does.
    fn fit(&self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32>;

    /// Of what was counted the share of labels on which each bit is set.
    fn press_rates(&self, _counts: &[f64]) -> Vec<f64> {
        vec![]
    }
}

/// What a label is drawn by.
#[derive(Clone, Copy)]
pub struct Chance<'a> {
    pub sampling: &'a Sampling,
    pub rng: &'a Rng,
    /// The first random number that it may use.
    pub index: u64,
    /// The previous label, if there is one.
    pub held: Option<&'a [f32]>,
}

/// How a likelihood is shaped before it is learned from. The plain one is the likelihood.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    /// Factor on the loss of bits.
    pub scale: f32,
    /// Factor on the loss of each bit where it is set.
    pub pos_weight: &'a [f32],
    /// Share of the target that other classes have together.
    pub smoothing: f64,
    /// Exponent of the focal factor.
    pub gamma: f64,
    /// Weight of a class at the edge, 1 being that of the one in the centre.
    pub edge: Option<f64>,
    /// Factor on the entropy.
    pub entropy: f64,
    /// Logits of bits and classes beyond it are taken as it, and have no gradient.
    pub clamp: f32,
}

/// Loss and entropy of one head in one row, or the factors of their gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pair {
    pub loss: f64,
    pub entropy: f64,
}

/// Which distribution the expectation of a divergence is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// KL(learner || teacher), the expectation over what the learner would do: it may leave out what the
    /// teacher does, and is punished for what the teacher would not do.
    #[default]
    Forward,
    /// KL(teacher || learner): it is punished for what it leaves out.
    Reverse,
}

/// How a previous label reads the table of a prior.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PriorRead {
    /// Rows of so many numbers, by ids.
    Rows(usize),
    /// The table times so many numbers.
    Product(usize),
}

/// What a policy has to beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineKind {
    /// How often each value occurs.
    Marginal,
    /// The previous value with a fitted probability, otherwise the marginal.
    Repeat,
    /// How often each value follows each other one.
    Pairs,
}

impl BaselineKind {
    pub const ALL: [BaselineKind; 3] =
        [BaselineKind::Marginal, BaselineKind::Repeat, BaselineKind::Pairs];

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

/// A logit within the clamp.
#[inline]
pub(super) fn clip(x: f32, clamp: f32) -> f32 {
    x.max(-clamp).min(clamp)
}

/// `base^gamma`; whole exponents, the usual ones, are a few multiplications.
pub(super) fn power(base: f64, gamma: f64) -> f64 {
    match gamma {
        0.0 => 1.0,
        whole if whole.fract() == 0.0 => base.powi(whole as i32),
        other => base.powf(other),
    }
}
