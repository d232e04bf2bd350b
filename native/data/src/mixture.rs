//! Mixes windows of several corpora in one batch. Each corpus has a share.

use std::sync::Arc;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use crate::augment::share;
use crate::batch::{Batch, Reader};
use crate::sampler::{Sampler, Window};
use crate::sampling::{SamplerOptions, Sampling};
use crate::view::View;

/// Expected share of a batch's windows that come from a corpus. The share changes linearly from `from`
/// at step 0 to `to` at step `steps`, and is then constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Share at step 0, in `[0, 1]`.
    pub from: f64,
    /// Share from step `steps` on, in `[0, 1]`.
    pub to: f64,
    /// Count of steps of the linear change.
    pub steps: u64,
}

impl Share {
    fn at(&self, step: u64) -> f64 {
        match step < self.steps {
            true => self.from + (self.to - self.from) * step as f64 / self.steps as f64,
            false => self.to,
        }
    }
}

/// Draws batches of windows from one corpus, or from several at once.
#[derive(Debug, Clone)]
pub struct Mixture {
    /// One sampler per corpus. The first corpus gets the share that the others leave.
    parts: Arc<[Sampler]>,
    shares: Arc<[Share]>,
}

impl From<Sampler> for Mixture {
    fn from(sampler: Sampler) -> Self {
        Mixture { parts: [sampler].into(), shares: [].into() }
    }
}

impl Mixture {
    /// Adds views of other corpora, with the reader and options of the first sampler.
    ///
    /// # Errors
    /// `OutOfRange` if a share is outside `[0, 1]`, or if the shares add up to more than 1 at any step.
    pub fn new(first: Sampler, others: Vec<(Vec<View>, Share)>) -> Result<Self> {
        let all = |at: fn(&Share) -> f64| others.iter().map(|(_, share)| at(share)).sum::<f64>();
        for (i, (_, share)) in others.iter().enumerate() {
            for share in [share.from, share.to] {
                if !(0.0..=1.0).contains(&share) {
                    return Err(Error::out_of_range(format!("mix[{i}] (share)"), share, 0.0, 1.0));
                }
            }
        }
        for sum in [all(|share| share.from), all(|share| share.to)] {
            // The tolerance allows for rounding error in decimal fractions.
            if sum > 1.0 + 1e-9 {
                return Err(Error::out_of_range("shares of mix together", sum, 0.0, 1.0));
            }
        }
        let shares = others.iter().map(|(_, share)| *share).collect();
        let (reader, mut options) = (first.reader().clone(), first.options().clone());
        // The weights list games of the first corpus only, so windows of other corpora are shuffled.
        if options.sampling == Sampling::Weighted {
            options.sampling = Sampling::Shuffled;
        }
        let other = |(views, _)| Sampler::new(views, reader.clone(), options.clone());
        let others = others.into_iter().map(other).collect::<Result<Vec<_>>>()?;
        Ok(Mixture { parts: std::iter::once(first).chain(others).collect(), shares })
    }

    fn first(&self) -> &Sampler {
        &self.parts[0]
    }

    /// The reader of the first sampler, used for all corpora.
    pub fn reader(&self) -> &Reader {
        self.first().reader()
    }

    /// The options of the first sampler.
    pub fn options(&self) -> &SamplerOptions {
        self.first().options()
    }

    /// Views skipped because they are shorter than a window.
    pub fn short_views(&self) -> usize {
        self.parts.iter().map(Sampler::short_views).sum()
    }

    /// Batches in an epoch. An epoch draws as many windows as all corpora contain.
    pub fn steps_per_epoch(&self, batch_size: usize) -> u64 {
        let windows: u64 = self.parts.iter().map(Sampler::windows).sum();
        (windows / batch_size.max(1) as u64).max(1)
    }

    /// The batch of a step, counted from 0 over all epochs.
    pub fn batch(&self, step: u64, batch_size: usize) -> Result<Batch> {
        self.first().gather(step, &self.draw(step, batch_size))
    }

    /// View and first frame of each window in the batch of a step.
    pub fn places(&self, step: u64, batch_size: usize) -> Vec<(&View, usize)> {
        self.draw(step, batch_size).into_iter().map(|(view, window)| (view, window.start)).collect()
    }

    fn draw(&self, step: u64, batch_size: usize) -> Vec<(&View, Window)> {
        let drawn: Vec<Vec<Window>> =
            self.parts.iter().map(|part| part.draw(step, batch_size)).collect();
        let dice = Rng::new(self.options().seed, "mix", step);
        let window = |b: usize| {
            let part = self.part(step, &dice, b as u64);
            let window = *drawn.get(part)?.get(b)?;
            Some((self.parts.get(part)?.views().get(window.view)?, window))
        };
        (0..batch_size).filter_map(window).collect()
    }

    /// Index of the corpus that window `b` is drawn from.
    fn part(&self, step: u64, dice: &Rng, b: u64) -> usize {
        if self.shares.is_empty() {
            return 0;
        }
        let mut at = share(dice, b);
        for (i, of) in self.shares.iter().enumerate() {
            at -= of.at(step);
            if at < 0.0 {
                return i + 1;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_changes_linearly_and_then_stays() {
        let share = Share { from: 0.2, to: 0.6, steps: 4 };
        let at: Vec<f64> = (0..6).map(|step| share.at(step)).collect();
        for (got, want) in at.iter().zip([0.2, 0.3, 0.4, 0.5, 0.6, 0.6]) {
            assert!((got - want).abs() < 1e-12);
        }
        assert_eq!(Share { steps: 0, ..share }.at(0), 0.6);
    }
}
