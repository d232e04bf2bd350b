//! From logits to a choice, with the randomness given from outside.

use serde::{Deserialize, Serialize};

use crate::ops::simd::sigmoid;
use crate::rng::Rng;
use crate::spec::HeadKind;
use crate::{Error, Result};

/// How a choice is drawn. The defaults sample what the policy believes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Logits are divided by it, of every head: towards 0 the choice becomes the most likely one.
    pub temperature: f32,
    /// The most likely choice of every head.
    pub deterministic: bool,
    /// The most likely bits, sampled classes.
    pub deterministic_buttons: bool,
    /// A released bit is pressed above this probability; for deterministic bits.
    pub press_threshold: f32,
    /// A held bit is released at or below this probability; for deterministic bits.
    pub release_threshold: f32,
}

/// Where choices come from: drawn, each row with a generator of its own, or given.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    pub sampling: &'a Sampling,
    pub rngs: &'a [Rng],
    /// `[n, num_labels]`: nothing is drawn, and logits are those of this action. Of autoregressive
    /// heads that is the only way to score an action.
    pub given: Option<&'a [u16]>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            deterministic: false,
            deterministic_buttons: false,
            press_threshold: 0.5,
            release_threshold: 0.5,
        }
    }
}

impl Sampling {
    pub fn validate(&self) -> Result<()> {
        let bounded = |field: &str, value: f32, min: f32, max: f32| match value {
            v if v >= min && v <= max => Ok(()),
            v => Err(Error::out_of_range(field, v.into(), min.into(), max.into())),
        };
        bounded("temperature", self.temperature, 1e-3, 1e3)?;
        bounded("press_threshold", self.press_threshold, 0.0, 1.0)?;
        bounded("release_threshold", self.release_threshold, 0.0, 1.0)
    }

    /// Chooses one head's part of one row. `index` is the first random number it may use, `held` its
    /// part of the previous choice.
    pub fn choose(
        &self,
        kind: HeadKind,
        logits: &[f32],
        rng: &Rng,
        index: u64,
        held: Option<&[u16]>,
        out: &mut [u16],
    ) {
        match kind {
            HeadKind::Bernoulli(_) => {
                for (i, (logit, bit)) in logits.iter().zip(out).enumerate() {
                    let held = held.and_then(|h| h.get(i)).is_some_and(|&b| b == 1);
                    *bit = u16::from(self.pressed(*logit, held, || rng.uniform(index + i as u64)));
                }
            }
            HeadKind::Categorical(_) => {
                if let Some(choice) = out.first_mut() {
                    *choice = match self.deterministic {
                        true => argmax(logits),
                        false => self.class(logits, rng.uniform(index)),
                    };
                }
            }
        }
    }

    fn pressed(&self, logit: f32, held: bool, uniform: impl FnOnce() -> f32) -> bool {
        if self.deterministic || self.deterministic_buttons {
            let threshold = if held { self.release_threshold } else { self.press_threshold };
            return sigmoid(logit) > threshold;
        }
        uniform() < sigmoid(logit / self.temperature)
    }

    /// The class at which the cumulative probability passes `uniform`.
    fn class(&self, logits: &[f32], uniform: f32) -> u16 {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |l: &f32| f64::from((l - top) / self.temperature).exp();
        // Each of the first is made once; heads have seldom more.
        let mut first = [0.0; 64];
        first.iter_mut().zip(logits).for_each(|(first, l)| *first = weight(l));
        let (few, rest) = logits.split_at(logits.len().min(first.len()));
        let weights = || first.iter().take(few.len()).copied().chain(rest.iter().map(weight));
        let mut left = f64::from(uniform) * weights().sum::<f64>();
        for (i, weight) in weights().enumerate() {
            left -= weight;
            if left < 0.0 {
                return i as u16;
            }
        }
        argmax(logits)
    }
}

pub fn argmax(logits: &[f32]) -> u16 {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best as u16
}

/// How sure a head is, 0..1: the mean distance of its bits from a coin, or its largest probability.
pub fn confidence(kind: HeadKind, logits: &[f32]) -> f32 {
    match kind {
        HeadKind::Bernoulli(n) => {
            logits.iter().map(|&l| (sigmoid(l) - 0.5).abs() * 2.0).sum::<f32>() / n as f32
        }
        HeadKind::Categorical(_) => {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            1.0 / logits.iter().map(|l| (l - top).exp()).sum::<f32>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        let rng = Rng::new(3, "test", 0);
        let mut counts = vec![0.0; logits.len()];
        for i in 0..40_000 {
            let mut out = [0];
            sampling.choose(HeadKind::Categorical(logits.len()), logits, &rng, i, None, &mut out);
            counts[out[0] as usize] += 1.0 / 40_000.0;
        }
        counts
    }

    #[test]
    fn classes_are_drawn_as_often_as_they_are_likely() {
        let shares = shares(&Sampling::default(), &[1f32.ln(), 2f32.ln(), 5f32.ln()]);
        for (share, want) in shares.iter().zip([0.125, 0.25, 0.625]) {
            assert!((share - want).abs() < 0.01, "{shares:?}");
        }
    }

    #[test]
    fn a_low_temperature_takes_the_most_likely_class() {
        let cold = Sampling { temperature: 0.01, ..Sampling::default() };
        assert!(shares(&cold, &[0.0, 0.5, 0.2])[1] > 0.999);
    }

    #[test]
    fn a_held_button_stays_between_the_two_thresholds() {
        let sampling = Sampling {
            deterministic: true,
            press_threshold: 0.6,
            release_threshold: 0.3,
            ..Sampling::default()
        };
        let rng = Rng::new(1, "test", 0);
        let mut out = [9];
        for (held, want) in [(0, 0), (1, 1)] {
            sampling.choose(HeadKind::Bernoulli(1), &[-0.1], &rng, 0, Some(&[held]), &mut out);
            assert_eq!(out, [want]);
        }
    }
}
