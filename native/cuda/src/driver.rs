//! What the driver of NVIDIA's GPUs tells, through NVML.
//!
//! GPUs are numbered from 0 as `nvidia-smi` numbers them, by their place on the bus. CUDA may number them
//! otherwise, and hide some (`CUDA_VISIBLE_DEVICES`). Nothing is remembered: each answer is the driver's at the time
//! of the question, which takes microseconds to milliseconds, seconds where the driver has to wake a card, and
//! for ever where a card hangs.
//!
//! Source: NVIDIA's NVML API reference, <https://docs.nvidia.com/deploy/nvml-api/>.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use serde::Serialize;

use crate::{Cause, Error, Result};

/// Characters of a process's name.
const NAME_CHARS: usize = 1024;

/// NVML, opened.
pub struct Driver {
    nvml: Nvml,
    library: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Versions {
    /// As in `580.159.03`.
    pub driver: String,
    pub nvml: String,
    /// The newest CUDA that the driver runs, as in `13.0`; none where it lacks its library for CUDA.
    pub cuda: Option<String>,
    pub library: String,
}

/// What does not change while a GPU is in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Card {
    pub index: u32,
    pub name: String,
    pub memory_bytes: u64,
    pub uuid: Option<String>,
    pub pci_bus_id: Option<String>,
    /// Major and minor number.
    pub compute_capability: Option<(i32, i32)>,
    /// Cut into instances (MIG), which CUDA sees in place of the card.
    pub mig: bool,
}

/// Bytes. What the driver keeps for itself is `reserved`, and no part of `used`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub total: u64,
    pub used: u64,
    pub free: u64,
    pub reserved: u64,
}

/// Percent of the last sixth of a second to second in which kernels ran, and in which memory was read or
/// written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Utilization {
    pub gpu: u32,
    pub memory: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Power {
    pub draw_watts: f64,
    /// What the card is held to.
    pub limit_watts: Option<f64>,
}

/// At present, and at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Clocks {
    pub graphics_mhz: Option<u32>,
    pub sm_mhz: Option<u32>,
    pub memory_mhz: Option<u32>,
    pub max_graphics_mhz: Option<u32>,
    pub max_sm_mhz: Option<u32>,
    pub max_memory_mhz: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    pub pid: u32,
    /// None of a process that this one may not see, as of another container.
    pub name: Option<String>,
    pub memory_bytes: Option<u64>,
    pub compute: bool,
    pub graphics: bool,
    /// Where the card is cut into instances.
    pub mig_instance: Option<u32>,
}

impl Driver {
    pub(crate) fn new(nvml: Nvml, library: &Path) -> Self {
        Driver { nvml, library: library.to_path_buf() }
    }

    pub fn versions(&self) -> Result<Versions> {
        let cuda = match self.nvml.sys_cuda_driver_version() {
            Ok(version) => Some(version),
            Err(NvmlError::LibraryNotFound | NvmlError::FunctionNotFound) => None,
            Err(error) => return Err(Error::nvml("NVML")(error)),
        };
        let number = |version| {
            format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
        };
        Ok(Versions {
            driver: self.nvml.sys_driver_version().map_err(Error::nvml("NVML"))?,
            nvml: self.nvml.sys_nvml_version().map_err(Error::nvml("NVML"))?,
            cuda: cuda.map(number),
            library: self.library.display().to_string(),
        })
    }

    pub fn count(&self) -> Result<u32> {
        self.nvml.device_count().map_err(Error::nvml("NVML"))
    }

    pub fn card(&self, index: u32) -> Result<Card> {
        self.ask(index, |device| {
            let compute_capability = told(device.cuda_compute_capability())?;
            let mig = told(device.mig_mode())?;
            Ok(Card {
                index,
                name: device.name()?,
                memory_bytes: device.memory_info()?.total,
                uuid: told(device.uuid())?,
                pci_bus_id: told(device.pci_info())?.map(|pci| pci.bus_id),
                compute_capability: compute_capability.map(|of| (of.major, of.minor)),
                mig: mig.is_some_and(|mode| mode.current != 0),
            })
        })
    }

    pub fn memory(&self, index: u32) -> Result<Memory> {
        self.ask(index, |device| {
            let memory = device.memory_info()?;
            Ok(Memory {
                total: memory.total,
                used: memory.used,
                free: memory.free,
                reserved: memory.reserved,
            })
        })
    }

    /// # Errors
    /// `NotSupported` of a card that is cut into instances.
    pub fn utilization(&self, index: u32) -> Result<Utilization> {
        self.ask(index, |device| {
            let rates = device.utilization_rates()?;
            Ok(Utilization { gpu: rates.gpu, memory: rates.memory })
        })
    }

    /// Of the chip, in degrees Celsius.
    pub fn temperature(&self, index: u32) -> Result<u32> {
        self.ask(index, |device| device.temperature(TemperatureSensor::Gpu))
    }

    pub fn power(&self, index: u32) -> Result<Power> {
        self.ask(index, |device| {
            let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
            Ok(Power {
                draw_watts: watts(device.power_usage()?),
                limit_watts: told(device.enforced_power_limit())?.map(watts),
            })
        })
    }

    pub fn clocks(&self, index: u32) -> Result<Clocks> {
        self.ask(index, |device| {
            let now = |clock| told(device.clock_info(clock));
            let most = |clock| told(device.max_clock_info(clock));
            Ok(Clocks {
                graphics_mhz: now(Clock::Graphics)?,
                sm_mhz: now(Clock::SM)?,
                memory_mhz: now(Clock::Memory)?,
                max_graphics_mhz: most(Clock::Graphics)?,
                max_sm_mhz: most(Clock::SM)?,
                max_memory_mhz: most(Clock::Memory)?,
            })
        })
    }

    /// By process id.
    pub fn processes(&self, index: u32) -> Result<Vec<Process>> {
        self.ask(index, |device| {
            let mut found = BTreeMap::new();
            for process in device.running_compute_processes()? {
                self.note(&mut found, &process).compute = true;
            }
            for process in told(device.running_graphics_processes())?.unwrap_or_default() {
                self.note(&mut found, &process).graphics = true;
            }
            Ok(found.into_values().collect())
        })
    }

    /// A process that computes and draws is in both of the driver's lists, with the same memory.
    fn note<'a>(
        &self,
        found: &'a mut BTreeMap<(u32, Option<u32>), Process>,
        process: &ProcessInfo,
    ) -> &'a mut Process {
        match found.entry((process.pid, process.gpu_instance_id)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Process {
                pid: process.pid,
                name: self.nvml.sys_process_name(process.pid, NAME_CHARS).ok(),
                memory_bytes: match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
                compute: false,
                graphics: false,
                mig_instance: process.gpu_instance_id,
            }),
        }
    }

    fn ask<T>(
        &self,
        index: u32,
        question: impl FnOnce(&Device) -> std::result::Result<T, NvmlError>,
    ) -> Result<T> {
        let count = self.count()?;
        let what = format!("GPU {index}");
        if index >= count {
            let reason = format!("of {count}, counted from 0");
            return Err(Error::new(what, Cause::NoDevice, reason));
        }
        let device = self.nvml.device_by_index(index);
        device.and_then(|device| question(&device)).map_err(Error::nvml(what))
    }
}

/// None where this card, or a driver of this age, does not tell.
fn told<T>(answer: std::result::Result<T, NvmlError>) -> std::result::Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
