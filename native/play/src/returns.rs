//! Advantages and targets of a segment: generalised advantage estimation, and V-trace for segments of older weights.
//!
//! All columns are `[time, rows]`: step `t` of row `i` is at `t * rows + i`.

pub(crate) mod card;

use sconce_tensor::{Error, Result};

/// The steps of a segment, each column `[time, rows]`.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a> {
    /// Number of rows, which play side by side.
    pub rows: usize,
    /// Rewards.
    pub rewards: &'a [f32],
    /// Estimates of the return before each step.
    pub values: &'a [f32],
    /// Estimates of the return after each step: in the state that followed, also where an episode was cut there.
    pub next_values: &'a [f32],
    /// Whether the rules of the world ended the episode. The value after such a step is 0.
    pub terminated: &'a [u8],
    /// Whether a limit cut the episode.
    pub truncated: &'a [u8],
}

/// Advantages and value targets, each `[time, rows]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Returns {
    /// Advantages of the actions.
    pub advantages: Vec<f32>,
    /// Targets of the value.
    pub targets: Vec<f32>,
}

/// Discounts of rewards and of advantages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Discounts {
    /// Discount of a reward per step.
    pub gamma: f32,
    /// Decay of the sum of temporal differences per step.
    pub lambda: f32,
}

impl Steps<'_> {
    fn check(&self) -> Result<()> {
        let n = self.rewards.len();
        for (what, got) in [
            ("values", self.values.len()),
            ("next_values", self.next_values.len()),
            ("terminated", self.terminated.len()),
            ("truncated", self.truncated.len()),
        ] {
            if got != n {
                return Err(Error::mismatch(what, n, got));
            }
        }
        if self.rows == 0 || !n.is_multiple_of(self.rows) {
            return Err(Error::mismatch("steps", format!("a multiple of {} rows", self.rows), n));
        }
        Ok(())
    }

    /// The first indices of the time steps, the last one first.
    fn backwards(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.rewards.len()).step_by(self.rows).rev()
    }

    /// The temporal difference with `target` as the value after the step.
    fn difference(&self, at: usize, target: f32, gamma: f32) -> f32 {
        let after = if self.terminated[at] == 0 { gamma * target } else { 0.0 };
        self.rewards[at] + after - self.values[at]
    }

    fn ends(&self, at: usize) -> bool {
        self.terminated[at] != 0 || self.truncated[at] != 0
    }
}

/// Generalised advantage estimation (Schulman et al. 2016, equation 16):
/// `A_t = d_t + gamma lambda A_{t+1}` with `d_t = r_t + gamma V(s_{t+1}) - V(s_t)`. An end stops the sum, and a
/// termination also drops the value after it. Targets are `A + V`.
///
/// # Errors
/// `Mismatch` for columns of different lengths.
pub fn advantages(steps: Steps<'_>, discounts: Discounts) -> Result<Returns> {
    steps.check()?;
    let Discounts { gamma, lambda } = discounts;
    let mut advantages = vec![0.0; steps.rewards.len()];
    let mut later = vec![0.0; steps.rows];
    for first in steps.backwards() {
        for (row, later) in later.iter_mut().enumerate() {
            let at = first + row;
            let kept = if steps.ends(at) { 0.0 } else { gamma * lambda * *later };
            *later = steps.difference(at, steps.next_values[at], gamma) + kept;
            advantages[at] = *later;
        }
    }
    let targets = advantages.iter().zip(steps.values).map(|(a, v)| a + v).collect();
    Ok(Returns { advantages, targets })
}

/// Bounds of importance ratios in V-trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bars {
    /// Largest ratio that weighs a temporal difference.
    pub rho: f32,
    /// Largest ratio that passes later differences on.
    pub c: f32,
}

