//! Random vectors.

use std::f32::consts::TAU;

use sconce_tensor::rng::Rng;
use sconce_tensor::trig::sin_cos_with;
use sconce_tensor::{Result, dispatch};
use serde::Deserialize;

use crate::fourier::factors;
use crate::vectors::{Domain, ROWS, Vectors, check_dimension, computed};

/// The distribution of an atom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Each bin of the spectrum has modulus 1 and a uniform phase; bins 0 and `d/2` are 1. Binding to such an atom
    /// keeps lengths and angles, and unbinding is exact.
    Unitary,
    /// Each number is normal with mean 0 and variance `1 / d` (Plate 1995).
    Gaussian,
}

/// Blocks of Philox that are computed together.
const BLOCKS: usize = 8;
const GROUP: usize = 4 * BLOCKS;

dispatch! {
    /// Fills `re` and `im` with points of a circle, in uniform directions.
    fn directions(rng: &Rng, radius: f32, re: &mut [f32], im: &mut [f32]) {
        for (at, (re, im)) in re.chunks_mut(GROUP).zip(im.chunks_mut(GROUP)).enumerate() {
            let words = rng.blocks::<BLOCKS>((at * BLOCKS) as u64);
            let (mut sines, mut cosines) = ([[0.0f32; BLOCKS]; 4], [[0.0f32; BLOCKS]; 4]);
            for word in 0..4 {
                for i in 0..BLOCKS {
                    let angle = (words[word][i] >> 8) as i32 as f32 * (TAU / 16_777_216.0);
                    let (sin, cos) = sin_cos_with::<FMA>(angle);
                    (cosines[word][i], sines[word][i]) = (radius * cos, radius * sin);
                }
            }
            re.copy_from_slice(&cosines.as_flattened()[..re.len()]);
            im.copy_from_slice(&sines.as_flattened()[..im.len()]);
        }
    }
}

/// Multiplies points of a circle by random radii, which makes both coordinates normal (Box & Muller 1958).
fn spread(rng: &Rng, re: &mut [f32], im: &mut [f32]) {
    for (block, (re, im)) in re.chunks_mut(4).zip(im.chunks_mut(4)).enumerate() {
        let words = rng.block(block as u64);
        for ((re, im), word) in re.iter_mut().zip(im).zip(words) {
            // Above 0 and below 1, so that the logarithm is finite and negative.
            let uniform = ((word >> 8) as f32 + 0.5) / 16_777_216.0;
            let radius = (-2.0 * uniform.min(1.0 - f32::EPSILON).ln()).sqrt();
            *re *= radius;
            *im *= radius;
        }
    }
}

impl Vectors {
    /// `count` random vectors, in the spectrum. Vector `i` depends on the seed, the kind and `i` alone.
    ///
    /// # Errors
    /// `OutOfRange` and `Mismatch` for a dimension that is too small, too large or odd; `OutOfRange` for no vector;
    /// `OutOfMemory`.
    pub fn atoms(count: usize, dimension: usize, seed: u64, kind: Kind) -> Result<Vectors> {
        check_dimension(dimension)?;
        let (real, other) = factors(dimension);
        let half = dimension / 2;
        // Atoms of one seed and different kinds are independent.
        let phases = match kind {
            Kind::Unitary => Rng::new(seed, "hrr.unitary", 0),
            Kind::Gaussian => Rng::new(seed, "hrr.gaussian", 0),
        };
        let radii = Rng::new(seed, "hrr.radii", 0);
        let numbers = computed(
            count,
            dimension,
            ROWS,
            || (),
            |(), at, row| {
                let (re, im) = row.split_at_mut(half);
                match kind {
                    Kind::Unitary => {
                        directions(&phases.at(at as u64), other, re, im);
                        (re[0], im[0]) = (real, real);
                    }
                    // The transform keeps the distribution: all numbers of the spectrum have the variance 1 / d.
                    Kind::Gaussian => {
                        directions(&phases.at(at as u64), real, re, im);
                        spread(&radii.at(at as u64), re, im);
                    }
                }
            },
        )?;
        Ok(Vectors::of(dimension, Domain::Spectrum, numbers))
    }
}
