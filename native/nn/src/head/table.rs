//! Every kind of head: its name, what files say of it, and its distribution. This is the one list of them: a new kind is
//! a folder and a row.

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
        /// A kind of head, as a Spec has it.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        pub enum HeadKind {
            $($(#[$meta])* #[serde(rename = $name)] $kind($config),)*
        }

        impl HeadKind {
            /// All names, in the order of the table.
            pub const NAMES: &[&str] = &[$($name),*];

            /// What its distribution says.
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
    /// So many independent bits.
    "bernoulli" Bernoulli(usize) = Bernoulli,
    /// One of so many classes.
    "categorical" Categorical(usize) = Categorical,
    /// Numbers within bounds.
    "gaussian" Gaussian(Gaussian) = std::convert::identity,
    /// An estimate of the return.
    "value" Value(usize) = Value,
}

impl HeadKind {
    /// Parameters of its distribution.
    pub fn logits(self) -> usize {
        self.with(|head| head.logits())
    }

    /// Numbers in its label; none of a head that chooses nothing.
    pub fn labels(self) -> usize {
        self.with(|head| head.labels())
    }

    /// Values that one number of its label can take; 0 where it is any number within bounds.
    pub fn classes(self) -> usize {
        self.with(|head| head.classes())
    }

    /// Numbers of its label that are bits.
    pub fn bits(self) -> usize {
        self.with(|head| head.bits())
    }

    /// The least number of its label.
    pub fn least(self) -> f32 {
        self.with(|head| head.bounds())[0]
    }

    /// The largest one.
    pub fn largest(self) -> f32 {
        self.with(|head| head.bounds())[1]
    }

    pub fn is_label(self, label: f32) -> bool {
        self.with(|head| head.is_label(label))
    }

    /// Refuses what is no number of its label, which the error calls `field`.
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

    /// Checks every number before memory is taken for it; errors name `field`.
    pub fn validate(self, field: &str) -> Result<()> {
        self.with(|head| head.validate(field))
    }

    /// Its number among the heads whose loss has a form on a card.
    pub fn on_card(self) -> Option<i32> {
        self.with(|head| head.on_card())
    }

    /// Draws a label, or takes the most likely one.
    pub fn choose(self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]) {
        self.with(|head| head.choose(logits, chance, out))
    }

    /// How sure it is, 0..1.
    pub fn confidence(self, logits: &[f32]) -> f32 {
        self.with(|head| head.confidence(logits))
    }

    pub fn is_likely(self, logits: &[f32], label: &[f32]) -> bool {
        self.with(|head| head.is_likely(logits, label))
    }

    /// Numbers that heads behind this one read of a label.
    pub fn features(self) -> usize {
        self.with(|head| head.features())
    }

    /// Writes them.
    pub fn encode(self, label: &[f32], out: &mut [f32]) {
        self.with(|head| head.encode(label, out))
    }

    /// As [`Distribution::encode_there`].
    pub(crate) fn encode_there(
        self,
        labels: &Tensor,
        shape: [usize; 2],
        first: usize,
    ) -> Result<Tensor> {
        self.with(|head| head.encode_there(labels, shape, first))
    }

    /// Negative log-likelihood of a label, in nats.
    pub fn nll(self, logits: &[f32], label: &[f32]) -> f64 {
        self.with(|head| head.nll(logits, label))
    }

    /// Entropy in nats.
    pub fn entropy(self, logits: &[f32]) -> f64 {
        self.with(|head| head.entropy(logits))
    }

    /// As [`Distribution::learn`].
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

    /// As [`Distribution::divergence`].
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

    /// Adds to the logits what a table says after a previous label.
    pub fn add_prior(self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]) {
        self.with(|head| head.add_prior(table, previous, logits))
    }

    /// Numbers that labels are counted into.
    pub fn counts(self) -> usize {
        self.with(|head| head.counts())
    }

    pub fn count(self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]) {
        self.with(|head| head.count(previous, label, counts))
    }

    /// The table of a prior that says what a baseline does.
    pub fn fit(self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32> {
        self.with(|head| head.fit(baseline, counts))
    }

    /// Of what was counted the share of labels on which each bit is set.
    pub fn press_rates(self, counts: &[f64]) -> Vec<f64> {
        self.with(|head| head.press_rates(counts))
    }
}
