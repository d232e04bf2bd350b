//! Self-attention over the pixels of a signal: the scores of one head at a time, numbers of a head in the lanes.

use sconce_tensor::simd::{dispatch, exp_with, mul_add};

use crate::packed::values::Value;

/// `softmax(q k / sqrt(d)) v` of each head, from `q`, `k` and `v` side by side. The products before and after are
/// convolutions of one pixel.
pub(crate) struct Attention {
    pub(crate) heads: usize,
}

impl Attention {
    /// `scores` has a number for each pixel.
    pub(crate) fn run(
        &self,
        (xs, x): (&Value, &[f32]),
        (ys, y): (&Value, &mut [f32]),
        scores: &mut [f32],
    ) {
        let (time, channels) = (xs.size.width, ys.size.channels);
        let own = channels / self.heads;
        let scale = 1.0 / (own as f32).sqrt();
        for head in 0..self.heads {
            for t in 0..time {
                let at = |t: usize, part: usize| {
                    let at = xs.place(0, t) + part * channels + head * own;
                    &x[at..at + own]
                };
                let q = at(t, 0);
                for (s, score) in scores[..time].iter_mut().enumerate() {
                    *score = scale * product(q, at(s, 1));
                }
                softmax(&mut scores[..time]);
                let to = ys.place(0, t) + head * own;
                let y = &mut y[to..to + own];
                y.fill(0.0);
                for (s, score) in scores[..time].iter().enumerate() {
                    add_scaled(y, *score, at(s, 2));
                }
            }
        }
    }
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    sconce_tensor::simd::dot(a, b)
}

dispatch! {
    pub(crate) fn add_scaled(y: &mut [f32], scale: f32, x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = mul_add::<FMA>(scale, *x, *y);
        }
    }
}

dispatch! {
    fn softmax(scores: &mut [f32]) {
        let mut largest = f32::NEG_INFINITY;
        for score in scores.iter() {
            largest = if *score <= largest { largest } else { *score };
        }
        let mut sum = 0.0;
        for score in scores.iter_mut() {
            *score = exp_with::<FMA>(*score - largest);
            sum += *score;
        }
        for score in scores {
            *score /= sum;
        }
    }
}
