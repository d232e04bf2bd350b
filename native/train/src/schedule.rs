//! The learning rate of every update.

use serde::{Deserialize, Serialize};

/// Linear warm-up, then the named decay over what is left of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub kind: ScheduleKind,
    /// Rate at the end of the warm-up.
    pub base: f64,
    pub warmup_steps: u64,
    /// Updates of the whole run, warm-up included: the decay ends where the run does.
    pub total_steps: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Constant,
    Linear {
        min: f64,
    },
    /// Half a period of a cosine (Loshchilov & Hutter 2017, equation 5).
    Cosine {
        min: f64,
    },
}

impl Schedule {
    /// Rate of update `step`, counted from 0. The first of a warm-up is 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.base * step as f64 / self.warmup_steps as f64;
        }
        let length = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let done = ((step - self.warmup_steps) as f64 / length as f64).min(1.0);
        let between = |min: f64, left: f64| min + (self.base - min) * left;
        match self.kind {
            ScheduleKind::Constant => self.base,
            ScheduleKind::Linear { min } => between(min, 1.0 - done),
            ScheduleKind::Cosine { min } => {
                between(min, 0.5 * (1.0 + (std::f64::consts::PI * done).cos()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_warms_up_peaks_and_ends_at_its_minimum() {
        let kind = ScheduleKind::Cosine { min: 0.1 };
        let schedule = Schedule { kind, base: 1.0, warmup_steps: 10, total_steps: 110 };
        assert_eq!(schedule.rate(0), 0.0);
        assert_eq!(schedule.rate(5), 0.5);
        assert_eq!(schedule.rate(10), 1.0);
        assert!((schedule.rate(60) - 0.55).abs() < 1e-12);
        assert!((schedule.rate(110) - 0.1).abs() < 1e-12);
        assert_eq!(schedule.rate(110), schedule.rate(10_000));
    }

    #[test]
    fn a_run_without_steps_has_a_rate() {
        let kind = ScheduleKind::Linear { min: 0.0 };
        let schedule = Schedule { kind, base: 1.0, warmup_steps: 0, total_steps: 0 };
        assert_eq!(schedule.rate(0), 1.0);
    }
}
