//! What a run is on.

use sconce_tensor::Result;
use sconce_tensor::device::Devices;

use super::saver::Disk;
use crate::options::TrainOptions;

/// What a run is on.
pub(super) struct Machine {
    pub disk: Disk,
    pub devices: fn(&TrainOptions) -> Result<Devices>,
}
