//! Variation of elites: isotropic noise, and noise along the line between two elites (Vassiliades & Mouret 2018).

use std::ops::{Add, Mul, Sub};

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, memory, pool};
use serde::Deserialize;

use crate::archive::Archive;
use crate::noise::{GROUP, normals};

/// Children that a shard of parallel work makes; with a multiple of [`GROUP`] each shard begins at a group.
const SHARD: usize = 2 * GROUP;

/// The sizes of both noises, and bounds of the numbers of a child.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Variation {
    /// Standard deviation of the noise of each number.
    pub iso_sigma: f32,
    /// Standard deviation of the step towards the second parent, as a share of the distance.
    pub line_sigma: f32,
    /// Lowest and highest number of a child.
    pub bounds: Option<(f32, f32)>,
}

/// Writes a child of two parents: `first + iso_sigma noise + line_sigma line (second - first)`.
pub fn iso_line<T>(
    (first, second): (&[T], &[T]),
    (iso_sigma, line_sigma): (T, T),
    (noise, line): (&[T], T),
    child: &mut [T],
) where
    T: Copy + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
{
    let line = line_sigma * line;
    for (((child, a), b), noise) in child.iter_mut().zip(first).zip(second).zip(noise) {
        *child = *a + iso_sigma * *noise + line * (*b - *a);
    }
}

impl Archive {
    /// `count` children of random pairs of elites, `[count, solution_size]`. They depend on the archive, the seed and
    /// the generation.
    ///
    /// # Errors
    /// `NotFound` for an empty archive, `OutOfRange` for sigmas and bounds that are not finite, `OutOfMemory` for too
    /// many children.
    pub fn vary(
        &self,
        variation: &Variation,
        count: usize,
        (seed, generation): (u64, u64),
    ) -> Result<Vec<f32>> {
        let elites = self.filled()?;
        let Variation { iso_sigma, line_sigma, bounds } = *variation;
        for (name, value) in [("iso_sigma", iso_sigma), ("line_sigma", line_sigma)] {
            if !(0.0..=f32::MAX).contains(&value) {
                return Err(Error::out_of_range(name, value.into(), 0.0, f32::MAX.into()));
            }
        }
        let (low, high) = bounds.unwrap_or((f32::MIN, f32::MAX));
        if low.is_nan() || high.is_nan() || low > high {
            return Err(Error::mismatch("bounds", format!("at least {low}"), high));
        }
        let size = self.solution_size();
        memory::room(
            "children",
            count.saturating_mul(size).saturating_mul(size_of::<f32>()) as u64,
        )?;
        let mut children = memory::caught(|| Ok(memory::zeros(count * size)))?;
        let solutions = &self.elites().solutions;
        let parents = Rng::new(seed, "evolve.parents", generation);
        let noise = Rng::new(seed, "evolve.variation", generation);
        let parent = |word: u32| {
            let at = ((u64::from(word) * elites as u64) >> 32) as usize;
            &solutions[at * size..][..size]
        };
        pool::for_each_rows(&mut children, size, SHARD, |at, children| {
            let mut numbers = vec![0.0; children.len() / size * (size + 1)];
            normals(&noise, (at * (size + 1)) as u64, &mut numbers);
            let rows = children.chunks_exact_mut(size).zip(numbers.chunks_exact(size + 1));
            let mut words = [0; 4];
            for (i, (child, numbers)) in rows.enumerate() {
                // A block has the words of two children.
                if i % 2 == 0 {
                    words = parents.block((at + i) as u64 / 2);
                }
                let (first, second) = (words[i % 2 * 2], words[i % 2 * 2 + 1]);
                let pair = (parent(first), parent(second));
                let (line, noise) = (numbers[size], &numbers[..size]);
                iso_line(pair, (iso_sigma, line_sigma), (noise, line), child);
                child.iter_mut().for_each(|v| *v = v.clamp(low, high));
            }
        });
        Ok(children)
    }
}
