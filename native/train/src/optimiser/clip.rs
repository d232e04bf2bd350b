//! The norm over all gradients, and clipping by this norm.

use sconce_tensor::simd::dispatch;
use sconce_tensor::{Error, Result, pool};

use super::fused::SHARD;

/// Sum of squares in f64, because squares of f32 overflow. Shards are summed in parallel and added in order.
pub fn squared_norm(values: &[f32]) -> f64 {
    let mut sums = vec![0.0; values.len().div_ceil(SHARD)];
    pool::for_each_rows(&mut sums, 1, 1, |i, sum| {
        let span = i * SHARD..(i * SHARD + SHARD).min(values.len());
        sum.iter_mut().for_each(|sum| squares(sum, &values[span.clone()]));
    });
    sums.iter().sum()
}

dispatch! {
    /// Adds the squares in independent lanes.
    fn squares(sum: &mut f64, values: &[f32]) {
        let mut lanes = [0.0f64; 32];
        let (chunks, rest) = values.as_chunks::<32>();
        for chunk in chunks {
            for (lane, &v) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(v) * f64::from(v);
            }
        }
        let rest: f64 = rest.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        *sum = lanes.iter().sum::<f64>() + rest;
    }
}

/// Returns the norm of the mean gradient, and the factor that turns a sum of gradients into the mean, clipped to
/// `max_norm` (Pascanu et al. 2013, algorithm 1).
///
/// `squares` is the squared norm of the whole sum, `weight` the sum of the weights of the gradients. A norm that is not
/// finite is an error.
pub fn clip(squares: f64, weight: f64, max_norm: f64) -> Result<(f64, f64)> {
    let norm = squares.sqrt() / weight;
    if !norm.is_finite() {
        return Err(Error::NonFinite { what: "norm of the gradients".into(), value: norm });
    }
    let kept = if norm > max_norm { max_norm / norm } else { 1.0 };
    Ok((norm, kept / weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_clipped_and_not_the_sum() {
        let squares = squared_norm(&[6.0, 8.0]);
        assert_eq!(clip(squares, 4.0, 3.0).unwrap(), (2.5, 0.25));
        assert_eq!(clip(squares, 4.0, 0.5).unwrap(), (2.5, 0.05));
    }

    #[test]
    fn gradients_that_are_not_finite_are_an_error() {
        for bad in [f32::NAN, f32::INFINITY] {
            let error = clip(squared_norm(&[1.0, bad]), 1.0, 1.0).unwrap_err();
            assert!(matches!(error, Error::NonFinite { .. }));
        }
    }
}
