//! Sums over numbers and over pairs with the previous number, and the best-fitting lines.

use super::{BaselineKind, LOG_STD};

/// Number of sums for one number. Over single numbers: count, value and square. Over pairs with the previous number:
/// count, both values, both squares, product.
pub(super) const LEN: usize = 9;

pub(super) fn count(before: Option<f64>, now: f64, sums: &mut [f64]) {
    let add = |sums: &mut [f64], more: &[f64]| {
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    };
    add(&mut sums[..3], &[1.0, now, now * now]);
    if let Some(before) = before {
        let pair = [1.0, before, now, before * before, now * now, before * now];
        add(&mut sums[3..], &pair);
    }
}

/// `u ~ N(slope before + offset, e^log_std)`: offset and log standard deviation with a previous number, and without
/// one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) slope: f64,
    pub(super) known: [f64; 2],
    pub(super) none: [f64; 2],
}

/// Log standard deviation from a sum of squared deviations. One small deviation is added, so that the result is finite
/// for a constant number.
fn log_std(count: f64, squares: f64) -> f64 {
    let [least, most] = LOG_STD;
    (0.5 * ((squares.max(0.0) + 1e-3) / (count + 1.0)).ln()).clamp(least, most)
}

pub(super) fn fit(baseline: BaselineKind, sums: &[f64]) -> Line {
    let [n, sum, squares, pairs, before, now, before_2, now_2, product] = sums else {
        return Line { slope: 0.0, known: [0.0; 2], none: [0.0; 2] };
    };
    let mean = sum / n.max(1.0);
    let none = [mean, log_std(*n, squares - n * mean * mean)];
    let count = pairs.max(1.0);
    let (mean_before, mean_now) = (before / count, now / count);
    let spread_before = before_2 - count * mean_before * mean_before;
    let together = product - count * mean_before * mean_now;
    match baseline {
        BaselineKind::Marginal => Line { slope: 0.0, known: none, none },
        // The mean is the previous number; only the spread is fitted.
        BaselineKind::Repeat => {
            let known = [0.0, log_std(*pairs, before_2 - 2.0 * product + now_2)];
            Line { slope: 1.0, known, none }
        }
        BaselineKind::Pairs => {
            let slope = if spread_before > 1e-9 { together / spread_before } else { 0.0 };
            let left = now_2 - count * mean_now * mean_now - slope * together;
            let known = match *pairs > 0.0 {
                true => [mean_now - slope * mean_before, log_std(*pairs, left)],
                false => none,
            };
            Line { slope, known, none }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn pairs_recover_the_line_of_a_walk() {
        let (rng, mut sums, mut u) = (Rng::new(1, "test", 0), [0.0; LEN], 0.0);
        count(None, u, &mut sums);
        for i in 0..20_000 {
            let before = u;
            u = 0.7 * before + 0.2 + 0.5 * f64::from(rng.normal(i));
            count(Some(before), u, &mut sums);
        }
        let Line { slope, known: [offset, log_std], none } = fit(BaselineKind::Pairs, &sums);
        assert!((slope - 0.7).abs() < 0.02 && (offset - 0.2).abs() < 0.02, "{slope} {offset}");
        assert!((log_std.exp() - 0.5).abs() < 0.01, "{log_std}");
        // The mean of this walk is 0.2 / 0.3, and its variance 0.25 / (1 - 0.49).
        assert!(
            (none[0] - 2.0 / 3.0).abs() < 0.05 && (none[1].exp() - 0.7).abs() < 0.02,
            "{none:?}"
        );
        let repeat = fit(BaselineKind::Repeat, &sums);
        assert_eq!((repeat.slope, repeat.known[0]), (1.0, 0.0));
        let marginal = fit(BaselineKind::Marginal, &sums);
        assert_eq!((marginal.slope, marginal.known), (0.0, none));
    }

    #[test]
    fn a_constant_number_keeps_a_spread() {
        let mut sums = [0.0; LEN];
        (0..2000).for_each(|_| count(Some(1.0), 1.0, &mut sums));
        for baseline in BaselineKind::ALL {
            let Line { slope, known, none } = fit(baseline, &sums);
            assert!((slope + known[0] - 1.0).abs() < 1e-9, "{baseline:?}");
            assert!([known[1], none[1]].iter().all(|log_std| *log_std >= LOG_STD[0]));
        }
    }
}
