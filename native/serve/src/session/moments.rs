//! A session's memory after each of its last decisions.

use sconce_nn::heads::Decision;
use sconce_tensor::{Result, memory};

use super::carried::Carried;
use super::past::Past;

/// The memory after a decision, without the frames of a window.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    /// Decisions made since the start.
    pub frames: u64,
    /// Game frame number of the last numbered decision.
    pub game_frame: Option<i64>,
    pub state: Carried,
    /// The latest inputs: the session's decisions, or the real inputs where a frame or the caller gave them.
    pub past: Past,
    /// The last decision.
    pub decision: Decision,
    /// Identifies the run of consecutive steps, none taken back, that made this moment. `None` while the moment is
    /// being made.
    pub run: Option<u64>,
}

/// A ring of moments: the present one, the next one while it is being made, and earlier ones. The storage is allocated
/// once; advancing copies nothing.
#[derive(Debug)]
pub(super) struct Moments {
    all: Vec<Moment>,
    now: usize,
    /// Number of moments kept before the present one.
    behind: usize,
    run: u64,
}

impl Moment {
    /// Number of steps from this moment to a later one; `None` if anything but steps lies between.
    pub(super) fn steps_to(&self, later: &Moment) -> Option<usize> {
        let same = self.run.is_some() && self.run == later.run;
        let steps = later.frames.checked_sub(self.frames)?;
        (same && steps > 0).then(|| usize::try_from(steps).ok())?
    }
}

impl Moments {
    /// Starts at `first`, with storage for `behind` earlier moments.
    ///
    /// # Errors
    /// `OutOfMemory` if `behind + 2` states do not fit.
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

    /// The present moment, and the storage of the next.
    pub(super) fn next(&mut self) -> (&Moment, &mut Moment) {
        let next = (self.now + 1) % self.all.len();
        let (low, high) = self.all.split_at_mut(self.now.max(next));
        match next > self.now {
            true => (&low[self.now], &mut high[0]),
            false => (&high[0], &mut low[next]),
        }
    }

    /// Makes the next moment the present one. `stepped` says whether its state is one step after the present state.
    pub(super) fn advance(&mut self, stepped: bool) {
        self.run += u64::from(!stepped);
        self.now = (self.now + 1) % self.all.len();
        self.all[self.now].run = Some(self.run);
        self.behind = (self.behind + 1).min(self.all.len() - 2);
    }

    /// The present moment and the kept earlier ones, newest first.
    pub(super) fn latest(&self) -> impl Iterator<Item = &Moment> {
        let len = self.all.len();
        (0..=self.behind).map(move |k| &self.all[(self.now + len - k) % len])
    }

    /// Takes back the last `count` decisions; `count` is at most the number of earlier moments.
    pub(super) fn back(&mut self, count: usize) {
        let len = self.all.len();
        self.now = (self.now + len - count) % len;
        self.behind -= count;
        self.run += u64::from(count > 0);
    }

    /// Restarts from a moment that was made elsewhere.
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
