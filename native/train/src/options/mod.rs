//! Options of a run and of an evaluation, and their bounds.

mod check;
mod device;
mod evaluate;
mod group;
mod literal;
mod loss;
mod parts;
mod table;
mod teachers;
mod train;

pub(crate) use check::MAX_FRAMES;
pub use evaluate::{EvalOptions, EvaluateOptions, Mode};
pub use group::Number;
pub use loss::{FocalHeads, PosWeight, Reduction};
pub(crate) use table::{NAMED, at_least, rows};
pub use table::{Row, Table};
pub use teachers::Teachers;
pub(crate) use train::nested;
pub use train::{
    DataOptions, LossOptions, LrSchedule, MachineOptions, ObjectiveOptions, OptimiserOptions,
    SavingOptions, ScheduleOptions, TrainOptions,
};

#[cfg(test)]
mod tests;
