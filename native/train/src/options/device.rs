//! Device and precision of a run.

use sconce_ops::matmul::gains;
use sconce_tensor::device::{self, Devices};
use sconce_tensor::{Device, Error, Precision, Result};

use super::train::TrainOptions;

impl TrainOptions {
    /// Precision of a run on this machine: the requested one if it is faster than f32 or forced, otherwise f32.
    pub fn precision_here(&self) -> Precision {
        match self.machine.force_precision || !self.is_on_cpu() || gains(self.machine.precision) {
            true => self.machine.precision,
            false => Precision::F32,
        }
    }

    /// Whether the run uses the CPU.
    pub fn is_on_cpu(&self) -> bool {
        self.machine.device.starts_with("cpu")
    }

    /// Opens the devices of the run.
    ///
    /// # Errors
    /// The errors of [`open_device`](Self::open_device), and `Mismatch` for a batch that the devices cannot share
    /// equally.
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

    /// Opens the single device of a measurement.
    ///
    /// # Errors
    /// `NoDevice` for a device that does not exist, `Unavailable` for an option that exists only on a CPU.
    pub(crate) fn open_device(&self) -> Result<Device> {
        self.check_device()?;
        device::named(&self.machine.device)
    }

    fn check_device(&self) -> Result<()> {
        if self.machine.memory_limit.is_some() && !self.is_on_cpu() {
            return Err(Error::Unavailable {
                what: format!("memory_limit on {}", self.machine.device),
                reason: "a card has memory_budget instead, see Sconce.Config".into(),
            });
        }
        Ok(())
    }
}
