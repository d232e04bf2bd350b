//! The numbers of all individuals in memory, in blocks of [`LANES`] individuals.

use half::bf16;
use sconce_ops::Activation;
use sconce_tensor::simd::LANES;
use sconce_tensor::{Result, memory, pool};
use serde::{Deserialize, Serialize};

use super::kernel::{Cell, Dense, Lanes, apply};
use super::network::{Layer, Network};

/// Individuals of a shard of parallel work, whole blocks.
pub(super) const SHARD: usize = 4 * LANES;
/// Blocks of a shard.
const BLOCKS: usize = SHARD / LANES;

/// The type of stored weights. Biases are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats with the exponent of f32.
    Bf16,
    /// 8-bit integers with a scale for each row of weights of each individual: its largest magnitude is 127.
    Int8,
}

/// Weights `[blocks, weights]`, and biases and scales `[blocks, rows]`.
#[derive(Debug, Clone)]
pub(super) struct Cells<C> {
    pub(super) weights: Vec<C>,
    pub(super) biases: Vec<Lanes>,
    /// Empty for factors of 1.
    pub(super) scales: Vec<Lanes>,
}

/// [`Cells`] of each type.
#[derive(Debug, Clone)]
pub(super) enum Stored {
    F32(Cells<Lanes>),
    Bf16(Cells<[bf16; LANES]>),
    Int8(Cells<[i8; LANES]>),
}

/// Calls a generic function with the cells of any type.
macro_rules! with {
    ($stored:expr, $cells:ident => $body:expr) => {
        match $stored {
            Stored::F32($cells) => $body,
            Stored::Bf16($cells) => $body,
            Stored::Int8($cells) => $body,
        }
    };
}

impl Storage {
    /// Bytes of an individual.
    pub fn bytes(self, network: &Network) -> usize {
        let (weights, rows) = (network.weights(), network.rows());
        match self {
            Storage::F32 => 4 * (weights + rows),
            Storage::Bf16 => 2 * weights + 4 * rows,
            Storage::Int8 => weights + 8 * rows,
        }
    }
}

impl Stored {
    /// Zeros for `blocks` blocks.
    pub(super) fn new(storage: Storage, network: &Network, blocks: usize) -> Result<Self> {
        let bytes = storage.bytes(network).saturating_mul(LANES).saturating_mul(blocks);
        memory::room("a population", bytes as u64)?;
        memory::caught(|| {
            Ok(match storage {
                Storage::F32 => Stored::F32(Cells::new([0.0; LANES], network, blocks)),
                Storage::Bf16 => Stored::Bf16(Cells::new([bf16::ZERO; LANES], network, blocks)),
                Storage::Int8 => Stored::Int8(Cells::new([0; LANES], network, blocks)),
            })
        })
    }

    pub(super) fn storage(&self) -> Storage {
        match self {
            Stored::F32(_) => Storage::F32,
            Stored::Bf16(_) => Storage::Bf16,
            Stored::Int8(_) => Storage::Int8,
        }
    }

    /// Reads the solution of an individual.
    pub(super) fn read(&self, network: &Network, at: usize, solution: &mut [f32]) {
        with!(self, cells => cells.read(network, at, solution));
    }

    /// Reads the solutions of a block, `[LANES, size]`: much faster than one by one, which read the whole block for each.
    pub(super) fn read_block(&self, network: &Network, block: usize, solutions: &mut [f32]) {
        with!(self, cells => cells.read_block(network, block, solutions));
    }

    /// Computes the activations of a block. `units` begin with the observations.
    pub(super) fn forward(&self, network: &Network, block: usize, units: &mut [Lanes]) {
        with!(self, cells => cells.forward(network, block, units));
    }

    /// Calls `fill(first, rows)` for each shard of individuals, in parallel: it writes the solutions `[rows, size]` of
    /// the individuals from `first` on.
    pub(super) fn fill(
        &mut self,
        network: &Network,
        count: usize,
        fill: impl Fn(usize, &mut [f32]) + Sync + Send,
    ) {
        with!(self, cells => cells.fill(network, count, fill));
    }

    /// Writes the solutions of a block, `[LANES, size]`.
    pub(super) fn write(&mut self, network: &Network, block: usize, solutions: &[f32]) {
        with!(self, cells => cells.part(network, block).write(network, solutions));
    }
}

