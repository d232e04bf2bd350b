//! Checks that refuse options of a run: out of bounds, or without effect given the other options.

use sconce_nn::spec::Spec;
use sconce_tensor::{Error, Precision, Result};

use super::evaluate::Mode;
use super::table::{TABLE, at_least, bounded};
use super::train::TrainOptions;

impl TrainOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        self.data.check()?;
        self.objective.check()?;
        self.optimiser.check()?;
        self.schedule.check()?;
        self.saving.check()?;
        self.machine.check()?;
        let frames = self.data.batch_size.saturating_mul(self.data.window_size);
        if frames > MAX_FRAMES {
            // The gates, projections and gradients of a frame take some tens of kilobytes.
            let bytes = (frames as u64).saturating_mul(32 << 10);
            return Err(Error::out_of_memory("a step (batch_size x window_size)", bytes));
        }
        at_least("burn_in", self.data.burn_in as f64, 0.0, self.data.window_size as f64 - 1.0)?;
        let values = serde_json::to_value(self).map_err(|e| Error::corrupt("options", e))?;
        TABLE.check_meant(&values)?;
        self.optimiser()?;
        self.quantisation().map_or(Ok(()), |own| own.check())?;
        self.pruning().map_or(Ok(()), |own| own.check())?;
        if self.pruning().is_some() && self.quantisation().is_some() {
            return Err(Error::mismatch("prune", "a run without quantise", "one with it"));
        }
        self.check_activations()?;
        self.loader().validate()
    }

    /// Refuses options with which products would not read the inputs that packed steps read.
    fn check_activations(&self) -> Result<()> {
        if !self.optimiser.quantise_activations {
            return Ok(());
        }
        if self.machine.precision != Precision::F32 {
            let got = format!("{:?}", self.machine.precision).to_lowercase();
            return Err(Error::mismatch("precision", "f32 beside quantise_activations", got));
        }
        // A step packs matrices with the same inputs together, and a part without codes makes it read all in f32.
        match self.optimiser.freeze.is_empty() {
            true => Ok(()),
            false => {
                let got = self.optimiser.freeze.join(", ");
                Err(Error::mismatch("freeze", "no parts beside quantise_activations", got))
            }
        }
    }

    /// Validates the options for a run of a policy of this Spec.
    pub(crate) fn validate_for(&self, spec: &Spec) -> Result<()> {
        self.validate()?;
        let carried = self.carries() || self.saving.validation_mode == Mode::Carry;
        if carried { spec.check_carried() } else { Ok(()) }
    }

    /// Whether a step carries states: from batch to batch, or from chunk to chunk of a window.
    pub(crate) fn carries(&self) -> bool {
        self.data.unroll == Mode::Carry
            || self.optimiser.truncate_bptt.is_some_and(|n| n < self.data.window_size)
    }

    /// Refuses a run of more updates than the maximum of `steps`, with `epoch_steps` updates in an epoch.
    pub(crate) fn check_steps(&self, epoch_steps: u64) -> Result<()> {
        // A time budget ends the run, so the number of epochs is not checked.
        match self.schedule.max_minutes {
            Some(_) => Ok(()),
            None => bounded("steps", self.total_steps(epoch_steps) as f64),
        }
    }
}

/// Maximum number of frames in one step. More would not fit into the memory of the machines that Sconce is for.
pub(crate) const MAX_FRAMES: usize = 1 << 20;
