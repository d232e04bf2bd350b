//! What a run computes on, and in.

use sconce_ops::matmul::gains;
use sconce_tensor::device::{self, Devices};
use sconce_tensor::{Device, Error, Precision, Result};

use super::train::TrainOptions;

impl TrainOptions {
    /// What a run computes in on this machine: what was asked for where that gains something or is to be
    /// whether or not, and else f32.
    pub fn precision_here(&self) -> Precision {
        match self.machine.force_precision || !self.is_on_cpu() || gains(self.machine.precision) {
            true => self.machine.precision,
            false => Precision::F32,
        }
    }

    pub fn is_on_cpu(&self) -> bool {
        self.machine.device.starts_with("cpu")
    }

    /// Opens the devices that the run is on.
    ///
    /// # Errors
    /// As [`open_device`](Self::open_device), and `Mismatch` for a batch that they cannot share alike.
    pub(crate) fn open_devices(&self) -> Result<Devices> {
        self.check_device()?;
        let (count, windows) = (device::count(&self.machine.device), self.data.batch_size);
        if !windows.is_multiple_of(count) {
            return Err(Error::mismatch(
                "batch_size",
                format!("a multiple of {count}, the cards of {}", self.machine.device),
                windows,
            ));
        }
        device::several(&self.machine.device)
    }

    /// Opens the one device that a measurement is on.
    ///
    /// # Errors
    /// `NoDevice` for one that is not there, `Unavailable` for an option that only a CPU has.
    pub(crate) fn open_device(&self) -> Result<Device> {
        self.check_device()?;
        device::named(&self.machine.device)
    }

    fn check_device(&self) -> Result<()> {
        if self.machine.memory_limit.is_some() && !self.is_on_cpu() {
            return Err(Error::Unavailable {
                what: format!("memory_limit on {}", self.machine.device),
                reason: "a card's is memory_budget, see Sconce.Config".into(),
            });
        }
        Ok(())
    }
}
