//! Reports of NVIDIA's driver about its GPUs, through NVML.
//!
//! GPUs are numbered from 0 in the order of `nvidia-smi`, that is by bus address. CUDA may number them differently and
//! hide some (`CUDA_VISIBLE_DEVICES`). Nothing is cached: each answer comes from the driver at the time of the call. A
//! call takes microseconds to milliseconds, or seconds if the driver has to wake a card. If a card hangs, the call
//! never returns.
//!
//! Source: NVIDIA's NVML API reference, <https://docs.nvidia.com/deploy/nvml-api/>.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use serde::Serialize;

use crate::{Cause, Error, Result};

/// Maximum bytes of a process's name.
const NAME_CHARS: usize = 1024;

/// An open NVML library.
pub struct Driver {
    nvml: Nvml,
    library: PathBuf,
}

/// Versions of the driver and its libraries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Versions {
    /// The driver, such as `580.159.03`.
    pub driver: String,
    /// NVML, such as `13.580.159.03`.
    pub nvml: String,
    /// The newest CUDA version that the driver supports, such as `13.0`. `None` without the driver's CUDA library.
    pub cuda: Option<String>,
    /// The path of the NVML library.
    pub library: String,
}

/// Fixed properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Card {
    /// The number of the GPU, counted from 0.
    pub index: u32,
    /// The product name.
    pub name: String,
    /// Physical memory, in bytes.
    pub memory_bytes: u64,
    /// The GPU's unique id, if the driver reports one.
    pub uuid: Option<String>,
    /// The address on the PCI bus, such as `00000000:01:00.0`.
    pub pci_bus_id: Option<String>,
    /// Major and minor compute capability.
    pub compute_capability: Option<(i32, i32)>,
    /// Whether the GPU is divided into instances (MIG), which CUDA shows instead of the GPU.
    pub mig: bool,
}

/// The memory of a GPU, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Physical memory.
    pub total: u64,
    /// Memory in use by processes, without `reserved`.
    pub used: u64,
    /// Memory that can be allocated.
    pub free: u64,
    /// Memory that the driver reserves.
    pub reserved: u64,
}

/// Busy times in percent of the last sampling period, which lasts between a sixth of a second and a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Utilization {
    /// Time in which a kernel ran.
    pub gpu: u32,
    /// Time in which memory was read or written.
    pub memory: u32,
}

/// The power of a GPU, in watts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Power {
    /// The current draw.
    pub draw_watts: f64,
    /// The enforced limit, if the driver reports one.
    pub limit_watts: Option<f64>,
}

/// Current and maximum clock rates in MHz. A rate that the driver does not report is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Clocks {
    /// Current clock of the graphics units.
    pub graphics_mhz: Option<u32>,
    /// Current clock of the streaming multiprocessors.
    pub sm_mhz: Option<u32>,
    /// Current clock of the memory.
    pub memory_mhz: Option<u32>,
    /// Maximum clock of the graphics units.
    pub max_graphics_mhz: Option<u32>,
    /// Maximum clock of the streaming multiprocessors.
    pub max_sm_mhz: Option<u32>,
    /// Maximum clock of the memory.
    pub max_memory_mhz: Option<u32>,
}

/// Why a GPU runs below its clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// It draws as much power as it may.
    PowerCap,
    /// It is too hot, and the driver has lowered its clocks.
    Heat,
    /// It is too hot or draws too much, and the hardware has halved its clocks at least.
    Hardware,
    /// The power supply has asked for less.
    PowerBrake,
    /// Another GPU of its group runs slower.
    SyncBoost,
    /// Someone has set its clocks.
    Setting,
}

/// A process that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The path of the program. `None` for an invisible process, such as one in another container.
    pub name: Option<String>,
    /// Memory on the GPU in bytes, if the driver reports it.
    pub memory_bytes: Option<u64>,
    /// Whether the process has a compute context.
    pub compute: bool,
    /// Whether the process has a graphics context.
    pub graphics: bool,
    /// The instance of the GPU, if it is divided into instances.
    pub mig_instance: Option<u32>,
}

impl Driver {
    pub(crate) fn new(nvml: Nvml, library: &Path) -> Self {
        Driver { nvml, library: library.to_path_buf() }
    }

    /// Versions of the driver and its libraries.
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

    /// The number of GPUs.
    pub fn count(&self) -> Result<u32> {
        self.nvml.device_count().map_err(Error::nvml("NVML"))
    }

    /// Fixed properties of a GPU.
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

    /// The memory of a GPU.
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

    /// The utilization of a GPU.
    ///
    /// # Errors
    /// `NotSupported` for a GPU that is divided into instances.
    pub fn utilization(&self, index: u32) -> Result<Utilization> {
        self.ask(index, |device| {
            let rates = device.utilization_rates()?;
            Ok(Utilization { gpu: rates.gpu, memory: rates.memory })
        })
    }

    /// The temperature of the chip in degrees Celsius.
    pub fn temperature(&self, index: u32) -> Result<u32> {
        self.ask(index, |device| device.temperature(TemperatureSensor::Gpu))
    }

    /// The power draw of a GPU.
    pub fn power(&self, index: u32) -> Result<Power> {
        self.ask(index, |device| {
            let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
            Ok(Power {
                draw_watts: watts(device.power_usage()?),
                limit_watts: told(device.enforced_power_limit())?.map(watts),
            })
        })
    }

    /// The clock rates of a GPU.
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

    /// Why a GPU runs below its clocks. A GPU without work gives no reason.
    pub fn throttle(&self, index: u32) -> Result<Vec<Throttle>> {
        const REASONS: [(ThrottleReasons, Throttle); 8] = [
            (ThrottleReasons::SW_POWER_CAP, Throttle::PowerCap),
            (ThrottleReasons::SW_THERMAL_SLOWDOWN, Throttle::Heat),
            (ThrottleReasons::HW_THERMAL_SLOWDOWN, Throttle::Heat),
            (ThrottleReasons::HW_SLOWDOWN, Throttle::Hardware),
            (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle::PowerBrake),
            (ThrottleReasons::SYNC_BOOST, Throttle::SyncBoost),
            (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, Throttle::Setting),
            (ThrottleReasons::DISPLAY_CLOCK_SETTING, Throttle::Setting),
        ];
        self.ask(index, |device| {
            let told = device.current_throttle_reasons()?;
            let given = REASONS.iter().filter(|(reason, _)| told.contains(*reason));
            let mut given: Vec<_> = given.map(|(_, throttle)| *throttle).collect();
            given.dedup();
            Ok(given)
        })
    }

    /// The processes on a GPU, sorted by process id.
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

    /// The entry of a process. A process with compute and graphics contexts is in both of the driver's lists, with the
    /// same memory.
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

/// Maps `NotSupported` answers of this card or driver version to `None`.
fn told<T>(answer: std::result::Result<T, NvmlError>) -> std::result::Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
