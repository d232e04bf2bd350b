//! Augments the windows of a batch: left-right mirroring, noise, dropped previous actions and a random label
//! delay.
//!
//! Every draw depends only on (seed, step, position in the batch). The batch is changed in place.

use sconce_nn::spec::MAX_DELAY;
use sconce_tensor::rng::{Rng, unit};
use sconce_tensor::simd::dispatch;
use sconce_tensor::{Error, Result};

use crate::batch::{Look, Shard};
use crate::sampling::SamplerOptions;

/// The random draws of one step.
pub(crate) struct Augment<'a> {
    options: &'a SamplerOptions,
    gate: Rng,
    noise: Rng,
    forget: Rng,
}

impl<'a> Augment<'a> {
    pub(crate) fn new(options: &'a SamplerOptions, step: u64) -> Self {
        let rng = |purpose| Rng::new(options.seed, purpose, step);
        let (gate, noise, forget) = (rng("noise.gate"), rng("noise"), rng("previous"));
        Augment { options, gate, noise, forget }
    }

    /// Returns the options for reading frame `k` of window `b`.
    pub(crate) fn look(&self, look: Look, b: usize, k: usize) -> Look {
        let dropout = self.options.previous_dropout;
        let place = (b * self.options.window + k) as u64;
        Look { forget: dropout > 0.0 && self.forget.uniform(place) < dropout, ..look }
    }

    /// Adds noise to the continuous features of the first `frames` frames of window `b`, if the draw
    /// selects that window.
    pub(crate) fn finish(&self, b: usize, frames: usize, shard: &mut Shard) {
        if self.options.noise > 0.0 && self.gate.uniform(b as u64) < self.options.noise {
            let numbers = shard.numbers(frames);
            add_noise(numbers, self.options.noise_scale, &self.noise, b as u64);
        }
    }
}

/// Blocks drawn by one call to [`Rng::blocks`]. Each word of a block makes two noise values.
const BLOCKS: usize = 16;
const WORDS: usize = 4 * BLOCKS;

dispatch! {
    /// Adds noise of mean 0 and standard deviation `scale` from stream `b`.
    ///
    /// A noise value is the sum of four uniform integers from 0 to 15 (an Irwin-Hall distribution), which lies
    /// within 3.25 standard deviations of the mean. For noise, the sum is close enough to a normal
    /// distribution, at a twentieth of the cost.
    fn add_noise(values: &mut [f32], scale: f32, rng: &Rng, b: u64) {
        const NIBBLES: u32 = 0x0F0F_0F0F;
        // The sum has mean 4 * 15 / 2 and variance 4 * (16^2 - 1) / 12.
        const MEAN: f32 = 4.0 * 15.0 / 2.0;
        let scale = scale / (4.0_f32 * 255.0 / 12.0).sqrt();
        for (i, values) in values.chunks_mut(2 * WORDS).enumerate() {
            // A window has fewer blocks than 2^32.
            let words = rng.blocks::<BLOCKS>(b << 32 | (i * BLOCKS) as u64);
            let mut noise = [0.0; 2 * WORDS];
            let (low, high) = noise.split_at_mut(WORDS);
            for ((low, high), word) in low.iter_mut().zip(high).zip(words.as_flattened()) {
                let pairs = (word & NIBBLES) + (word >> 4 & NIBBLES);
                let fours = pairs + (pairs >> 8);
                *low = scale * ((fours & 0xFF) as f32 - MEAN);
                *high = scale * ((fours >> 16 & 0xFF) as f32 - MEAN);
            }
            values.iter_mut().zip(&noise).for_each(|(value, noise)| *value += noise);
        }
    }
}

/// Draws a label delay in frames, uniformly from `low..=high`.
pub(crate) fn delay(low: usize, high: usize, rng: &Rng, place: u64) -> usize {
    match high.saturating_sub(low) {
        0 => low,
        more => low + rng.below(place, more as u64 + 1) as usize,
    }
}

/// Checks that probabilities are in `[0, 1]` and that the noise scale and the delay are in range.
pub(crate) fn check(options: &SamplerOptions, delay: usize) -> Result<()> {
    let shares = [
        ("mirror", options.mirror),
        ("noise", options.noise),
        ("previous_dropout", options.previous_dropout),
    ];
    if let Some((field, share)) = shares.into_iter().find(|(_, p)| !(0.0..=1.0).contains(p)) {
        return Err(Error::out_of_range(field, share.into(), 0.0, 1.0));
    }
    if !(0.0..=f32::MAX).contains(&options.noise_scale) {
        let scale = f64::from(options.noise_scale);
        return Err(Error::out_of_range("noise_scale", scale, 0.0, f32::MAX.into()));
    }
    match options.frame_delay_max {
        Some(max) if max < delay || max > MAX_DELAY => {
            let bounds = (delay as f64, MAX_DELAY as f64);
            Err(Error::out_of_range("frame_delay_max", max as f64, bounds.0, bounds.1))
        }
        _ => Ok(()),
    }
}

/// A uniform number in `[0, 1)` with 48 bits.
pub(crate) fn share(rng: &Rng, place: u64) -> f64 {
    let [high, low, ..] = rng.block(place);
    f64::from(unit(high)) + f64::from(unit(low)) / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_the_expected_mean_and_standard_deviation() {
        let rng = Rng::new(3, "noise", 0);
        let mut values = vec![0.0; 100_001];
        add_noise(&mut values, 0.5, &rng, 7);
        let n = values.len() as f64;
        let wide = || values.iter().map(|v| f64::from(*v));
        let mean = wide().sum::<f64>() / n;
        let variance = wide().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.005 && (variance.sqrt() - 0.5).abs() < 0.005, "{mean} {variance}");
        let mut others = vec![0.0; 100_001];
        add_noise(&mut others, 0.5, &rng, 8);
        // A noise value is one of 61 levels; two noise values are equal one time in 33.
        assert!(values.iter().zip(&others).filter(|(a, b)| a == b).count() < 3500);
    }
}
