//! Options of a run: the fields of `options.exs`, by their groups.

use std::path::PathBuf;

use sconce_data::{LossOn, Sampling};
use sconce_tensor::Precision;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::evaluate::Mode;
use super::group::others;
use super::loss::{FocalHeads, PosWeight, Reduction};
use super::table::TABLE;
use super::teachers::Teachers;
use crate::optimiser::Kind as Optimiser;
use crate::option_group;
use crate::weights::pruning::Pattern;
use crate::weights::quantisation::{Format, Steps};
use sconce_nn::head::Direction;

/// Options of a run; names and meanings are those of `Sconce.Trainer`. Options are deserialized from their groups, from
/// their names alone, as in older files, or from both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct TrainOptions {
    /// Data, and the batches made from it.
    pub data: DataOptions,
    /// Objectives besides imitation, and initial weights.
    pub objective: ObjectiveOptions,
    /// Update rule of the weights.
    pub optimiser: OptimiserOptions,
    /// Length and learning rate.
    pub schedule: ScheduleOptions,
    /// Validation, saves and reports.
    pub saving: SavingOptions,
    /// Device, precision and memory.
    pub machine: MachineOptions,
    /// Imitation loss.
    pub loss: LossOptions,
}

/// Defines a struct for each group.
macro_rules! options {
    (
        data: [$($data:tt)*],
        objective: [$($objective:tt)*],
        optimiser: [$($optimiser:tt)*],
        schedule: [$($schedule:tt)*],
        saving: [$($saving:tt)*],
        machine: [$($machine:tt)*],
        loss: [$($loss:tt)*]
    ) => {
        option_group!(TABLE, "Data of a run, and the batches made from it.", DataOptions, $($data)*);
        option_group!(TABLE, "Objectives of a run beside imitation, and its initial weights.", ObjectiveOptions, $($objective)*);
        option_group!(TABLE, "Update rule of the weights.", OptimiserOptions, $($optimiser)*);
        option_group!(TABLE, "Length of a run, and its learning rate.", ScheduleOptions, $($schedule)*);
        option_group!(TABLE, "Validation, saves and reports of a run.", SavingOptions, $($saving)*);
        option_group!(TABLE, "Device, precision and memory of a run.", MachineOptions, $($machine)*);
        option_group!(
            TABLE,
            "Terms of the imitation loss. `Default` is the full stack that an app trains with.",
            LossOptions,
            $($loss)*
        );
    };
}

others!(Mode, Sampling, LossOn, Optimiser, LrSchedule, Precision, Direction);
others!(Reduction, PosWeight, FocalHeads, Format, Steps, Pattern);

include!("../../options.exs");

/// Another corpus that is mixed in, and its share of the windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Folder of the corpus.
    pub corpus: PathBuf,
    /// First share of the windows.
    pub share: f64,
    /// Last share of the windows; `None` keeps the first.
    #[serde(default)]
    pub to: Option<f64>,
}

/// Decay of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// No decay.
    Constant,
    /// Linear fall to 0.
    Linear,
    /// Half period of a cosine, to 0.
    #[default]
    Cosine,
    /// Half periods of a cosine with restarts.
    CosineRestarts,
    /// Exponential fall.
    Exponential,
}

impl LrSchedule {
    /// Whether the schedule has a decay, which by default is as long as the run.
    pub(crate) fn falls(self) -> bool {
        !matches!(self, LrSchedule::Constant | LrSchedule::CosineRestarts)
    }
}

impl TryFrom<Map<String, Value>> for TrainOptions {
    type Error = String;

    fn try_from(given: Map<String, Value>) -> std::result::Result<Self, String> {
        let groups = nested(given)?;
        let group = |name: &str| groups.get(name).cloned().unwrap_or_else(|| Map::new().into());
        let said = |e: serde_json::Error| e.to_string();
        Ok(TrainOptions {
            data: serde_json::from_value(group("data")).map_err(said)?,
            objective: serde_json::from_value(group("objective")).map_err(said)?,
            optimiser: serde_json::from_value(group("optimiser")).map_err(said)?,
            schedule: serde_json::from_value(group("schedule")).map_err(said)?,
            saving: serde_json::from_value(group("saving")).map_err(said)?,
            machine: serde_json::from_value(group("machine")).map_err(said)?,
            loss: serde_json::from_value(group("loss")).map_err(said)?,
        })
    }
}

/// Sorts training options into their groups.
pub(crate) fn nested(given: Map<String, Value>) -> std::result::Result<Map<String, Value>, String> {
    TABLE.nested(given)
}
