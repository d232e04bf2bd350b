//! Positions as rotations (RoPE). States are rotated in every frame, which replaces a position counter.

pub(crate) mod composed;

use super::simd::dispatch;
use crate::{Error, Result};

/// The angles `n theta^(-2i / dim)` of positions n up to a chunk's length (Su et al. 2021, section 3.4.2). A vector of
/// length `dim` is rotated in the pairs `(i, i + dim / 2)`.
///
/// A query at position n and a key at m have the score `(R(n) q) . (R(m) k) = q . R(m - n) k`. So a sum over keys may
/// be stored in the rotation of the next query, whose position is 0 again: the sum rotates by `-1` per frame, no
/// position exceeds a chunk, and no value depends on the length of a game.
#[derive(Debug)]
pub struct Rotary {
    dim: usize,
    /// Cosines of the angles, `[positions, dim / 2]`; `sin` has the sines.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The direction of a rotation; each is the backward pass of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Rotates by the angle of the position.
    There,
    /// Rotates by the negative angle.
    Back,
}

impl Rotary {
    /// The angles of positions `0..=last`.
    ///
    /// # Errors
    /// `Mismatch` for an odd `dim`.
    pub fn new(dim: usize, last: usize, theta: f64) -> Result<Self> {
        if dim == 0 || !dim.is_multiple_of(2) {
            return Err(Error::mismatch("numbers of a rotation", "an even number", dim));
        }
        let half = dim / 2;
        let angles = (0..(last + 1) * half).map(|at| {
            let (position, i) = ((at / half) as f64, (at % half) as f64);
            position * theta.powf(-2.0 * i / dim as f64)
        });
        let (cos, sin) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        Ok(Rotary { dim, cos, sin })
    }

    /// Values in a rotated vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The last position.
    pub fn last(&self) -> usize {
        2 * self.cos.len() / self.dim - 1
    }

    /// Cosines and sines of a position, `[dim / 2]` each.
    pub(crate) fn rotation(&self, position: usize) -> [&[f32]; 2] {
        let span = position * self.dim / 2..(position + 1) * self.dim / 2;
        [&self.cos[span.clone()], &self.sin[span]]
    }

    /// Rotates every vector of `rows [.., dim]` by one position.
    pub fn turn(&self, rows: &mut [f32], position: usize, way: Way) {
        let [cos, sin] = self.rotation(position);
        turn(rows, cos, sin, way);
    }

    /// Rotates `count` columns from `first` on of `frames [n, width]`, frame i by position i; `count` is a multiple of
    /// `dim`.
    pub fn turn_frames(
        &self,
        frames: &mut [f32],
        width: usize,
        first: usize,
        count: usize,
        way: Way,
    ) {
        for (i, frame) in frames.chunks_exact_mut(width).enumerate().skip(1) {
            self.turn(&mut frame[first..first + count], i, way);
        }
    }
}

dispatch! {
    fn turn(rows: &mut [f32], cos: &[f32], sin: &[f32], way: Way) {
        let half = cos.len();
        let sign = if way == Way::There { 1.0 } else { -1.0 };
        for row in rows.chunks_exact_mut(2 * half) {
            let (first, second) = row.split_at_mut(half);
            for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
                let sin = sign * sin;
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attention::THETA;
    use super::*;

    fn vector(dim: usize, seed: usize) -> Vec<f32> {
        (0..dim).map(|i| ((i * 7 + seed * 13) % 11) as f32 / 11.0 - 0.4).collect()
    }

    fn turned(rotary: &Rotary, x: &[f32], position: usize, way: Way) -> Vec<f32> {
        let mut x = x.to_vec();
        rotary.turn(&mut x, position, way);
        x
    }

    #[test]
    fn pairs_rotate_by_the_published_angles() {
        let rotary = Rotary::new(6, 5, THETA).unwrap();
        let x = vector(6, 1);
        let y = turned(&rotary, &x, 5, Way::There);
        for i in 0..3 {
            let (sin, cos) = (5.0 * THETA.powf(-2.0 * i as f64 / 6.0)).sin_cos();
            let (a, b) = (f64::from(x[i]), f64::from(x[i + 3]));
            assert!((f64::from(y[i]) - (a * cos - b * sin)).abs() < 1e-6);
            assert!((f64::from(y[i + 3]) - (b * cos + a * sin)).abs() < 1e-6);
        }
    }

    #[test]
    fn scores_depend_on_the_distance_of_two_positions_only() {
        for dim in [2, 6, 34] {
            let rotary = Rotary::new(dim, 32, THETA).unwrap();
            let (q, k) = (vector(dim, 1), vector(dim, 2));
            let product = |n, m| {
                let (q, k) =
                    (turned(&rotary, &q, n, Way::There), turned(&rotary, &k, m, Way::There));
                q.iter().zip(&k).map(|(q, k)| q * k).sum::<f32>()
            };
            for distance in [0, 1, 7] {
                let want = product(distance, 0);
                assert!((product(32, 32 - distance) - want).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn a_rotation_and_its_inverse_cancel() {
        let rotary = Rotary::new(34, 9, THETA).unwrap();
        let x = vector(3 * 34, 3);
        let y = turned(&rotary, &turned(&rotary, &x, 9, Way::There), 9, Way::Back);
        assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-6));
    }

    #[test]
    fn frames_rotate_by_their_own_position_and_other_columns_are_unchanged() {
        let rotary = Rotary::new(4, 2, THETA).unwrap();
        let x = vector(3 * 11, 5);
        let mut y = x.clone();
        rotary.turn_frames(&mut y, 11, 1, 8, Way::There);
        for (i, (x, y)) in x.chunks(11).zip(y.chunks(11)).enumerate() {
            assert_eq!(y[1..9], turned(&rotary, &x[1..9], i, Way::There));
            assert_eq!((y[0], &y[9..]), (x[0], &x[9..]));
        }
    }

    #[test]
    fn an_odd_number_is_refused() {
        let said = Rotary::new(7, 3, THETA).unwrap_err().to_string();
        assert_eq!(said, "numbers of a rotation: expected an even number, got 7");
    }
}
