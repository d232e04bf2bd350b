//! Times of work on a card: a pair of events around an op, read when a trace ends.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::cuda_backend::cudarc::driver::sys::{CUevent_flags, CUstreamCaptureStatus};
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, DriverError};
use candle_core::{CudaDevice, Device};

use super::event::{Event, Kind};
use super::recorder::{self, Foreign};

/// Pairs of events that wait until a trace ends. Further work is not timed.
const MOST: usize = 1 << 16;

static CARDS: Mutex<Vec<Card>> = Mutex::new(Vec::new());

/// The work of a card that was timed.
struct Card {
    ordinal: usize,
    track: Foreign,
    /// An event that the card had passed at this instant.
    zero: CudaEvent,
    at: Instant,
    timed: Vec<Timed>,
}

struct Timed {
    kind: Kind,
    name: &'static str,
    bytes: u64,
    began: CudaEvent,
    ended: CudaEvent,
}

/// Work of a card whose end is noted when this is dropped.
pub(super) struct Stopwatch {
    card: CudaDevice,
    kind: Kind,
    name: &'static str,
    bytes: u64,
    began: Option<CudaEvent>,
}

impl Stopwatch {
    /// Notes the start of work on a card. `None` on a CPU, and while work is recorded for later.
    pub(super) fn start(
        device: &Device,
        kind: Kind,
        name: &'static str,
        bytes: u64,
    ) -> Option<Self> {
        let Device::Cuda(card) = device else { return None };
        let status = card.cuda_stream().capture_status().ok()?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return None;
        }
        known(&mut cards(), card).ok()?;
        let began = event(card).ok()?;
        Some(Stopwatch { card: card.clone(), kind, name, bytes, began: Some(began) })
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        let (Some(began), Ok(ended)) = (self.began.take(), event(&self.card)) else { return };
        let mut cards = cards();
        let Ok(card) = known(&mut cards, &self.card) else { return };
        if card.timed.len() < MOST {
            let Stopwatch { kind, name, bytes, .. } = *self;
            card.timed.push(Timed { kind, name, bytes, began, ended });
        } else {
            recorder::lose(1);
        }
    }
}

/// Turns the pairs of events into spans of the card's track, and waits for the card.
pub(super) fn settle() {
    for card in cards().iter_mut() {
        let (zero, at) = (&card.zero, card.at);
        for Timed { kind, name, bytes, began, ended } in card.timed.drain(..) {
            let place = |event: &CudaEvent| Some(at + millis(zero.elapsed_ms(event).ok()?));
            if let (Some(start), Some(end)) = (place(&began), place(&ended)) {
                card.track.record(Event { kind, name, start, end, bytes });
            }
        }
    }
}

fn millis(millis: f32) -> Duration {
    Duration::try_from_secs_f64(f64::from(millis) / 1e3).unwrap_or_default()
}

fn cards() -> MutexGuard<'static, Vec<Card>> {
    CARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known<'a>(cards: &'a mut Vec<Card>, card: &CudaDevice) -> Result<&'a mut Card, DriverError> {
    let ordinal = card.cuda_stream().context().ordinal();
    let place = match cards.iter().position(|known| known.ordinal == ordinal) {
        Some(place) => place,
        None => {
            let zero = event(card)?;
            zero.synchronize()?;
            let (at, track) = (Instant::now(), Foreign::new(format!("cuda:{ordinal}")));
            cards.push(Card { ordinal, track, zero, at, timed: vec![] });
            cards.len() - 1
        }
    };
    Ok(&mut cards[place])
}

fn event(card: &CudaDevice) -> Result<CudaEvent, DriverError> {
    card.cuda_stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
}
