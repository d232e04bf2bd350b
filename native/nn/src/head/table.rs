//! Every kind of head: its name in files, its config and its distribution. This is the only list of kinds: a new kind
//! needs a folder and a row here.

use sconce_tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::bernoulli::Bernoulli;
use super::categorical::Categorical;
use super::distribution::{BaselineKind, Chance, Direction, Distribution, Pair, PriorRead, Shape};
use super::gaussian::Gaussian;
use super::value::Value;
use crate::{Error, Result};

macro_rules! heads {
    ($($(#[$meta:meta])* $name:literal $kind:ident($config:ty) = $distribution:expr,)*) => {
        /// A kind of head, as in a Spec.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        pub enum HeadKind {
            $($(#[$meta])* #[serde(rename = $name)] $kind($config),)*
        }

        impl HeadKind {
            /// All names, in the order of the table.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Calls `of` with the distribution of this kind.
            #[inline]
            fn with<R>(self, of: impl FnOnce(&dyn Distribution) -> R) -> R {
                match self {
                    $(HeadKind::$kind(config) => of(&$distribution(config)),)*
                }
            }
        }
    };
}

heads! {
    /// Independent bits, this many.
    "bernoulli" Bernoulli(usize) = Bernoulli,
    /// One of this many classes.
    "categorical" Categorical(usize) = Categorical,
    /// Bounded numbers.
    "gaussian" Gaussian(Gaussian) = std::convert::identity,
    /// An estimate of the return.
    "value" Value(usize) = Value,
}

impl HeadKind {
    /// Number of parameters of the distribution.
    pub fn logits(self) -> usize {
        self.with(|head| head.logits())
    }

    /// Number of labels; 0 for a head that chooses no action.
    pub fn labels(self) -> usize {
        self.with(|head| head.labels())
    }

    /// Number of values of one label; 0 for a bounded number.
    pub fn classes(self) -> usize {
        self.with(|head| head.classes())
    }

    /// Number of labels that are bits.
    pub fn bits(self) -> usize {
        self.with(|head| head.bits())
    }

    /// Entries in an action mask: one for each bit or class, none for a number or a value.
    pub fn mask_size(self) -> usize {
        self.with(|head| if head.classes() > 0 { head.logits() } else { 0 })
    }

    /// The smallest label.
    pub fn least(self) -> f32 {
        self.with(|head| head.bounds())[0]
    }

    /// The largest label.
    pub fn largest(self) -> f32 {
        self.with(|head| head.bounds())[1]
    }

    /// True if `label` is valid for this head.
    pub fn is_label(self, label: f32) -> bool {
        self.with(|head| head.is_label(label))
    }

    /// Returns an error that names `field` unless `label` is valid for this head.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn check(self, label: f32, field: impl FnOnce() -> String) -> Result<()> {
        if self.is_label(label) {
            return Ok(());
        }
        let [least, largest] = self.with(|head| head.bounds()).map(f64::from);
        Err(Error::out_of_range(field(), label.into(), least, largest))
    }

    /// Checks that every number is in range, before any memory is allocated. Errors name `field`.
    pub fn validate(self, field: &str) -> Result<()> {
        self.with(|head| head.validate(field))
    }

    /// Number of this kind in `heads.cuh`, if its loss has a CUDA kernel.
    pub fn on_card(self) -> Option<i32> {
        self.with(|head| head.on_card())
    }

    /// Draws a label, or takes the most likely one.
    pub fn choose(self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]) {
        self.with(|head| head.choose(logits, chance, out))
    }

    /// Certainty in 0..1.
    pub fn confidence(self, logits: &[f32]) -> f32 {
        self.with(|head| head.confidence(logits))
    }

    /// True if the label is the most likely one.
    pub fn is_likely(self, logits: &[f32], label: &[f32]) -> bool {
        self.with(|head| head.is_likely(logits, label))
    }

    /// Number of features that encode a label as input of later heads.
    pub fn features(self) -> usize {
        self.with(|head| head.features())
    }

    /// Writes the features that encode a label as input of later heads.
    pub fn encode(self, label: &[f32], out: &mut [f32]) {
        self.with(|head| head.encode(label, out))
    }

    /// See [`Distribution::encode_there`].
    pub(crate) fn encode_there(
        self,
        labels: &Tensor,
        shape: [usize; 2],
        first: usize,
    ) -> Result<Tensor> {
        self.with(|head| head.encode_there(labels, shape, first))
    }

    /// Negative log-likelihood of a label in nats.
    pub fn nll(self, logits: &[f32], label: &[f32]) -> f64 {
        self.with(|head| head.nll(logits, label))
    }

    /// Entropy in nats.
    pub fn entropy(self, logits: &[f32]) -> f64 {
        self.with(|head| head.entropy(logits))
    }

    /// See [`Distribution::learn`].
    pub fn learn(
        self,
        logits: &[f32],
        label: &[f32],
        shape: &Shape<'_>,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Pair {
        self.with(|head| head.learn(logits, label, shape, pull, gradient))
    }

    /// See [`Distribution::divergence`].
    pub fn divergence(
        self,
        direction: Direction,
        x: &[f32],
        y: &[f32],
        scale: f64,
        gradient: &mut [f32],
    ) -> f64 {
        self.with(|head| head.divergence(direction, x, y, scale, gradient))
    }

    /// Writes the logits of the mixture of some distributions in equal parts, whose probabilities are the mean of theirs.
    /// Returns false, and writes nothing, for bounded numbers: no logits describe a mixture of Gaussians.
    pub fn mixture(self, parts: &[&[f32]], out: &mut [f32]) -> bool {
        self.with(|head| head.mixture(parts, out))
    }

    /// Rows and columns of the table of a prior.
    pub fn prior(self) -> [usize; 2] {
        self.with(|head| head.prior())
    }

    pub(crate) fn prior_read(self) -> PriorRead {
        self.with(|head| head.prior_read())
    }

    pub(crate) fn prior_key(self, previous: Option<&[f32]>, out: &mut Vec<u32>) {
        self.with(|head| head.prior_key(previous, out))
    }

    /// Adds the offset of a previous label to the logits.
    pub fn add_prior(self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]) {
        self.with(|head| head.add_prior(table, previous, logits))
    }

    /// Length of the array of label counts.
    pub fn counts(self) -> usize {
        self.with(|head| head.counts())
    }

    /// Counts a label, and its pair with the previous label.
    pub fn count(self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]) {
        self.with(|head| head.count(previous, label, counts))
    }

    /// The table of a prior that makes the head equal to a baseline.
    pub fn fit(self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32> {
        self.with(|head| head.fit(baseline, counts))
    }

    /// Share of the counted labels with each bit set.
    pub fn press_rates(self, counts: &[f64]) -> Vec<f64> {
        self.with(|head| head.press_rates(counts))
    }
}
