//! Variation of solutions: crossover of two parents, and isotropic noise.

use std::ops::{Add, Mul, Sub};

use sconce_tensor::rng::{Rng, unit};
use sconce_tensor::simd::LANES;
use sconce_tensor::{Error, Result, dispatch, memory, pool};
use serde::Deserialize;

use crate::archive::Archive;
use crate::noise::Normals;

/// Numbers of noise that are drawn at a time.
const CHUNK: usize = 256;

/// The crossover, the size of the noise, and bounds of the numbers of a child.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Variation {
    /// Standard deviation of the noise of each number.
    pub iso_sigma: f32,
    /// The combination of both parents.
    pub crossover: Crossover,
    /// Lowest and highest number of a child.
    pub bounds: Option<(f32, f32)>,
}

/// The combination of two parents.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crossover {
    /// The first parent moves along the line to the second one by a normal number with this deviation, as a share of
    /// their distance (Vassiliades & Mouret 2018).
    Line(f32),
    /// Simulated binary crossover with this distribution index (Deb & Agrawal 1995).
    Sbx(f32),
    /// Each number comes from the second parent with this probability.
    Uniform(f32),
    /// The sum of both parents with random weights, scaled to the mean of their norms: a superposition of holographic
    /// vectors (Plate 1995).
    Holographic,
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

/// The parents of children.
pub(crate) enum Pairs<'a> {
    /// A random pair of this many parents for each child.
    Of(usize),
    /// The pair of each child.
    Given(&'a [u32]),
}

/// Children of one generation.
pub(crate) struct Children {
    variation: Variation,
    size: usize,
    parents: Rng,
    noise: Rng,
    crossover: Rng,
}

impl Variation {
    /// The children of a generation, whose solutions have `size` numbers.
    ///
    /// # Errors
    /// `OutOfRange` for numbers out of range, `Mismatch` for bounds in the wrong order.
    pub(crate) fn children(&self, size: usize, (seed, generation): (u64, u64)) -> Result<Children> {
        let (name, value, most) = match self.crossover {
            Crossover::Line(sigma) => ("line_sigma", sigma, f32::MAX),
            Crossover::Sbx(index) => ("crossover (sbx)", index, 1e6),
            Crossover::Uniform(rate) => ("crossover (uniform)", rate, 1.0),
            Crossover::Holographic => ("crossover (holographic)", 0.0, 1.0),
        };
        for (name, value, most) in [("iso_sigma", self.iso_sigma, f32::MAX), (name, value, most)] {
            if !(0.0..=most).contains(&value) {
                return Err(Error::out_of_range(name, value.into(), 0.0, most.into()));
            }
        }
        let (low, high) = self.bounds.unwrap_or((f32::MIN, f32::MAX));
        if low.is_nan() || high.is_nan() || low > high {
            return Err(Error::mismatch("bounds", format!("at least {low}"), high));
        }
        Ok(Children {
            variation: *self,
            size,
            parents: Rng::new(seed, "evolve.parents", generation),
            noise: Rng::new(seed, "evolve.variation", generation),
            crossover: Rng::new(seed, "evolve.crossover", generation),
        })
    }
}

