//! Elo ratings of players from their results against each other.
//!
//! The probability that a player beats another is a logistic function of the difference of their ratings (Elo 1978;
//! Bradley and Terry 1952). The ratings are those of maximum likelihood, with a draw as half a win and half a loss, and
//! with a few imagined draws against an average player: they keep the ratings of players finite that always win.

use serde::Serialize;

/// Mean of all ratings.
const MEAN: f64 = 1200.0;
/// Points at which the odds are 10 to 1.
const SCALE: f64 = 400.0;
/// Imagined games of each player against an average one, all draws.
const IMAGINED: f64 = 2.0;
/// Most steps of Newton's method, which needs about ten.
const STEPS: usize = 100;
/// Standard normal quantile of a two-sided interval of 95 %.
const QUANTILE: f64 = 1.96;

/// A rating with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rating {
    /// The rating; the mean of all players is 1200.
    pub elo: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Expected score of a player whose rating is higher by `difference`.
pub fn expected(difference: f64) -> f64 {
    1.0 / (1.0 + 10f64.powf(-difference / SCALE))
}

/// Ratings from `scores [n][n]`, the score of the row's player against the column's one, and the numbers of `games`.
/// Both are 0 where two players have not met.
pub fn ratings(scores: &[Vec<f64>], games: &[Vec<f64>]) -> Vec<Rating> {
    let n = scores.len();
    let mut strengths = vec![0.0; n];
    let mut inverse = vec![vec![0.0; n]; n];
    for _ in 0..STEPS {
        let (gradient, curvature) = slopes(scores, games, &strengths);
        inverse = inverted(curvature);
        let step: Vec<f64> = inverse.iter().map(|row| dot(row, &gradient)).collect();
        // A long step of Newton's method may overshoot.
        let longest = step.iter().fold(0.0f64, |most, own| most.max(own.abs()));
        let share = 1.0 / longest.max(1.0);
        strengths.iter_mut().zip(&step).for_each(|(own, step)| *own += share * step);
        if longest < 1e-10 {
            break;
        }
    }
    let mean = strengths.iter().sum::<f64>() / n.max(1) as f64;
    let points = SCALE / std::f64::consts::LN_10;
    let rating = |i: usize| {
        let elo = MEAN + points * (strengths[i] - mean);
        let margin = QUANTILE * points * variance(&inverse, i).max(0.0).sqrt();
        Rating { elo, low: elo - margin, high: elo + margin }
    };
    (0..n).map(rating).collect()
}

/// Variance of the difference between strength `i` and the mean of all, given their covariances.
fn variance(covariances: &[Vec<f64>], i: usize) -> f64 {
    let n = covariances.len() as f64;
    let with_mean = covariances[i].iter().sum::<f64>() / n;
    let of_mean = covariances.iter().flatten().sum::<f64>() / (n * n);
    covariances[i][i] - 2.0 * with_mean + of_mean
}

/// Gradient and negative second derivatives of the log-likelihood.
fn slopes(scores: &[Vec<f64>], games: &[Vec<f64>], strengths: &[f64]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let n = strengths.len();
    let (mut gradient, mut curvature) = (vec![0.0; n], vec![vec![0.0; n]; n]);
    for i in 0..n {
        let average = logistic(strengths[i]);
        gradient[i] = IMAGINED * (0.5 - average);
        curvature[i][i] = IMAGINED * average * (1.0 - average);
        for j in (0..n).filter(|j| *j != i) {
            let wins = logistic(strengths[i] - strengths[j]);
            let weight = games[i][j] * wins * (1.0 - wins);
            gradient[i] += scores[i][j] - games[i][j] * wins;
            curvature[i][i] += weight;
            curvature[i][j] -= weight;
        }
    }
    (gradient, curvature)
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The inverse of a positive definite matrix (Gauss and Jordan). Its diagonal dominates, so no pivot is 0.
fn inverted(mut matrix: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let n = matrix.len();
    let unit = |i: usize| (0..n).map(|j| f64::from(u8::from(i == j))).collect();
    let mut inverse: Vec<Vec<f64>> = (0..n).map(unit).collect();
    for at in 0..n {
        let pivot = matrix[at][at];
        for own in [&mut matrix, &mut inverse] {
            own[at].iter_mut().for_each(|v| *v /= pivot);
        }
        for row in (0..n).filter(|row| *row != at) {
            let factor = matrix[row][at];
            for own in [&mut matrix, &mut inverse] {
                let pivot_row = own[at].clone();
                own[row].iter_mut().zip(pivot_row).for_each(|(v, other)| *v -= factor * other);
            }
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(scores: [[f64; 3]; 3], each: f64) -> Vec<Rating> {
        let rows = |of: [[f64; 3]; 3]| of.iter().map(|row| row.to_vec()).collect::<Vec<_>>();
        let games = [[0.0, each, each], [each, 0.0, each], [each, each, 0.0]];
        ratings(&rows(scores), &rows(games))
    }

    #[test]
    fn a_player_that_scores_ten_times_as_much_has_400_points_more() {
        let games = 10_000.0;
        let scores = [vec![0.0, games * 10.0 / 11.0], vec![games / 11.0, 0.0]];
        let both = ratings(&scores, &[vec![0.0, games], vec![games, 0.0]]);
        assert!((both[0].elo - both[1].elo - 400.0).abs() < 1.0, "{both:?}");
        assert!((both[0].elo + both[1].elo - 2400.0).abs() < 1e-6);
        assert!((expected(400.0) - 10.0 / 11.0).abs() < 1e-12);
    }

    #[test]
    fn players_of_a_ring_are_equal_and_more_games_give_narrower_intervals() {
        let ring = |n: f64| of([[0.0, n, 0.0], [0.0, 0.0, n], [n, 0.0, 0.0]], n);
        let (few, many) = (ring(10.0), ring(1000.0));
        for rating in few.iter().chain(&many) {
            assert!((rating.elo - 1200.0).abs() < 1e-6, "{rating:?}");
        }
        let width = |of: &[Rating]| of[0].high - of[0].low;
        assert!(width(&many) < 0.5 * width(&few) && width(&many) > 0.0);
    }

    #[test]
    fn a_player_that_always_wins_has_a_finite_rating_and_no_games_give_the_mean() {
        let all = of([[0.0, 50.0, 50.0], [0.0, 0.0, 50.0], [0.0, 0.0, 0.0]], 50.0);
        assert!(all.iter().all(|rating| rating.elo.is_finite() && rating.low < rating.elo));
        assert!(all[0].elo > all[1].elo && all[1].elo > all[2].elo);
        let none = of([[0.0; 3]; 3], 0.0);
        assert!(none.iter().all(|rating| rating.elo == 1200.0));
        assert_eq!(ratings(&[], &[]), []);
    }
}
