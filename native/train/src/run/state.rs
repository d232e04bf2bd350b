//! The state of a run between two steps.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use sconce_data::View;
use sconce_tensor::device::Caching;

use super::folder::Folder;
use super::progress::Progress;
use super::room::Room;
use super::saver::Saver;
use super::watch::Ask;
use crate::baselines::Counts;
use crate::options::TrainOptions;
use crate::replicas::Replicas;
use crate::report::{Event, Pace, Side};
use crate::schedule::Schedule;
use crate::source::Source;

/// The state of a run between two steps.
pub(super) struct Run<'a> {
    /// The options. In a resumed run, the schedule has its original lengths.
    pub options: TrainOptions,
    pub folder: Folder,
    pub saver: Saver,
    /// Step and time of the last save.
    pub saved: (u64, Instant),
    pub events: &'a dyn Fn(Event),
    pub ask: Option<Ask<'a>>,
    pub cancel: &'a AtomicBool,
    pub replicas: Replicas<'a>,
    pub room: Room,
    pub schedule: Schedule,
    pub source: Source,
    pub counts: Counts,
    pub train: Side,
    pub validation: (Side, Vec<View>),
    pub epoch_steps: u64,
    pub progress: Progress,
    pub waiting: Vec<Waiting>,
    /// This field is dropped last, after all fields above have freed their memory on the card.
    pub _caching: Vec<Caching>,
}

/// A step whose figures wait on a card.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub step: u64,
    pub learning_rate: f64,
    pub pace: Pace,
    pub seconds: f64,
}
