//! Takes decisions back.

use sconce_tensor::{Error, Result};

use super::moments::Moment;
use super::open::Session;
use super::query::Way;

impl Session {
    /// How many decisions ago this game frame was decided; `None` if it was not.
    ///
    /// # Errors
    /// `NotFound` if its decision was made but is no longer kept.
    pub(super) fn made(&self, game_frame: Option<i64>) -> Result<Option<usize>> {
        let (Some(asked), Some(last)) = (game_frame, self.moments.now().game_frame) else {
            return Ok(None);
        };
        if asked > last {
            return Ok(None);
        }
        // A decision without a game frame number has that of the decision before.
        let made = self.moments.latest().enumerate().filter(|(_, m)| m.game_frame == Some(asked));
        match made.last() {
            Some((behind, _)) => Ok(Some(behind)),
            None => Err(self.not_kept(asked)),
        }
    }

    /// The error for a game frame whose decision is no longer kept.
    fn not_kept(&self, game_frame: i64) -> Error {
        let numbers = self.moments.latest().filter_map(|moment| moment.game_frame);
        let what = format!("decision for game frame {game_frame}");
        let kept: Vec<String> = numbers.map(|frame| frame.to_string()).collect();
        let reason = format!("the session keeps frames {}; see rollback", kept.join(", "));
        Error::not_found(format!("{what} ({reason})"))
    }

    /// Takes back the decisions of a game frame and of later ones, and returns their count. The same frames decided
    /// again draw the same random numbers.
    ///
    /// # Errors
    /// `NotFound` for a frame before the last `rollback` decisions.
    pub fn rollback(&mut self, game_frame: i64) -> Result<usize> {
        let after = |moment: &&Moment| moment.game_frame.is_some_and(|frame| frame >= game_frame);
        let count = self.moments.latest().take_while(after).count();
        if count == self.moments.latest().count() {
            return Err(self.not_kept(game_frame));
        }
        self.take_back(count);
        Ok(count)
    }

    /// Takes back the decisions after the first `frames` decisions, for a caller that never received them.
    pub fn back_to(&mut self, frames: u64) -> Result<()> {
        let now = self.moments.now().frames;
        let oldest = now - (self.moments.latest().count() as u64 - 1).min(now);
        if frames < oldest {
            let (asked, oldest, now) = (frames as f64, oldest as f64, now as f64);
            return Err(Error::out_of_range("frames", asked, oldest, now));
        }
        self.take_back(now.saturating_sub(frames) as usize);
        Ok(())
    }

    fn take_back(&mut self, count: usize) {
        self.moments.back(count);
        if let Some(recorder) = &mut self.recorder {
            recorder.take_back(count);
        }
        self.ring.forget(count);
        self.asked.way = Way::Made(0);
    }
}
