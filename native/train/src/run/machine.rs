//! The disk and the devices of a run.

use sconce_tensor::Result;
use sconce_tensor::device::Devices;

use super::saver::Disk;
use crate::options::TrainOptions;

/// The disk and the devices of a run, which tests replace.
pub(super) struct Machine {
    pub disk: Disk,
    pub devices: fn(&TrainOptions) -> Result<Devices>,
}