/// V-trace (Espeholt et al. 2018, equation 1, with lambda as in remark 2), for actions that older weights chose.
/// `log_ratios [time, rows]` are the log-likelihoods under the present policy less those under the policy that chose.
/// Targets are `v_s`; advantages are `rho_s (r_s + gamma v_{s+1} - V(s))`, where at an end the value after the step
/// replaces `v_{s+1}`.
///
/// # Errors
/// `Mismatch` for columns of different lengths.
pub fn v_trace(
    steps: Steps<'_>,
    log_ratios: &[f32],
    discounts: Discounts,
    bars: Bars,
) -> Result<Returns> {
    steps.check()?;
    if log_ratios.len() != steps.rewards.len() {
        return Err(Error::mismatch("log_ratios", steps.rewards.len(), log_ratios.len()));
    }
    let Discounts { gamma, lambda } = discounts;
    let n = log_ratios.len();
    let mut all = Returns { advantages: vec![0.0; n], targets: vec![0.0; n] };
    // `v_{s+1} - V(s_{s+1})` of each row.
    let mut later = vec![0.0; steps.rows];
    for first in steps.backwards() {
        for (row, later) in later.iter_mut().enumerate() {
            let at = first + row;
            let ratio = log_ratios[at].exp();
            let (rho, c) = (ratio.min(bars.rho), lambda * ratio.min(bars.c));
            let kept = if steps.ends(at) { 0.0 } else { *later };
            let after = steps.next_values[at] + kept;
            all.advantages[at] = rho * steps.difference(at, after, gamma);
            let difference = steps.difference(at, steps.next_values[at], gamma);
            *later = rho * difference + gamma * c * kept;
            all.targets[at] = steps.values[at] + *later;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISCOUNTS: Discounts = Discounts { gamma: 0.5, lambda: 0.5 };

    fn steps<'a>(terminated: &'a [u8], truncated: &'a [u8]) -> Steps<'a> {
        let (rewards, values) = (&[1.0, 1.0, 1.0], &[0.0, 2.0, 4.0]);
        Steps { rows: 1, rewards, values, next_values: &[2.0, 4.0, 8.0], terminated, truncated }
    }

    #[test]
    fn advantages_are_those_worked_out_by_hand() {
        let of = |terminated: &[u8], truncated: &[u8]| {
            advantages(steps(terminated, truncated), DISCOUNTS).unwrap().advantages
        };
        // The differences are 2, 1 and 1.
        assert_eq!(of(&[0; 3], &[0; 3]), [2.3125, 1.25, 1.0]);
        // A limit after the second step stops the sum and keeps the value after it.
        assert_eq!(of(&[0; 3], &[0, 1, 0]), [2.25, 1.0, 1.0]);
        // A termination there also drops that value.
        assert_eq!(of(&[0, 1, 0], &[0; 3]), [1.75, -1.0, 1.0]);
        assert_eq!(of(&[0, 1, 0], &[0, 1, 0]), of(&[0, 1, 0], &[0; 3]));
    }

    #[test]
    fn v_trace_of_the_policy_itself_is_the_lambda_return() {
        let steps = steps(&[0, 0, 0], &[0, 1, 0]);
        let bars = Bars { rho: 1.0, c: 1.0 };
        let traced = v_trace(steps, &[0.0; 3], DISCOUNTS, bars).unwrap();
        assert_eq!(traced.targets, advantages(steps, DISCOUNTS).unwrap().targets);
        // A ratio of 0 learns nothing from a step.
        let silent = v_trace(steps, &[-1000.0; 3], DISCOUNTS, bars).unwrap();
        assert_eq!((silent.advantages, silent.targets), (vec![0.0; 3], steps.values.to_vec()));
    }

    #[test]
    fn columns_of_different_lengths_are_refused() {
        let wrong = Steps { values: &[0.0], ..steps(&[0; 3], &[0; 3]) };
        assert!(matches!(advantages(wrong, DISCOUNTS), Err(Error::Mismatch { .. })));
        let wrong = Steps { rows: 2, ..steps(&[0; 3], &[0; 3]) };
        assert!(matches!(advantages(wrong, DISCOUNTS), Err(Error::Mismatch { .. })));
        let bars = Bars { rho: 1.0, c: 1.0 };
        let short = v_trace(steps(&[0; 3], &[0; 3]), &[0.0], DISCOUNTS, bars);
        assert!(matches!(short, Err(Error::Mismatch { .. })));
    }
}
