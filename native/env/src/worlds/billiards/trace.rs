//! A shot of the exact form as a series of positions and events.

use sconce_tensor::simd::LANES;
use sconce_tensor::{Error, Result, dispatch};
use serde::Serialize;

use super::exact::{self, Event, Watch};
use super::lanes::{Mask, V};
use super::table::{BALLS, Balls};
use super::{INPUTS, STATE, WORLD, struck};
use crate::vectorised::Label;

/// Frames after which a trace gets no more of them.
const MAX_FRAMES: usize = 1 << 16;

/// A shot on one table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Shot {
    /// `[frames, 17]`: seconds since the beginning, then x and y of each ball in metres. 64 and more is a ball that fell.
    pub frames: Vec<[f32; 1 + 2 * BALLS]>,
    /// The events in order of time.
    pub events: Vec<ShotEvent>,
    /// The state of the world after the shot.
    pub state: Vec<f32>,
    /// The reward terms of the shot.
    pub terms: Vec<f32>,
}

/// An event of a shot.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ShotEvent {
    /// Seconds since the beginning.
    pub time: f32,
    /// The kind of the event.
    pub kind: ShotEventKind,
    /// The ball.
    pub ball: u8,
    /// The other ball, for [`ShotEventKind::Balls`]; otherwise the ball again.
    pub other: u8,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShotEventKind {
    /// Two balls touched.
    Balls,
    /// A ball touched a cushion.
    Cushion,
    /// A ball fell.
    Pocket,
}

/// Traces a shot on a table in `state`, which is that of a `billiards` environment. Frames are at least `interval_s`
/// seconds apart; the first and the last positions are always among them.
///
/// # Errors
/// `Mismatch` for a wrong number of numbers; `NonFinite` and `OutOfRange` for numbers that are none, and for an interval
/// that is not above 0.
pub fn shot(state: &[f32], input: &[f32], interval_s: f32) -> Result<Shot> {
    let fixed: [f32; STATE] =
        state.try_into().map_err(|_| Error::mismatch("state", STATE, state.len()))?;
    let input: [f32; INPUTS] =
        input.try_into().map_err(|_| Error::mismatch("shot", INPUTS, input.len()))?;
    crate::vectorised::check(&Label::all(&(WORLD.inputs)()), &input)?;
    if let Some(value) = fixed.iter().find(|v| !v.is_finite()) {
        return Err(Error::NonFinite { what: "state".into(), value: f64::from(*value) });
    }
    if !(interval_s > 0.0 && interval_s.is_finite()) {
        return Err(Error::out_of_range("interval_s", f64::from(interval_s), 0.0, 3600.0));
    }
    let mut shot = Shot::default();
    trace(&fixed, &input, interval_s, &mut shot);
    Ok(shot)
}

dispatch! {
    fn trace(state: &[f32; STATE], input: &[f32; INPUTS], interval_s: f32, shot: &mut Shot) {
        let (states, inputs) = (state.map(|v| [v; LANES]), input.map(|v| [v; LANES]));
        let mut balls = struck::<FMA, false>(&states, &inputs, std::array::from_fn(|i| i == 0));
        let mut film = Film { shot, interval_s, time: 0.0 };
        film.take(0.0, &balls);
        exact::run(&mut balls, 1.0, &mut film);
        let last = film.time;
        if film.shot.frames.last().is_some_and(|frame| frame[0] < last) {
            film.take(last, &balls);
        }
        let limit = WORLD.time_limit as f32;
        let (next, terms, _over) = super::judged(state, &balls, 0, limit);
        (shot.state, shot.terms) = (next.to_vec(), terms.to_vec());
    }
}

/// Records table 0.
struct Film<'a> {
    shot: &'a mut Shot,
    interval_s: f32,
    time: f32,
}

impl Film<'_> {
    fn take(&mut self, time: f32, balls: &Balls<f32, LANES>) {
        let mut frame = [time; 1 + 2 * BALLS];
        for i in 0..BALLS {
            (frame[1 + 2 * i], frame[2 + 2 * i]) = (balls.x[i].0[0], balls.y[i].0[0]);
        }
        self.shot.frames.push(frame);
    }
}

impl Watch<f32, LANES> for Film<'_> {
    fn event(
        &mut self,
        event: Event,
        tables: Mask<LANES>,
        time: &V<f32, LANES>,
        _balls: &Balls<f32, LANES>,
    ) {
        if !tables.at(0) || self.shot.events.len() >= MAX_FRAMES {
            return;
        }
        let (kind, ball, other) = match event {
            Event::Balls(i, j) => (ShotEventKind::Balls, i, j),
            Event::Cushion(i) => (ShotEventKind::Cushion, i, i),
            Event::Pocket(i) => (ShotEventKind::Pocket, i, i),
        };
        let (ball, other) = (ball as u8, other as u8);
        self.shot.events.push(ShotEvent { time: time.0[0], kind, ball, other });
    }

    fn substep(&mut self, balls: &Balls<f32, LANES>, time: &V<f32, LANES>) {
        self.time = time.0[0];
        let last = self.shot.frames.last().map_or(0.0, |frame| frame[0]);
        if self.time >= last + self.interval_s && self.shot.frames.len() < MAX_FRAMES {
            self.take(self.time, balls);
        }
    }
}