impl Children {
    /// Writes the children from `first` on to rows, at most [`LANES`] of them: all have one stream of noise, which begins
    /// with their steps along the line. `first` is a multiple of `LANES`. `parent(at)` is the solution of a parent.
    pub(crate) fn fill<'s>(
        &self,
        first: usize,
        pairs: &Pairs<'_>,
        parent: impl Fn(usize) -> &'s [f32],
        rows: &mut [f32],
    ) {
        let size = self.size;
        let mut noise = Normals::new(&self.noise, (first / LANES) as u64);
        let mut lines = [0.0; LANES];
        noise.fill(&mut lines);
        for (i, (child, line)) in rows.chunks_exact_mut(size).zip(lines).enumerate() {
            let at = first + i;
            let pair = match pairs {
                Pairs::Of(count) => {
                    // A block has the words of two children.
                    let words = self.parents.block(at as u64 / 2);
                    [words[at % 2 * 2], words[at % 2 * 2 + 1]]
                        .map(|word| ((u64::from(word) * *count as u64) >> 32) as usize)
                }
                Pairs::Given(pairs) => [pairs[2 * at] as usize, pairs[2 * at + 1] as usize],
            };
            self.cross(at, [parent(pair[0]), parent(pair[1])], (&mut noise, line), child);
        }
    }

    /// Writes the child of two parents.
    fn cross(
        &self,
        at: usize,
        [first, second]: [&[f32]; 2],
        (noise, line): (&mut Normals, f32),
        child: &mut [f32],
    ) {
        let mut steps = Steps {
            sigma: self.variation.iso_sigma,
            line: 0.0,
            bounds: self.variation.bounds.unwrap_or((f32::MIN, f32::MAX)),
        };
        child.copy_from_slice(first);
        match self.variation.crossover {
            Crossover::Line(share) => steps.line = share * line,
            Crossover::Sbx(index) => self.sbx(at, index, child, second),
            Crossover::Uniform(rate) => {
                self.each(at, child, second, |u, a, b| if u < rate { b } else { a });
            }
            Crossover::Holographic => {
                superpose(self.crossover.uniform(at as u64), child, second);
            }
        }
        let mut numbers = [0.0; CHUNK];
        for (child, second) in child.chunks_mut(CHUNK).zip(second.chunks(CHUNK)) {
            let numbers = &mut numbers[..child.len()];
            noise.fill(numbers);
            step(child, second, numbers, &steps);
        }
    }

    /// `(1 + spread) / 2 a + (1 - spread) / 2 b`, where the spread has density `(index + 1) / 2 spread^index` below 1,
    /// and the mirrored one above.
    fn sbx(&self, at: usize, index: f32, child: &mut [f32], second: &[f32]) {
        let power = 1.0 / (index + 1.0);
        self.each(at, child, second, |u, a, b| {
            let ratio = if u <= 0.5 { 2.0 * u } else { 0.5 / (1.0 - u) };
            let spread = ratio.powf(power);
            0.5 * ((1.0 + spread) * a + (1.0 - spread) * b)
        });
    }

    /// Combines each number of both parents with a uniform number.
    fn each(
        &self,
        at: usize,
        child: &mut [f32],
        second: &[f32],
        of: impl Fn(f32, f32, f32) -> f32,
    ) {
        let first = at as u64 * self.size.div_ceil(4) as u64;
        for (block, (child, second)) in child.chunks_mut(4).zip(second.chunks(4)).enumerate() {
            let words = self.crossover.block(first + block as u64);
            for ((child, second), word) in child.iter_mut().zip(second).zip(words) {
                *child = of(unit(word), *child, *second);
            }
        }
    }
}

/// The lengths of both steps of a child, and its bounds.
struct Steps {
    sigma: f32,
    line: f32,
    bounds: (f32, f32),
}

dispatch! {
    /// Adds noise to a child, and a move along the line to the second parent if there is one.
    fn step(child: &mut [f32], second: &[f32], noise: &[f32], steps: &Steps) {
        let Steps { sigma, line, bounds: (low, high) } = *steps;
        if line == 0.0 {
            for (child, noise) in child.iter_mut().zip(noise) {
                *child = (*child + sigma * noise).clamp(low, high);
            }
            return;
        }
        for ((child, second), noise) in child.iter_mut().zip(second).zip(noise) {
            // Rounded after each operation on all CPUs.
            let moved = *child + sigma * noise + line * (second - *child);
            *child = moved.clamp(low, high);
        }
    }
}

/// Writes `share a + (1 - share) b`, scaled to the mean of both norms, to `a`.
fn superpose(share: f32, a: &mut [f32], b: &[f32]) {
    let norm = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let wanted = 0.5 * (norm(a) + norm(b));
    a.iter_mut().zip(b).for_each(|(a, b)| *a = share * *a + (1.0 - share) * b);
    let got = norm(a);
    if got > 0.0 {
        let scale = (wanted / got) as f32;
        a.iter_mut().for_each(|v| *v *= scale);
    }
}

impl Archive {
    /// `count` children of random pairs of elites, `[count, solution_size]`. They depend on the archive, the seed and
    /// the generation.
    ///
    /// # Errors
    /// `NotFound` for an empty archive, `OutOfRange` for sigmas that are not finite, `Mismatch` for bounds in the wrong
    /// order, `OutOfMemory` for too many children.
    pub fn vary(
        &self,
        variation: &Variation,
        count: usize,
        stream: (u64, u64),
    ) -> Result<Vec<f32>> {
        let (size, pairs) = (self.solution_size(), Pairs::Of(self.filled()?));
        let made = variation.children(size, stream)?;
        let bytes = count.saturating_mul(size).saturating_mul(size_of::<f32>());
        memory::room("children", bytes as u64)?;
        let mut children = memory::caught(|| Ok(memory::zeros(count * size)))?;
        let solutions = &self.elites().solutions;
        let parent = |at: usize| &solutions[at * size..][..size];
        pool::for_each_rows(&mut children, size, LANES, |at, rows| {
            made.fill(at, &pairs, parent, rows)
        });
        Ok(children)
    }
}
