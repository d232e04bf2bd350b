//! Selects the windows of a batch. A window is computed from its index, so no list of windows is stored.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, pool};

use crate::augment::{self, Augment, delay, share};
use crate::batch::{Batch, Look, Reader, fill};
use crate::permutation::Permutation;
use crate::sampling::{SamplerOptions, Sampling};
use crate::view::{View, verify};

/// Checks the options, and that the reader can read the views.
pub(crate) fn check_views(views: &[View], reader: &Reader, options: &SamplerOptions) -> Result<()> {
    for (field, n) in [("window", options.window), ("stride", options.stride)] {
        if n == 0 {
            return Err(Error::out_of_range(field, 0.0, 1.0, f64::from(u32::MAX)));
        }
    }
    augment::check(options, reader.delay)?;
    let game = reader.embedding.game();
    if options.mirror > 0.0 && !game.has_mirror() {
        let got = format!("{}, which has none", game.name());
        return Err(Error::mismatch("mirror", "a game with a mirror", got));
    }
    let width = reader.embedding.raw_width();
    if let Some(view) = views.iter().find(|v| v.raw_width() != width) {
        return Err(Error::mismatch("corpus (numbers a frame)", width, view.raw_width()));
    }
    Ok(())
}

/// Returns the views whose own character (internal id after the first frame) and player tag are listed. An empty
/// list allows all.
pub fn select(views: Vec<View>, characters: &[u8], players: &[String]) -> Result<Vec<View>> {
    let wanted = |view: &View| {
        let character = view.character().is_some_and(|id| characters.contains(&id));
        let player = view.tag().is_some_and(|tag| players.iter().any(|p| p == tag));
        (characters.is_empty() || character) && (players.is_empty() || player)
    };
    let none = views.is_empty();
    let views: Vec<View> = views.into_iter().filter(wanted).collect();
    match views.is_empty() && !none {
        true => Err(Error::not_found(format!(
            "a view of characters {characters:?} and players {players:?} (empty: any)"
        ))),
        false => Ok(views),
    }
}

/// Draws batches of windows.
#[derive(Debug, Clone)]
pub struct Sampler {
    views: Arc<[View]>,
    reader: Reader,
    options: SamplerOptions,
    /// Count of windows in the views before each view.
    before: Arc<[u64]>,
    windows: u64,
    short: usize,
    order: Order,
}

#[derive(Debug, Clone)]
enum Order {
    Shuffled,
    /// Cumulative sums of the views' weights.
    Weighted(Arc<[f64]>),
    Transitions(Arc<Transitions>),
}

/// A window of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub view: usize,
    pub start: usize,
    pub look: Look,
}

impl Sampler {
    /// Creates a sampler. Views shorter than a window are skipped; [`Self::short_views`] counts them.
    pub fn new(views: Vec<View>, reader: Reader, options: SamplerOptions) -> Result<Self> {
        check_views(&views, &reader, &options)?;
        let all = views.len();
        let longest = options.frame_delay_max.unwrap_or(reader.delay);
        let views: Vec<View> =
            views.into_iter().filter(|v| v.len(longest) >= options.window).collect();
        let mut sampler = Sampler {
            short: all - views.len(),
            views: views.into(),
            reader,
            options,
            before: [].into(),
            windows: 0,
            order: Order::Shuffled,
        };
        let mut before = vec![];
        for i in 0..sampler.views.len() {
            before.push(sampler.windows);
            sampler.windows += sampler.windows_of(i);
        }
        sampler.before = before.into();
        if sampler.windows == 0 {
            return Err(Error::not_found(format!("a view of {} frames", sampler.options.window)));
        }
        sampler.order = match sampler.options.sampling {
            Sampling::Shuffled => Order::Shuffled,
            Sampling::Weighted => Order::Weighted(sampler.game_weights()?),
            Sampling::Balanced => Order::Weighted(sampler.balanced_weights()?),
            Sampling::Transitions => Order::Transitions(Arc::new(sampler.transitions()?)),
        };
        Ok(sampler)
    }

    fn longest_delay(&self) -> usize {
        self.options.frame_delay_max.unwrap_or(self.reader.delay)
    }

    /// Count of possible first frames of a window in this view.
    fn starts(&self, view: usize) -> usize {
        self.views[view].len(self.longest_delay()) + 1 - self.options.window
    }

    fn windows_of(&self, view: usize) -> u64 {
        (self.starts(view) / self.options.stride).max(1) as u64
    }

