//! The learning rate of every update.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// Linear warm-up, then the named decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The decay after the warm-up.
    pub kind: ScheduleKind,
    /// Rate at the end of the warm-up.
    pub base: f64,
    /// Updates of the warm-up.
    pub warmup_steps: u64,
    /// Updates of the whole run, warm-up included.
    pub total_steps: u64,
    /// Updates of the decay after the warm-up; `None` extends it to the end of the run.
    pub decay_steps: Option<u64>,
}

/// The decay of a learning rate. `min` is the learning rate at the end of the decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// No decay.
    Constant,
    /// A linear fall.
    Linear {
        /// Rate at the end.
        min: f64,
    },
    /// Half a period of a cosine (Loshchilov & Hutter 2017, equation 5).
    Cosine {
        /// Rate at the end.
        min: f64,
    },
    /// Half periods of a cosine, each restarting at the full rate (SGDR, Loshchilov & Hutter 2017, section 3).
    CosineRestarts {
        /// Rate at the end of each period.
        min: f64,
        /// Updates of the first period.
        period: u64,
        /// Factor on the length of a period, relative to the previous period.
        mult: u64,
    },
    /// Factor `rate` to the power of the finished share of the decay. The fall continues beyond the end of the decay.
    Exponential {
        /// Factor on the learning rate over the whole decay.
        rate: f64,
    },
}

impl Schedule {
    /// Number of updates of the decay.
    pub fn decay_length(&self) -> u64 {
        self.decay_steps.unwrap_or(self.total_steps.saturating_sub(self.warmup_steps))
    }

    /// Refuses a run whose learning rate falls to 0 before the run ends: later updates would change nothing.
    pub fn check(&self) -> Result<()> {
        let end = self.warmup_steps.saturating_add(self.decay_length());
        let falls = match self.kind {
            ScheduleKind::Linear { min } | ScheduleKind::Cosine { min } => min <= 0.0,
            _ => false,
        };
        if !falls || end >= self.total_steps {
            return Ok(());
        }
        let (least, total) = (self.total_steps - self.warmup_steps, self.total_steps);
        let expected = format!("at least {least}, to the end of the run after {total} steps");
        let length = self.decay_length();
        let got = format!("{length}, so that the learning rate is 0 from step {end} on");
        Err(Error::mismatch("decay_steps", expected, got))
    }

    /// Learning rate of update `step`, counted from 0. The first rate of a warm-up is 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.base * step as f64 / self.warmup_steps as f64;
        }
        let length = self.decay_length().max(1);
        let step = step - self.warmup_steps;
        let over = step as f64 / length as f64;
        let between = |min: f64, left: f64| min + (self.base - min) * left;
        match self.kind {
            ScheduleKind::Constant => self.base,
            ScheduleKind::Linear { min } => between(min, 1.0 - over.min(1.0)),
            ScheduleKind::Cosine { min } => between(min, half_cosine(over.min(1.0))),
            ScheduleKind::CosineRestarts { min, period, mult } => {
                between(min, half_cosine(since_restart(step, period, mult)))
            }
            ScheduleKind::Exponential { rate } => self.base * rate.powf(over),
        }
    }
}

/// Half a period of a cosine: falls from 1 to 0 while the argument rises from 0 to 1.
fn half_cosine(over: f64) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * over).cos())
}

/// Finished share of the period that `step` belongs to.
fn since_restart(mut step: u64, period: u64, mult: u64) -> f64 {
    let mut period = period.max(1);
    if mult <= 1 {
        step %= period;
    }
    while step >= period {
        step -= period;
        period = period.saturating_mul(mult);
    }
    step as f64 / period as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: ScheduleKind, warmup_steps: u64, total_steps: u64) -> Schedule {
        Schedule { kind, base: 1.0, warmup_steps, total_steps, decay_steps: None }
    }

    #[test]
    fn a_run_warms_up_peaks_and_ends_at_its_minimum() {
        let schedule = schedule(ScheduleKind::Cosine { min: 0.1 }, 10, 110);
        assert_eq!(schedule.rate(0), 0.0);
        assert_eq!(schedule.rate(5), 0.5);
        assert_eq!(schedule.rate(10), 1.0);
        assert!((schedule.rate(60) - 0.55).abs() < 1e-12);
        assert!((schedule.rate(110) - 0.1).abs() < 1e-12);
        assert_eq!(schedule.rate(110), schedule.rate(10_000));
    }

    #[test]
    fn a_run_without_steps_has_a_rate() {
        for kind in [
            ScheduleKind::Linear { min: 0.0 },
            ScheduleKind::CosineRestarts { min: 0.0, period: 0, mult: 0 },
            ScheduleKind::Exponential { rate: 0.5 },
        ] {
            assert_eq!(schedule(kind, 0, 0).rate(0), 1.0);
        }
    }

    #[test]
    fn a_decay_of_its_own_length_ends_before_the_run_or_is_cut_by_it() {
        let of = |decay_steps| Schedule {
            decay_steps: Some(decay_steps),
            ..schedule(ScheduleKind::Linear { min: 0.0 }, 10, 110)
        };
        assert_eq!((of(50).rate(35), of(50).rate(60), of(50).rate(100)), (0.5, 0.0, 0.0));
        assert_eq!(of(200).rate(110), 0.5);
    }

    #[test]
    fn a_decay_to_0_before_the_end_is_refused_and_any_other_is_not() {
        let of =
            |kind, decay_steps| Schedule { decay_steps, ..schedule(kind, 10, 110) }.check().is_ok();
        for kind in [ScheduleKind::Linear { min: 0.0 }, ScheduleKind::Cosine { min: 0.0 }] {
            let fit = [None, Some(99), Some(100), Some(200)].map(|decay| of(kind, decay));
            assert_eq!(fit, [true, false, true, true]);
        }
        for kind in [ScheduleKind::Cosine { min: 0.1 }, ScheduleKind::Exponential { rate: 0.5 }] {
            assert!(of(kind, Some(5)));
        }
    }

    #[test]
    fn restarts_begin_at_the_peak_in_ever_longer_periods() {
        let kind = ScheduleKind::CosineRestarts { min: 0.0, period: 10, mult: 3 };
        let schedule = schedule(kind, 5, 1000);
        for start in [5, 15, 45, 135] {
            assert_eq!(schedule.rate(start), 1.0, "{start}");
            assert!(schedule.rate(start + 1) < 1.0 && schedule.rate(start - 1) < 1.0);
        }
        assert!((schedule.rate(30) - 0.5).abs() < 1e-12);
    }
}
