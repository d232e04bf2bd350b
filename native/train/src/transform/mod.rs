//! Transforms of a batch before it is learned from.
//!
//! To add a transform, add a file here and a line to [`TABLE`].

mod scheduled;

use sconce_data::Batch;
use sconce_nn::Spec;
use sconce_nn::backbone::State;
use sconce_tensor::Result;

use crate::options::TrainOptions;
use crate::step::Stepper;

/// The position of a batch in the run, and the range of its windows that a transform gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Number of updates before the batch.
    pub update: u64,
    /// Number of batches before the batch.
    pub draw: u64,
    /// Index of the first window that the transform gets.
    pub first: usize,
    /// Number of windows in the whole batch.
    pub windows: usize,
}

/// Inputs from which the transforms of a run are made.
pub(crate) struct Setup<'a> {
    pub options: &'a TrainOptions,
    pub spec: &'a Spec,
    /// Specs of the companions.
    pub companions: &'a [&'a Spec],
}

/// A transform of a batch before it is learned from.
pub(crate) trait BatchTransform: Send + Sync {
    /// Changes a batch, or windows of one, before `learner` learns from it. `state` is the learner's state before these
    /// windows.
    fn apply(
        &self,
        batch: &mut Batch,
        learner: &Stepper<'_>,
        state: &State,
        at: Moment,
    ) -> Result<()>;
}

/// Makes a transform, if the options of the run ask for it.
type Make = fn(&Setup<'_>) -> Result<Option<Box<dyn BatchTransform>>>;

/// All transforms, in the order in which they are applied.
const TABLE: &[Make] = &[scheduled::of];

/// The transforms of a run.
pub(crate) struct Transforms(Vec<Box<dyn BatchTransform>>);

impl Transforms {
    pub(crate) fn of(setup: &Setup<'_>) -> Result<Self> {
        let all = TABLE.iter().filter_map(|make| make(setup).transpose());
        Ok(Transforms(all.collect::<Result<_>>()?))
    }

    pub(crate) fn apply(
        &self,
        batch: &mut Batch,
        learner: &Stepper<'_>,
        state: &State,
        at: Moment,
    ) -> Result<()> {
        self.0.iter().try_for_each(|transform| transform.apply(batch, learner, state, at))
    }
}
