//! From logits to a choice, with the randomness given from outside.

use sconce_tensor::simd::{dispatch, exp_with, sigmoid};
use serde::{Deserialize, Serialize};

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
        let top = largest(logits);
        let mut room = [0.0; AT_ONCE];
        let mut total = 0.0;
        for logits in logits.chunks(AT_ONCE) {
            let weights = weights(logits, top, self.temperature, &mut room);
            total += weights.iter().copied().map(f64::from).sum::<f64>();
        }
        let mut left = f64::from(uniform) * total;
        for (i, logits) in logits.chunks(AT_ONCE).enumerate() {
            let weights = weights(logits, top, self.temperature, &mut room);
            for (j, weight) in weights.iter().enumerate() {
                left -= f64::from(*weight);
                if left < 0.0 {
                    return (i * AT_ONCE + j) as u16;
                }
            }
        }
        argmax(logits)
    }
}

/// Classes that are weighed at once: heads have seldom more.
const AT_ONCE: usize = 64;

/// `e^((logit - top) / temperature)` of at most [`AT_ONCE`] logits.
fn weights<'a>(logits: &[f32], top: f32, temperature: f32, room: &'a mut [f32]) -> &'a [f32] {
    let room = &mut room[..logits.len()];
    exponentials(room, logits, top, temperature);
    room
}

dispatch! {
    fn exponentials(out: &mut [f32], logits: &[f32], top: f32, temperature: f32) {
        for (out, logit) in out.iter_mut().zip(logits) {
            *out = exp_with::<FMA>((logit - top) / temperature);
        }
    }
}

fn largest(logits: &[f32]) -> f32 {
    // One instruction, which `f32::max` with its care for what is not a number is not.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (fours, rest) = logits.as_chunks::<4>();
    let most = fours.iter().fold([f32::NEG_INFINITY; 4], |most, four| {
        std::array::from_fn(|i| larger(four[i], most[i]))
    });
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
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
            let (top, mut room) = (largest(logits), [0.0; AT_ONCE]);
            let parts = logits.chunks(AT_ONCE);
            1.0 / parts.map(|l| weights(l, top, 1.0, &mut room).iter().sum::<f32>()).sum::<f32>()
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
    fn a_head_of_many_classes_is_weighed_in_parts() {
        let logits: Vec<f32> = (0..150).map(|i| if i % 50 == 40 { 9.0 } else { -9.0 }).collect();
        let shares = shares(&Sampling::default(), &logits);
        for class in [40, 90, 140] {
            assert!((shares[class] - 1.0 / 3.0).abs() < 0.01, "{class}: {}", shares[class]);
        }
        let sure = confidence(HeadKind::Categorical(150), &logits);
        assert!((sure - 1.0 / 3.0).abs() < 1e-5, "{sure}");
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