    /// Cumulative weights of the views. A view's weight is its game's weight times the view's windows.
    fn game_weights(&self) -> Result<Arc<[f64]>> {
        let weights = &self.options.weights;
        let of = |(i, view): (usize, &View)| -> Result<f64> {
            let missing = || Error::mismatch("weights", "one for each game", weights.len());
            let weight = *weights.get(view.game()).ok_or_else(missing)?;
            if !(0.0..=f64::MAX).contains(&weight) {
                let field = format!("weights[{}]", view.game());
                return Err(Error::out_of_range(field, weight, 0.0, f64::MAX));
            }
            Ok(weight * self.windows_of(i) as f64)
        };
        sums(self.views.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?)
    }

    /// The class of each view for balanced sampling.
    fn sorts(&self) -> Result<Vec<u32>> {
        let Some(name) = &self.options.balance else {
            let unknown = "sampling by character without a column (balance)";
            let unknown = || Error::mismatch(unknown, "a corpus of replays", "another");
            let character = |view: &View| view.character().map(u32::from).ok_or_else(unknown);
            return self.views.iter().map(character).collect();
        };
        let game = self.reader.embedding.game();
        let column = game.column(name).ok_or_else(|| {
            Error::not_found(format!("column {name} of a frame of {}", game.name()))
        })?;
        let mut raw = vec![0.0; game.width()];
        let value = |view: &View| {
            view.raw(0, &mut raw)?;
            view.verify()?;
            Ok(raw[column].to_bits())
        };
        self.views.iter().map(value).collect()
    }

    fn balanced_weights(&self) -> Result<Arc<[f64]>> {
        let sorts = self.sorts()?;
        let mut windows: HashMap<u32, u64> = HashMap::new();
        for (i, sort) in sorts.iter().enumerate() {
            *windows.entry(*sort).or_default() += self.windows_of(i);
        }
        let weight = |(i, sort): (usize, &u32)| {
            let all = windows.get(sort).copied().unwrap_or(1).max(1);
            self.windows_of(i) as f64 / all as f64
        };
        sums(sorts.iter().enumerate().map(weight).collect())
    }

    fn transitions(&self) -> Result<Transitions> {
        let oversample = self.options.action_oversample;
        if !(1.0..=f64::MAX).contains(&oversample) {
            return Err(Error::out_of_range("action_oversample", oversample, 1.0, f64::MAX));
        }
        Transitions::find(&self.views, &self.reader, self.longest_delay(), oversample)
    }

    /// The reader of the views.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The options of the sampler.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// The views that are long enough for a window.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// Views skipped because they are shorter than a window.
    pub fn short_views(&self) -> usize {
        self.short
    }

    /// Windows in an epoch.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Batches in an epoch. Windows that do not fill a batch are left out of the epoch. If there are fewer
    /// windows than one batch needs, the batch repeats windows.
    pub fn steps_per_epoch(&self, batch_size: usize) -> u64 {
        (self.windows / batch_size.max(1) as u64).max(1)
    }

    /// The batch of a step, counted from 0 over all epochs.
    pub fn batch(&self, step: u64, batch_size: usize) -> Result<Batch> {
        let windows = self.draw(step, batch_size);
        let at = |window: &Window| Some((self.views.get(window.view)?, *window));
        self.gather(step, &windows.iter().filter_map(at).collect::<Vec<_>>())
    }

    /// The batch of these windows, read and augmented with this sampler's options.
    pub(crate) fn gather(&self, step: u64, windows: &[(&View, Window)]) -> Result<Batch> {
        let augment = Augment::new(&self.options, step);
        let mut batch = self.reader.blank(windows.len(), self.options.window);
        let shards = batch.shards(self.options.window);
        fill(shards, |b, mut shard| {
            // An empty batch has one empty shard.
            let Some(&(view, Window { start, look, .. })) = windows.get(b) else { return Ok(()) };
            let mut scratch = self.reader.scratch()?;
            for k in 0..shard.len() {
                let look = augment.look(look, b, k);
                self.reader.read(view, start + k, look, &mut scratch, shard.row(k))?;
            }
            let frames = shard.len();
            self.reader.read_beside(view, start, look.delay, frames, &mut shard)?;
            augment.finish(b, self.options.window, &mut shard);
            Ok(())
        })?;
        verify(windows.iter().map(|(view, _)| *view))?;
        Ok(batch)
    }

    pub(crate) fn draw(&self, step: u64, batch_size: usize) -> Vec<Window> {
        let seed = self.options.seed;
        let epoch = step / self.steps_per_epoch(batch_size);
        let dice = Dice {
            step_in_epoch: step % self.steps_per_epoch(batch_size),
            order: Permutation::new(self.windows, Rng::new(seed, "shuffle", epoch)),
            offsets: Rng::new(seed, "window.offset", epoch),
            choice: Rng::new(seed, "choice", step),
            places: Rng::new(seed, "choice.place", step),
        };
        let mirrors = Rng::new(seed, "mirror", step);
        let delays = Rng::new(seed, "delay", step);
        (0..batch_size as u64)
            .map(|b| {
                let (view, start) = self.place(&dice, b, batch_size as u64);
                let mirror = mirrors.uniform(b) < self.options.mirror;
                let delay = delay(self.reader.delay, self.longest_delay(), &delays, b);
                Window { view, start, look: Look { mirror, delay, forget: false } }
            })
            .collect()
    }

