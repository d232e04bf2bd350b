//! A session's memory after each of its last decisions.

use sconce_nn::heads::Decision;
use sconce_tensor::{Result, memory};

use super::carried::Carried;
use super::past::Past;

/// All that a decision leaves to the next but the frames of a window.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    /// Decisions made since the start.
    pub frames: u64,
    /// The number that the caller gave the last of them.
    pub game_frame: Option<i64>,
    pub state: Carried,
    /// The latest inputs: the session's decisions, unless a frame or its caller knew better.
    pub past: Past,
    /// The last of them.
    pub decision: Decision,
    /// The run of steps that it is of, one after the other and none taken back. None while it is made.
    pub run: Option<u64>,
}

/// The present moment, the next one while it is made, and some before the present, in storage that is taken once:
/// what may become the next moment is not copied when it does.
#[derive(Debug)]
pub(super) struct Moments {
    all: Vec<Moment>,
    now: usize,
    /// Moments before the present one.
    behind: usize,
    run: u64,
}

impl Moment {
    /// How many steps it is before a later moment, if steps are all that lies between.
    pub(super) fn steps_to(&self, later: &Moment) -> Option<usize> {
        let same = self.run.is_some() && self.run == later.run;
        let steps = later.frames.checked_sub(self.frames)?;
        (same && steps > 0).then(|| usize::try_from(steps).ok())?
    }
}

impl Moments {
    /// From `first` on, with room for `behind` before the present one.
    ///
    /// # Errors
    /// `OutOfMemory`: a state may be large, and there are `behind + 2` of them.
    pub(super) fn new(first: Moment, behind: usize) -> Result<Self> {
        let bytes = first.state.bytes().saturating_mul(behind + 2);
        memory::room("states of a session", bytes as u64)?;
        memory::caught(|| {
            memory::granted(bytes);
            Ok(())
        })
        .map_err(|error| error.asking("states of a session", bytes as u64))?;
        let first = Moment { run: Some(0), ..first };
        Ok(Moments { all: vec![first; behind + 2], now: 0, behind: 0, run: 0 })
    }

    pub(super) fn now(&self) -> &Moment {
        &self.all[self.now]
    }

    /// The present moment, and the place of the next.
    pub(super) fn next(&mut self) -> (&Moment, &mut Moment) {
        let next = (self.now + 1) % self.all.len();
        let (low, high) = self.all.split_at_mut(self.now.max(next));
        match next > self.now {
            true => (&low[self.now], &mut high[0]),
            false => (&high[0], &mut low[next]),
        }
    }

    /// Makes the next moment the present one; `stepped`, if its state is a step after that of the present.
    pub(super) fn advance(&mut self, stepped: bool) {
        self.run += u64::from(!stepped);
        self.now = (self.now + 1) % self.all.len();
        self.all[self.now].run = Some(self.run);
        self.behind = (self.behind + 1).min(self.all.len() - 2);
    }

    /// The present moment and those before it, newest first.
    pub(super) fn latest(&self) -> impl Iterator<Item = &Moment> {
        let len = self.all.len();
        (0..=self.behind).map(move |k| &self.all[(self.now + len - k) % len])
    }

    /// Forgets the last `count` decisions, which must be behind the present.
    pub(super) fn back(&mut self, count: usize) {
        let len = self.all.len();
        self.now = (self.now + len - count) % len;
        self.behind -= count;
        self.run += u64::from(count > 0);
    }

    /// Begins anew from a moment that was not made here.
    pub(super) fn begin(&mut self, first: Moment) {
        self.run += 1;
        self.all[self.now] = Moment { run: Some(self.run), ..first };
        self.behind = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |of: &Moment| of.state.bytes() + size_of_val(of.past.labels());
        self.all.iter().map(bytes).sum()
    }
}