/// A block of [`Cells`], or several.
struct Part<'a, C> {
    weights: &'a mut [C],
    biases: &'a mut [Lanes],
    scales: &'a mut [Lanes],
}

impl<C: Cell> Cells<C> {
    fn new(zero: C, network: &Network, blocks: usize) -> Self {
        let rows = blocks * network.rows();
        Cells {
            weights: memory::repeated(zero, blocks * network.weights()),
            biases: memory::repeated([0.0; LANES], rows),
            scales: memory::repeated([0.0; LANES], if C::SCALED { rows } else { 0 }),
        }
    }

    fn part(&mut self, network: &Network, block: usize) -> Part<'_, C> {
        let (weights, rows) = (network.weights(), network.rows());
        let scaled = if C::SCALED { rows } else { 0 };
        Part {
            weights: &mut self.weights[block * weights..][..weights],
            biases: &mut self.biases[block * rows..][..rows],
            scales: &mut self.scales[block * scaled..][..scaled],
        }
    }

    fn layer(&self, network: &Network, block: usize, layer: &Layer) -> Dense<'_, C> {
        let (numbers, outputs) = (layer.inputs() * layer.outputs(), layer.outputs());
        let rows = block * network.rows() + layer.biases;
        Dense {
            weights: &self.weights[block * network.weights() + layer.weights..][..numbers],
            biases: &self.biases[rows..][..outputs],
            scales: if C::SCALED { &self.scales[rows..][..outputs] } else { &[] },
        }
    }

    fn forward(&self, network: &Network, block: usize, units: &mut [Lanes]) {
        for layer in &network.layers {
            let (before, after) = units.split_at_mut(layer.to.start);
            let y = &mut after[..layer.outputs()];
            apply(&self.layer(network, block, layer), &before[layer.from.clone()], y);
            if layer.activation != Activation::None {
                layer.activation.apply(y.as_flattened_mut());
            }
        }
    }

    fn read(&self, network: &Network, at: usize, solution: &mut [f32]) {
        let (block, lane) = (at / LANES, at % LANES);
        for layer in &network.layers {
            let (dense, place, inputs) =
                (self.layer(network, block, layer), layer.place(), layer.inputs());
            let (weights, rest) = solution[place.start..].split_at_mut(place.len());
            let rows = weights.chunks_exact_mut(inputs).zip(dense.weights.chunks_exact(inputs));
            for (row, (own, cells)) in rows.enumerate() {
                let scale = dense.scales.get(row).map_or(1.0, |scale| scale[lane]);
                for (own, cell) in own.iter_mut().zip(cells) {
                    *own = cell.wide()[lane] * scale;
                }
            }
            rest.iter_mut().zip(dense.biases).for_each(|(own, bias)| *own = bias[lane]);
        }
    }

    fn read_block(&self, network: &Network, block: usize, solutions: &mut [f32]) {
        let size = network.size();
        for layer in &network.layers {
            let (dense, place, inputs) =
                (self.layer(network, block, layer), layer.place(), layer.inputs());
            for (row, cells) in dense.weights.chunks_exact(inputs).enumerate() {
                let scale = dense.scales.get(row).copied().unwrap_or([1.0; LANES]);
                let first = place.start + row * inputs;
                separate(cells, &scale, &mut solutions[first..], size);
            }
            for (at, bias) in dense.biases.iter().enumerate() {
                let places = solutions[place.end + at..].iter_mut().step_by(size);
                places.zip(bias).for_each(|(own, bias)| *own = *bias);
            }
        }
    }

    fn fill(
        &mut self,
        network: &Network,
        count: usize,
        fill: impl Fn(usize, &mut [f32]) + Sync + Send,
    ) {
        let (weights, rows, size) = (network.weights(), network.rows(), network.size());
        let scaled = if C::SCALED { rows } else { 0 };
        let mut scales = self.scales.chunks_mut((BLOCKS * scaled).max(1));
        let parts = self
            .weights
            .chunks_mut(BLOCKS * weights)
            .zip(self.biases.chunks_mut(BLOCKS * rows))
            .map(|(weights, biases)| {
                let scales = scales.next().unwrap_or_default();
                Part { weights, biases, scales }
            });
        pool::hand_out(parts.collect(), |at, mut part| {
            let end = count.min((at + 1) * SHARD);
            // A block at a time stays in the cache.
            let mut solutions = memory::zeros(LANES * size);
            for (block, first) in (at * SHARD..end).step_by(LANES).enumerate() {
                let rows = &mut solutions[..LANES.min(end - first) * size];
                fill(first, rows);
                let used = rows.len();
                solutions[used..].fill(0.0);
                part.block(network, block).write(network, &solutions);
            }
        });
    }
}

