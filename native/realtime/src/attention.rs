//! Attention of one frame over the keys and values of a window of frames.

use sconce_ops::attention::{Window, exponentials};
use sconce_tensor::simd::{LANES, dispatch, mul_add};

use crate::sums::sums;

/// Channels whose sums [`mix`] keeps in registers.
const COLUMNS: usize = 4 * LANES;

dispatch! {
    /// Computes `q . R(age) k` for each head and key (Su et al. 2021, eq. 34). Frame `now` has age 0. Rotations pair the
    /// first half of a head's channels with the second half.
    ///
    /// # Shapes
    /// `scores [heads, stride]`, where the stride is at least `frames` rounded up to whole SIMD vectors; `query [heads *
    /// head_dim]`; `keys [frames, heads * head_dim]`.
    pub fn score(scores: &mut [f32], window: &Window, query: &[f32], keys: &[f32], now: usize) {
        let (dim, half, width) = (window.head_dim(), window.head_dim() / 2, window.width());
        let (frames, stride) = (keys.len() / width, scores.len() / window.heads());
        let mut lanes = [[0.0f32; LANES]; LANES];
        for (block, keys) in keys.chunks(LANES * width).enumerate() {
            let first = block * LANES;
            let rotation = |i: usize| {
                let slot = first + i;
                window.rotation(if slot <= now { now - slot } else { now + frames - slot })
            };
            let heads = query.chunks_exact(dim).zip(scores.chunks_exact_mut(stride));
            for (head, (query, scores)) in heads.enumerate() {
                let (p, q) = query.split_at(half);
                let keys = keys.chunks_exact(width).map(|keys| keys[head * dim..][..dim].split_at(half));
                for (i, (lanes, (a, b))) in lanes.iter_mut().zip(keys.clone()).enumerate() {
                    let (cos, sin) = rotation(i);
                    *lanes = product::<FMA>([p, q, a, b, cos, sin]);
                }
                let mut products = sums(&lanes);
                if half % LANES > 0 {
                    for (i, (product, (a, b))) in products.iter_mut().zip(keys).enumerate() {
                        let (cos, sin) = rotation(i);
                        *product = with_rest::<FMA>(*product, [p, q, a, b, cos, sin]);
                    }
                }
                scores[first..first + LANES].copy_from_slice(&products);
            }
        }
    }
}

/// Dot product of a query and a rotated key, in lanes that are still to be summed and without the channels beyond whole
/// SIMD vectors. Takes the two halves of each, and the cosines and sines of the angles.
#[inline(always)]
fn product<const FMA: bool>(parts: [&[f32]; 6]) -> [f32; LANES] {
    let parts = parts.map(|part| part.as_chunks::<LANES>().0);
    let mut lanes = [0.0f32; LANES];
    for at in 0..parts[0].len() {
        let [p, q, a, b, cos, sin] = parts.map(|whole| &whole[at]);
        for i in 0..LANES {
            lanes[i] = turned::<FMA>([p[i], q[i], a[i], b[i], cos[i], sin[i]], lanes[i]);
        }
    }
    lanes
}

/// Adds the channels that [`product`] leaves out.
#[inline(always)]
fn with_rest<const FMA: bool>(product: f32, parts: [&[f32]; 6]) -> f32 {
    let parts = parts.map(|part| part.as_chunks::<LANES>().1);
    let add = |sum, i| turned::<FMA>(parts.map(|rest| rest[i]), sum);
    (0..parts[0].len()).fold(product, add)
}

/// Adds the product of one pair of channels to `sum`.
#[inline(always)]
fn turned<const FMA: bool>([p, q, a, b, cos, sin]: [f32; 6], sum: f32) -> f32 {
    let along = mul_add::<FMA>(p, a, q * b);
    let across = mul_add::<FMA>(p, b, -q * a);
    mul_add::<FMA>(cos, along, mul_add::<FMA>(sin, across, sum))
}