    /// View and first frame of window `b` of a batch.
    fn place(&self, dice: &Dice, b: u64, batch_size: u64) -> (usize, usize) {
        match &self.order {
            Order::Weighted(sums) => {
                let total = sums.last().copied().unwrap_or(0.0);
                let at = share(&dice.choice, b) * total;
                let view = sums.partition_point(|&sum| sum <= at).min(sums.len() - 1);
                (view, dice.places.below(b, self.starts(view) as u64) as usize)
            }
            Order::Transitions(found) if share(&dice.choice, b) < found.share => {
                let (view, frame) = found.get(&dice.places, b);
                let back = dice.places.below(b | 1 << 63, self.options.window as u64) as usize;
                (view, frame.saturating_sub(back).min(self.starts(view) - 1))
            }
            Order::Shuffled | Order::Transitions(_) => {
                let place = (dice.step_in_epoch * batch_size + b) % self.windows;
                self.locate(dice.order.get(place), &dice.offsets)
            }
        }
    }

    /// View and first frame of a window in an epoch.
    fn locate(&self, window: u64, offsets: &Rng) -> (usize, usize) {
        let view = self.before.partition_point(|&b| b <= window) - 1;
        let k = (window - self.before[view]) as usize;
        let room = self.starts(view).min(self.options.stride) as u64;
        let offset = offsets.below(view as u64, room) as usize;
        (view, offset + k * self.options.stride)
    }
}

/// The random generators that draw the windows of a step.
struct Dice {
    step_in_epoch: u64,
    order: Permutation,
    offsets: Rng,
    choice: Rng,
    places: Rng,
}

/// Cumulative sums.
fn sums(weights: Vec<f64>) -> Result<Arc<[f64]>> {
    let mut total = 0.0;
    let sums: Arc<[f64]> = weights
        .into_iter()
        .map(|weight| {
            total += weight;
            total
        })
        .collect();
    match total > 0.0 && total.is_finite() {
        true => Ok(sums),
        false => Err(Error::out_of_range("sum of weights", total, f64::MIN_POSITIVE, f64::MAX)),
    }
}

/// Frames whose action differs from the previous action, four bytes each.
#[derive(Debug)]
struct Transitions {
    /// The frames of all views, concatenated.
    frames: Vec<u32>,
    /// Count of frames in the views before each view.
    before: Vec<usize>,
    /// Share of the windows that are drawn around a frame in `frames`.
    share: f64,
}

impl Transitions {
    fn find(views: &[View], reader: &Reader, delay: usize, oversample: f64) -> Result<Self> {
        let found: Vec<OnceLock<Result<Vec<u32>>>> =
            views.iter().map(|_| OnceLock::new()).collect();
        pool::for_each(views.len(), |i| {
            let _ = found[i].set(changes(&views[i], reader, delay));
        });
        let (mut frames, mut before) = (vec![], vec![]);
        for changes in found.into_iter().filter_map(OnceLock::into_inner) {
            before.push(frames.len());
            frames.extend(changes?);
        }
        let all: usize = views.iter().map(|view| view.len(delay)).sum();
        // The remaining windows are drawn from all frames, including these.
        let more = (oversample - 1.0) * frames.len() as f64 / all.max(1) as f64;
        let share = more / (1.0 + more);
        Ok(Transitions { frames, before, share })
    }

    /// View and frame of a random transition. At least one exists if `share` is not 0.
    fn get(&self, rng: &Rng, place: u64) -> (usize, usize) {
        let i = rng.below(place, self.frames.len() as u64) as usize;
        let view = self.before.partition_point(|&b| b <= i) - 1;
        (view, self.frames[i] as usize)
    }
}

fn changes(view: &View, reader: &Reader, delay: usize) -> Result<Vec<u32>> {
    let heads = &reader.heads;
    let (mut now, mut last) = (vec![0.0; heads.num_labels()], vec![0.0; heads.num_labels()]);
    let mut found = vec![];
    for t in 0..view.len(delay) {
        view.labels(t, reader.delay, false, heads, &mut now)?;
        let known = t > 0 || view.labels_before(t, reader.delay, false, heads, &mut last)?;
        if known && now != last {
            found.push(t as u32);
        }
        std::mem::swap(&mut now, &mut last);
    }
    view.verify()?;
    Ok(found)
}