impl<C: Cell> Part<'_, C> {
    fn block(&mut self, network: &Network, block: usize) -> Part<'_, C> {
        let (weights, rows) = (network.weights(), network.rows());
        let scaled = if C::SCALED { rows } else { 0 };
        Part {
            weights: &mut self.weights[block * weights..][..weights],
            biases: &mut self.biases[block * rows..][..rows],
            scales: &mut self.scales[block * scaled..][..scaled],
        }
    }

    /// Writes the solutions of a block, `[LANES, size]`.
    fn write(&mut self, network: &Network, solutions: &[f32]) {
        let size = network.size();
        let rows: [&[f32]; LANES] = std::array::from_fn(|lane| &solutions[lane * size..][..size]);
        for layer in &network.layers {
            let (place, inputs) = (layer.place(), layer.inputs());
            let cells = self.weights[layer.weights..][..place.len()].chunks_exact_mut(inputs);
            for (row, cells) in cells.enumerate() {
                let first = place.start + row * inputs;
                let own = rows.map(|row| &row[first..][..inputs]);
                let mut factor = [1.0; LANES];
                if C::SCALED {
                    let largest = own.map(|row| row.iter().fold(0.0f32, |all, v| all.max(v.abs())));
                    // The inverse of a smaller scale could be infinite. Such a row becomes 0.
                    let scale = largest.map(|largest| {
                        let scale = largest / 127.0;
                        if scale >= f32::MIN_POSITIVE { scale } else { 0.0 }
                    });
                    factor = scale.map(|scale| if scale > 0.0 { 1.0 / scale } else { 0.0 });
                    self.scales[layer.biases + row] = scale;
                }
                interleave(&own, &factor, cells);
            }
            let biases = &mut self.biases[layer.biases..][..layer.outputs()];
            biases
                .iter_mut()
                .enumerate()
                .for_each(|(at, bias)| *bias = rows.map(|row| row[place.end + at]));
        }
    }
}

/// Numbers of a row that are in registers together.
const TILE: usize = 8;

/// Writes each number of all rows, times the factor of the row, to one cell.
fn interleave<C: Cell>(rows: &[&[f32]; LANES], factor: &Lanes, cells: &mut [C]) {
    let cell = |own: Lanes| -> C {
        if C::SCALED { C::of(std::array::from_fn(|i| own[i] * factor[i])) } else { C::of(own) }
    };
    let rows = rows.map(|row| row.as_chunks::<TILE>());
    let (tiles, rest) = cells.as_chunks_mut::<TILE>();
    for (at, tile) in tiles.iter_mut().enumerate() {
        let own: [[f32; TILE]; LANES] = std::array::from_fn(|i| rows[i].0[at]);
        for (j, place) in tile.iter_mut().enumerate() {
            *place = cell(std::array::from_fn(|i| own[i][j]));
        }
    }
    for (j, place) in rest.iter_mut().enumerate() {
        *place = cell(std::array::from_fn(|i| rows[i].1[j]));
    }
}

/// The inverse of [`interleave`]: writes each lane of the cells, times its scale, to a row. Rows begin `size` numbers apart.
fn separate<C: Cell>(cells: &[C], scale: &Lanes, rows: &mut [f32], size: usize) {
    for (tile, cells) in cells.chunks(TILE).enumerate() {
        let mut own = [[0.0; TILE]; LANES];
        for (j, cell) in cells.iter().enumerate() {
            let wide = cell.wide();
            for i in 0..LANES {
                own[i][j] = wide[i] * scale[i];
            }
        }
        for (own, row) in own.iter().zip(rows.chunks_mut(size)) {
            let row = &mut row[tile * TILE..][..cells.len()];
            match <&mut [f32; TILE]>::try_from(&mut *row) {
                Ok(row) => *row = *own,
                Err(_) => row.copy_from_slice(&own[..row.len()]),
            }
        }
    }
}
