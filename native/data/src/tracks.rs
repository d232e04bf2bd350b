//! Walks games in order, several side by side, for training with carried memory.
//!
//! Each row of the batch is a track. A track shows the windows of one view in order, one per step, and then
//! takes the next view of an endless random order. The view, window and mirroring of a track at a step
//! depend only on (seed, step).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use crate::augment::{Augment, delay};
use crate::batch::{Batch, Look, Reader, fill};
use crate::permutation::Permutation;
use crate::sampler::check_views;
use crate::sampling::{SamplerOptions, Sampling};
use crate::view::{View, verify};

/// The part of a view that a track shows at a step: frames `start..start + frames`. The rest of the window
/// is padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track {
    /// Index of the view in [`Tracks::views`].
    pub view: usize,
    /// First frame shown.
    pub start: usize,
    /// Frames shown: at least 1, and less than a window only at the end of a game.
    pub frames: usize,
    /// Whether the track takes this view at this step, so that the policy's memory must be reset.
    pub fresh: bool,
    /// Whether the view is mirrored left to right.
    pub mirror: bool,
    /// Frames by which the label lies later than the input that directly follows the state.
    pub delay: usize,
}

/// Maximum steps with a change of views that one call of [`Tracks::approach`] walks past. The caller checks
/// for cancellation between calls.
const STRETCH: usize = 1 << 12;

/// Draws the windows of all tracks, step by step.
#[derive(Debug, Clone)]
pub struct Tracks {
    views: Arc<[View]>,
    reader: Reader,
    options: SamplerOptions,
    /// Every view has more than `skip` frames.
    skip: usize,
    short: usize,
    walk: Walk,
}

/// Position of the tracks, recomputed from step 0 when an earlier step is requested.
#[derive(Debug, Clone)]
struct Walk {
    step: u64,
    /// The view that each track has taken.
    tracks: Vec<Taken>,
    /// Steps at which tracks become free. Tracks that become free at the same step take views in track order.
    free: BinaryHeap<Reverse<(u64, usize)>>,
    /// Count of views taken.
    taken: u64,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    view: usize,
    /// Index of the window of the view that is shown at step `from`.
    first: u64,
    from: u64,
    mirror: bool,
    delay: usize,
}

impl Tracks {
    /// Creates the walk of `tracks` tracks, one per row of a batch. Views with at most `skip` frames are
    /// skipped, because burn-in would leave nothing to learn from. The stride of the options is ignored:
    /// windows are adjacent.
    pub fn new(
        views: Vec<View>,
        reader: Reader,
        options: SamplerOptions,
        tracks: usize,
        skip: usize,
    ) -> Result<Self> {
        check_views(&views, &reader, &options)?;
        if tracks == 0 {
            return Err(Error::out_of_range("tracks", 0.0, 1.0, f64::from(u32::MAX)));
        }
        if options.sampling != Sampling::Shuffled {
            let got = format!("{:?}", options.sampling).to_lowercase();
            return Err(Error::mismatch("sampling of tracks", "shuffled", got));
        }
        let all = views.len();
        let longest = options.frame_delay_max.unwrap_or(reader.delay);
        let long = |view: &View| view.len(longest) > skip;
        let views: Arc<[View]> = views.into_iter().filter(long).collect();
        if views.is_empty() {
            return Err(Error::not_found(format!("a view of more than {skip} frames")));
        }
        let short = all - views.len();
        let walk = Walk::new(tracks);
        let mut tracks = Tracks { views, reader, options, skip, short, walk };
        tracks.walk_to(0);
        Ok(tracks)
    }

    /// The views that are long enough.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// Views skipped because they are too short.
    pub fn short_views(&self) -> usize {
        self.short
    }

    /// Bytes of one batch.
    pub fn bytes(&self) -> u64 {
        self.reader.bytes(self.walk.tracks.len(), self.options.window)
    }

    /// Frames of a view that have a label at every allowed delay.
    fn len(&self, view: usize) -> usize {
        self.views[view].len(self.options.frame_delay_max.unwrap_or(self.reader.delay))
    }

    fn windows_of(&self, view: usize) -> u64 {
        self.len(view).div_ceil(self.options.window) as u64
    }

    /// Steps in an epoch. An epoch shows as many windows as all views contain.
    pub fn steps_per_epoch(&self) -> u64 {
        let windows: u64 = (0..self.views.len()).map(|view| self.windows_of(view)).sum();
        (windows / self.walk.tracks.len() as u64).max(1)
    }

