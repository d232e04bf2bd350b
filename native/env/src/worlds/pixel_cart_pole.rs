//! CartPole-v1 seen as an image of 64 x 64 grey values: the cart as a box, the pole as a line. Velocities are not seen; stacked
//! images or memory show them.

use sconce_tensor::trig::sin_cos_with;

use super::cart_pole::{self, CartPole, MAX_X};
use super::{Dynamics, World};
use crate::vectorised::Kernel;

/// Pixels of a side.
pub(crate) const SIDE: usize = 64;
/// Pixels of the image.
const PIXELS: usize = SIDE * SIDE;
/// Pixels per metre, which show all positions of a running episode.
const SCALE: f32 = 60.0 / (2.0 * MAX_X);
/// Height of the cart's centre, in rows from above.
const CART_ROW: f32 = 52.0;
/// Half of the cart's width and height, in pixels.
const CART: [f32; 2] = [5.0, 3.0];
/// The length of the pole in pixels: longer than in the scale of the cart, so that small angles are seen.
const POLE: f32 = 36.0;
/// Half of the pole's width, in pixels.
const WIDTH: f32 = 1.0;
/// The grey value of the cart. The pole is 1, the rest 0.
const CART_GREY: f32 = 0.6;

pub(crate) const WORLD: World = World {
    name: "pixel_cart_pole",
    image: Some([1, SIDE, SIDE]),
    kernel: Kernel { on_card: false, ..Kernel::new::<Pixels, 4, 1, PIXELS, 1>() },
    ..cart_pole::WORLD
};

struct Pixels;

impl Dynamics<4, 1, PIXELS, 1> for Pixels {
    fn start(words: [u32; 4]) -> [f32; 4] {
        CartPole::start(words)
    }

    #[inline(always)]
    fn step<const FMA: bool>(
        state: [f32; 4],
        input: [f32; 1],
        limit: f32,
    ) -> ([f32; 4], [f32; 1], bool) {
        CartPole::step::<FMA>(state, input, limit)
    }

    /// Rows from above. A pixel that an edge crosses is grey in proportion.
    #[inline(always)]
    fn observe<const FMA: bool>([x, _, theta, _]: [f32; 4], _seat: usize) -> [f32; PIXELS] {
        let (sin, cos) = sin_cos_with::<FMA>(theta);
        let centre = SIDE as f32 / 2.0 - 0.5 + SCALE * x;
        let covered = |distance: f32, half: f32| (half + 0.5 - distance).clamp(0.0, 1.0);
        let mut image = [0.0; PIXELS];
        for (row, line) in image.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            let up = CART_ROW - row as f32;
            let tall = CART_GREY * covered(up.abs(), CART[1]);
            for (column, grey) in line.iter_mut().enumerate() {
                let right = column as f32 - centre;
                let cart = tall * covered(right.abs(), CART[0]);
                // The nearest point of the pole, which begins in the middle of the cart.
                let along = (right * sin + up * cos).clamp(0.0, POLE);
                let (dx, dy) = (right - along * sin, up - along * cos);
                let pole = covered((dx * dx + dy * dy).sqrt(), WIDTH);
                *grey = cart.max(pole);
            }
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(x: f32, theta: f32) -> [f32; PIXELS] {
        Pixels::observe::<false>([x, 0.0, theta, 0.0], 0)
    }

    /// Mean row and column of the pixels above the cart, weighted by their grey.
    fn middle(image: &[f32; PIXELS]) -> [f32; 2] {
        let above = image.iter().enumerate().take((CART_ROW as usize - 4) * SIDE);
        let (sum, row, column) = above.fold((0.0, 0.0, 0.0), |(sum, row, column), (i, grey)| {
            (sum + grey, row + grey * (i / SIDE) as f32, column + grey * (i % SIDE) as f32)
        });
        [row / sum, column / sum]
    }

    #[test]
    fn the_image_moves_with_the_cart_and_turns_with_the_pole() {
        let upright = seen(0.0, 0.0);
        let [row, column] = middle(&upright);
        assert!((column - 31.5).abs() < 1e-3 && row < CART_ROW);
        // Both sides look alike.
        for line in upright.as_chunks::<SIDE>().0 {
            let turned: Vec<f32> = line.iter().rev().copied().collect();
            assert!(line.iter().zip(&turned).all(|(a, b)| (a - b).abs() < 1e-5));
        }
        assert!((middle(&seen(1.0, 0.0))[1] - 31.5 - SCALE).abs() < 0.05);
        assert!(middle(&seen(0.0, 0.1))[1] > 32.5);
        assert!(middle(&seen(0.0, -0.1))[1] < 30.5);
        assert!(upright.iter().all(|grey| (0.0..=1.0).contains(grey)));
        assert!(upright.contains(&1.0) && upright.contains(&0.0));
    }

    #[test]
    fn a_hundredth_of_a_radian_changes_the_image() {
        let [a, b] = [seen(0.0, 0.0), seen(0.0, 0.01)];
        let apart = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum::<f32>();
        assert!(apart > 2.0, "{apart}");
    }

    #[test]
    fn the_cart_is_seen_at_both_ends_of_its_track() {
        for x in [-MAX_X, MAX_X] {
            let image = seen(x, 0.0);
            let row = &image[CART_ROW as usize * SIDE..][..SIDE];
            assert!(row.iter().any(|grey| *grey >= CART_GREY));
        }
    }
}
