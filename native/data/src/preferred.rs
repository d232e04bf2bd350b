//! The frames that a sampler draws more often than others.

use std::sync::OnceLock;

use sconce_nn::spec::Heads;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, pool};

use crate::batch::Reader;
use crate::sampling::{SamplerOptions, Sampling};
use crate::schema::Beside;
use crate::view::View;

/// The rule that selects the frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rule {
    /// The action differs from the one before.
    Change,
    /// The action has a bit, such as a pressed button.
    Bit,
    /// An extra column of the corpus is not 0 in the row of the action.
    Beside(Beside),
    /// A value of the raw frame is not 0.
    Frame(usize),
}

impl Rule {
    /// The rule of these options.
    ///
    /// # Errors
    /// `Mismatch` for buttons without a head of bits, or for a missing name; `NotFound` for an unknown column.
    pub(crate) fn new(options: &SamplerOptions, reader: &Reader, views: &[View]) -> Result<Self> {
        match options.sampling {
            Sampling::Buttons if bits(&reader.heads).next().is_none() => {
                Err(Error::mismatch("sampling: buttons", "a head of bits", "none"))
            }
            Sampling::Buttons => Ok(Rule::Bit),
            Sampling::Column => Rule::of_column(options, reader, views),
            _ => Ok(Rule::Change),
        }
    }

    fn of_column(options: &SamplerOptions, reader: &Reader, views: &[View]) -> Result<Self> {
        let Some(name) = &options.oversample_column else {
            return Err(Error::mismatch("sampling: column", "an oversample_column", "none"));
        };
        let stored = |beside: &Beside| {
            let all = |view: &View| view.schema().beside().contains(beside);
            beside.name() == name && views.iter().all(all)
        };
        if let Some(beside) = Beside::ALL.into_iter().find(stored) {
            return Ok(Rule::Beside(beside));
        }
        let game = views.first().map_or(reader.embedding.game(), |view| view.schema().game());
        let column = game.column(name).map(Rule::Frame);
        column
            .ok_or_else(|| Error::not_found(format!("column {name} of a frame of {}", game.name())))
    }
}

/// Ranges of the labels that are bits.
fn bits(heads: &Heads) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let bits = heads.iter().filter(|head| head.head.kind.bits() > 0);
    bits.map(|head| head.labels..head.labels + head.head.kind.labels())
}

/// Frames that a rule selects, four bytes each.
#[derive(Debug)]
pub(crate) struct Preferred {
    /// The frames of all views, concatenated.
    frames: Vec<u32>,
    /// Count of frames in the views before each view.
    before: Vec<usize>,
    /// Share of the windows that are drawn around a frame in `frames`.
    pub share: f64,
}

impl Preferred {
    pub(crate) fn find(
        views: &[View],
        reader: &Reader,
        delay: usize,
        oversample: f64,
        rule: &Rule,
    ) -> Result<Self> {
        let found: Vec<OnceLock<Result<Vec<u32>>>> =
            views.iter().map(|_| OnceLock::new()).collect();
        pool::for_each(views.len(), |i| {
            let _ = found[i].set(selected(&views[i], reader, delay, rule));
        });
        let (mut frames, mut before) = (vec![], vec![]);
        for selected in found.into_iter().filter_map(OnceLock::into_inner) {
            before.push(frames.len());
            frames.extend(selected?);
        }
        let all: usize = views.iter().map(|view| view.len(delay)).sum();
        // The remaining windows are drawn from all frames, including these and those without an answer.
        let more = (oversample - 1.0) * frames.len() as f64 / all.max(1) as f64;
        let share = more / (1.0 + more);
        Ok(Preferred { frames, before, share })
    }

    /// View and frame of a random selected frame. At least one exists if `share` is not 0.
    pub(crate) fn get(&self, rng: &Rng, place: u64) -> (usize, usize) {
        let i = rng.below(place, self.frames.len() as u64) as usize;
        let view = self.before.partition_point(|&b| b <= i) - 1;
        (view, self.frames[i] as usize)
    }
}

fn selected(view: &View, reader: &Reader, delay: usize, rule: &Rule) -> Result<Vec<u32>> {
    let found = match rule {
        Rule::Change => changes(view, reader, delay)?,
        Rule::Bit => {
            let mut labels = vec![0.0; reader.heads.num_labels()];
            let bits: Vec<_> = bits(&reader.heads).collect();
            each(view, delay, |t| {
                view.labels(t, reader.delay, false, &reader.heads, &mut labels)?;
                let mut bits = bits.iter().filter_map(|bits| labels.get(bits.clone()));
                Ok(bits.any(|bits| bits.iter().any(|bit| *bit != 0.0)))
            })?
        }
        Rule::Beside(what) => each(view, delay, |t| {
            Ok(view.beside(*what, t, reader.delay)?.is_some_and(|value| value != 0.0))
        })?,
        Rule::Frame(column) => {
            let mut raw = vec![0.0; view.raw_width()];
            each(view, delay, |t| {
                view.raw(t, &mut raw)?;
                Ok(raw.get(*column).is_some_and(|value| *value != 0.0))
            })?
        }
    };
    view.verify()?;
    Ok(found)
}

/// The answered frames for which `wanted` is true.
fn each(
    view: &View,
    delay: usize,
    mut wanted: impl FnMut(usize) -> Result<bool>,
) -> Result<Vec<u32>> {
    let mut found = vec![];
    for t in view.answered(delay) {
        if wanted(t)? {
            found.push(t as u32);
        }
    }
    Ok(found)
}

/// The frames whose action differs from the one that was played before it.
fn changes(view: &View, reader: &Reader, delay: usize) -> Result<Vec<u32>> {
    let heads = &reader.heads;
    let (mut now, mut last) = (vec![0.0; heads.num_labels()], vec![0.0; heads.num_labels()]);
    // The label before is the action before, except that an expert's answer was not played.
    let follows = !view.schema().is_relabelled();
    each(view, delay, |t| {
        view.labels(t, reader.delay, false, heads, &mut now)?;
        let known =
            follows && t > 0 || view.labels_before(t, reader.delay, false, heads, &mut last)?;
        let changed = known && now != last;
        std::mem::swap(&mut now, &mut last);
        Ok(changed)
    })
}