dispatch! {
    /// Computes `softmax(scores) v` for each head (Vaswani et al. 2017, eq. 1).
    ///
    /// # Shapes
    /// `y [heads * head_dim]`; `scores [heads, stride]`, of which each row begins with the scores of the frames;
    /// `values [frames, heads * head_dim]`.
    pub fn mix(y: &mut [f32], window: &Window, scores: &mut [f32], values: &[f32]) {
        let (dim, width) = (window.head_dim(), window.width());
        let (frames, stride) = (values.len() / width, scores.len() / window.heads());
        let heads = y.chunks_exact_mut(dim).zip(scores.chunks_exact_mut(stride));
        for (head, (y, scores)) in heads.enumerate() {
            let (sum, _) = exponentials(scores, 0..frames);
            let values = values[head * dim..].chunks(width);
            let (blocks, rest) = y.as_chunks_mut::<COLUMNS>();
            let first = blocks.len() * COLUMNS;
            for (i, y) in blocks.iter_mut().enumerate() {
                // An array of all would be kept in memory, whose place decides how long each addition waits for the last.
                let [mut a, mut b, mut c, mut d] = [[0.0f32; LANES]; 4];
                let columns = values.clone().filter_map(|row| row[i * COLUMNS..].first_chunk());
                for (weight, columns) in scores.iter().zip(columns) {
                    let columns: &[f32; COLUMNS] = columns;
                    let [p, q, r, s] = columns.as_chunks::<LANES>().0 else { continue };
                    add::<FMA>(&mut a, *weight, p);
                    add::<FMA>(&mut b, *weight, q);
                    add::<FMA>(&mut c, *weight, r);
                    add::<FMA>(&mut d, *weight, s);
                }
                for (y, mixed) in y.iter_mut().zip([a, b, c, d].as_flattened()) {
                    *y = mixed / sum;
                }
            }
            rest.fill(0.0);
            if !rest.is_empty() {
                for (weight, value) in scores.iter().zip(values) {
                    for (y, v) in rest.iter_mut().zip(&value[first..dim]) {
                        *y = mul_add::<FMA>(*weight, *v, *y);
                    }
                }
                for y in rest {
                    *y /= sum;
                }
            }
        }
    }
}

#[inline(always)]
fn add<const FMA: bool>(sums: &mut [f32; LANES], weight: f32, values: &[f32; LANES]) {
    for i in 0..LANES {
        sums[i] = mul_add::<FMA>(weight, values[i], sums[i]);
    }
}

#[cfg(test)]
mod tests {
    use sconce_ops::attention::{Pairing, THETA};
    use sconce_tensor::Result;
    use sconce_tensor::rng::Rng;

    use super::*;

    /// Attention in f64, one number at a time.
    fn expected(
        window: &Window,
        query: &[f32],
        keys: &[f32],
        values: &[f32],
        now: usize,
    ) -> Vec<f64> {
        let (dim, width) = (window.head_dim(), window.width());
        let (half, frames) = (dim / 2, keys.len() / width);
        let of = |all: &[f32], frame: usize, head: usize, i: usize| {
            f64::from(all[frame * width + head * dim + i])
        };
        let score = |head: usize, frame: usize| -> f64 {
            let (cos, sin) = window.rotation((now + frames - frame) % frames);
            let pair = |i: usize| {
                let (cos, sin) = (f64::from(cos[i]), f64::from(sin[i]));
                let (p, q) = (of(query, 0, head, i), of(query, 0, head, i + half));
                let (a, b) = (of(keys, frame, head, i), of(keys, frame, head, i + half));
                cos * (p * a + q * b) + sin * (p * b - q * a)
            };
            (0..half).map(pair).sum()
        };
        let mixed = |head: usize, i: usize| {
            let weights: Vec<f64> = (0..frames).map(|frame| score(head, frame).exp()).collect();
            let sum = weights.iter().enumerate().map(|(f, weight)| weight * of(values, f, head, i));
            sum.sum::<f64>() / weights.iter().sum::<f64>()
        };
        (0..width).map(|at| mixed(at / dim, at % dim)).collect()
    }

    #[test]
    fn a_frame_attends_as_a_plain_softmax_for_any_width_and_number_of_frames() -> Result<()> {
        const FRAMES: usize = 40;
        for (heads, dim) in [(2, 64), (1, 128), (3, 8), (2, 40), (1, 72), (1, 144)] {
            let window = Window::new(heads, dim, FRAMES, Pairing::Half, THETA)?;
            let width = window.width();
            let draw = |purpose: &str, count: usize| -> Vec<f32> {
                let rng = Rng::new(1, purpose, 0);
                (0..count as u64).map(|i| 0.3 * rng.normal(i)).collect()
            };
            let query = draw("query", width);
            let (keys, values) = (draw("keys", FRAMES * width), draw("values", FRAMES * width));
            for (frames, now) in [(1, 0), (3, 2), (16, 15), (17, 16), (FRAMES, 5), (FRAMES, 39)] {
                let (keys, values) = (&keys[..frames * width], &values[..frames * width]);
                let mut scores = vec![f32::NAN; heads * FRAMES.next_multiple_of(LANES)];
                let mut y = vec![f32::NAN; width];
                score(&mut scores, &window, &query, keys, now);
                mix(&mut y, &window, &mut scores, values);
                for (y, want) in y.iter().zip(expected(&window, &query, keys, values, now)) {
                    assert!((f64::from(*y) - want).abs() < 1e-5, "{dim} {frames}: {y} {want}");
                }
            }
        }
        Ok(())
    }
}