    /// Walks towards `step`, past at most [`STRETCH`] steps at which tracks take views. Returns whether the
    /// walk is at `step`.
    pub fn approach(&mut self, step: u64) -> bool {
        if step < self.walk.step {
            self.walk = Walk::new(self.walk.tracks.len());
            self.walk_to(0);
        }
        // Between two such steps, every track shows the next window of its view.
        for _ in 0..STRETCH {
            match self.walk.free.peek() {
                Some(&Reverse((free, _))) if free <= step => self.walk_to(free),
                _ => {
                    self.walk.step = step;
                    return true;
                }
            }
        }
        false
    }

    /// The part of a view that each track shows at `step`. Ascending steps are cheapest.
    pub fn at(&mut self, step: u64) -> Vec<Track> {
        while !self.approach(step) {}
        let window = self.options.window;
        let track = |taken: &Taken| {
            let start = (taken.first + step - taken.from) as usize * window;
            let frames = self.len(taken.view) - start;
            Track {
                view: taken.view,
                start,
                frames: frames.min(window),
                fresh: step == taken.from,
                mirror: taken.mirror,
                delay: taken.delay,
            }
        };
        self.walk.tracks.iter().map(track).collect()
    }

    /// Makes the batch of a step, `[tracks, window]`. Frames after the end of a game are zeros with weight 0.
    /// The first `burn_in` frames of a view also have weight 0.
    pub fn batch(&mut self, step: u64, burn_in: usize) -> Result<(Batch, Vec<Track>)> {
        let tracks = self.at(step);
        let augment = Augment::new(&self.options, step);
        let mut batch = self.reader.blank(tracks.len(), self.options.window);
        batch.weights.fill(0.0);
        fill(batch.shards(self.options.window), |i, mut shard| {
            let Some(&Track { view, start, frames, fresh, mirror, delay }) = tracks.get(i) else {
                return Ok(());
            };
            let (view, look) = (&self.views[view], Look { mirror, delay, forget: false });
            let mut scratch = self.reader.scratch(view)?;
            view.reading(|| {
                for k in 0..frames {
                    let look = augment.look(look, i, k);
                    self.reader.read(view, start + k, look, &mut scratch, shard.row(k))?;
                    if fresh && k < burn_in {
                        *shard.row(k).weight = 0.0;
                    }
                }
                self.reader.read_beside(view, start, delay, frames, &mut shard)
            })?;
            augment.finish(i, frames, &mut shard);
            Ok(())
        })?;
        verify(tracks.iter().filter_map(|track| self.views.get(track.view)))?;
        Ok((batch, tracks))
    }

    /// Gives tracks that are free at `step` their next views. `step` must be the next one with free tracks.
    fn walk_to(&mut self, step: u64) {
        self.walk.step = step;
        while let Some(&Reverse((free, track))) = self.walk.free.peek()
            && free <= step
        {
            self.walk.free.pop();
            let taken = self.take(track, step);
            let left = self.windows_of(taken.view) - taken.first;
            self.walk.tracks[track] = taken;
            self.walk.free.push(Reverse((step + left, track)));
        }
    }

    fn take(&mut self, track: usize, step: u64) -> Taken {
        let (n, seed) = (self.views.len() as u64, self.options.seed);
        let (epoch, place) = (self.walk.taken / n, self.walk.taken % n);
        self.walk.taken += 1;
        let view = Permutation::new(n, Rng::new(seed, "lanes.shuffle", epoch)).get(place) as usize;
        let mirror = Rng::new(seed, "lanes.mirror", epoch).uniform(place) < self.options.mirror;
        let delays = Rng::new(seed, "lanes.delay", epoch);
        let longest = self.options.frame_delay_max.unwrap_or(self.reader.delay);
        let delay = delay(self.reader.delay, longest, &delays, place);
        // Random first windows keep games of equal length from starting in lockstep.
        let first = match step {
            0 => {
                let room = (self.len(view) - self.skip).div_ceil(self.options.window);
                Rng::new(seed, "lanes.first", 0).below(track as u64, room as u64)
            }
            _ => 0,
        };
        Taken { view, first, from: step, mirror, delay }
    }
}

impl Walk {
    fn new(tracks: usize) -> Self {
        let nothing = Taken { view: 0, first: 0, from: 0, mirror: false, delay: 0 };
        let free = (0..tracks).map(|track| Reverse((0, track))).collect();
        Walk { step: 0, tracks: vec![nothing; tracks], free, taken: 0 }
    }
}
