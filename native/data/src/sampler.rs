//! Selects the windows of a batch. A window is computed from its index, so no list of windows is stored.

use std::collections::HashMap;
use std::sync::Arc;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use crate::augment::{self, Augment, delay, share};
use crate::batch::{Batch, Look, Reader, fill};
use crate::permutation::Permutation;
use crate::preferred::{Preferred, Rule};
use crate::sampling::{LossOn, SamplerOptions, Sampling};
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
    let embedded = |view: &View| view.schema().is_embedded_by(&reader.embedding);
    if views.iter().any(embedded) {
        check_embedded(reader, options)?;
    }
    match views.iter().find(|view| view.raw_width() != width && !embedded(view)) {
        Some(view) => Err(Error::mismatch("corpus (numbers a frame)", width, view.raw_width())),
        None => Ok(()),
    }
}

/// Refuses options that would need the raw values of frames that are embedded already.
fn check_embedded(reader: &Reader, options: &SamplerOptions) -> Result<()> {
    let got = "embedded frames";
    if options.mirror > 0.0 {
        return Err(Error::mismatch("mirror", "frames of replays", got));
    }
    let inputs = reader.embedding.queue_depth() > 1 || reader.embedding.num_delays() > 0;
    let delayed = reader.delay > 0 || options.frame_delay_max.is_some_and(|max| max > 0);
    match inputs && delayed {
        true => Err(Error::mismatch("frame_delay", "0, as the frames have theirs stored", got)),
        false => Ok(()),
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
    Preferred(Arc<Preferred>),
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
            Sampling::Transitions | Sampling::Buttons | Sampling::Column => {
                Order::Preferred(Arc::new(sampler.preferred()?))
            }
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

    fn preferred(&self) -> Result<Preferred> {
        let oversample = self.options.action_oversample;
        if !(1.0..=f64::MAX).contains(&oversample) {
            return Err(Error::out_of_range("action_oversample", oversample, 1.0, f64::MAX));
        }
        let rule = Rule::new(&self.options, &self.reader, &self.views)?;
        Preferred::find(&self.views, &self.reader, self.longest_delay(), oversample, &rule)
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
            let mut scratch = self.reader.scratch(view)?;
            view.reading(|| {
                for k in 0..shard.len() {
                    let look = augment.look(look, b, k);
                    self.reader.read(view, start + k, look, &mut scratch, shard.row(k))?;
                }
                let frames = shard.len();
                self.reader.read_beside(view, start, look.delay, frames, &mut shard)
            })?;
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
            Order::Preferred(found) if share(&dice.choice, b) < found.share => {
                let (view, frame) = found.get(&dice.places, b);
                let window = self.options.window;
                let back = match self.options.loss_on {
                    LossOn::All => dice.places.below(b | 1 << 63, window as u64) as usize,
                    LossOn::Last => window - 1,
                };
                (view, frame.saturating_sub(back).min(self.starts(view) - 1))
            }
            Order::Shuffled | Order::Preferred(_) => {
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
