//! A convolution as products: the values that a kernel reads at each position are a column of a matrix (im2col, Chellapilla
//! et al. 2006).
//!
//! The matrix exists for a piece of the positions at a time: several small items, or a part of a large one. Its size is
//! bounded, so that it stays in the second-level cache.

use std::ops::Range;

use super::{Sizes, Wanted};
use crate::matmul::{View, matmul};
use crate::memory;
use crate::planes::Padded;
use crate::simd::{LANES, dispatch, sum};

/// The most values of the matrix of a piece, if one position has no more: 256 KiB.
const BOUND: usize = 1 << 16;
/// A multiple of this many positions fills the vectors of a product.
const FULL: usize = 48;

/// Positions of the items `items`: the same range of each.
struct Piece {
    items: Range<usize>,
    positions: Range<usize>,
}

impl Piece {
    fn count(&self) -> usize {
        self.items.len() * self.positions.len()
    }
}

impl Sizes {
    /// The pieces of a shard of `count` items, in order.
    fn pieces(&self, count: usize) -> impl Iterator<Item = Piece> {
        let all = self.padded.positions();
        let most = match self.is_pointwise {
            true => all,
            false => (BOUND / self.depth()).max(1),
        };
        let items = (most / all).max(1);
        let positions = match most >= all {
            true => all,
            false => (most - most % FULL).max(most.min(FULL)),
        };
        (0..count).step_by(items).flat_map(move |first| {
            (0..all).step_by(positions).map(move |begin| Piece {
                items: first..(first + items).min(count),
                positions: begin..(begin + positions).min(all),
            })
        })
    }

    /// The channels of a group.
    fn channels(&self, group: usize) -> Range<usize> {
        group * self.inputs..(group + 1) * self.inputs
    }
}

/// The buffers of a shard.
struct Scratch {
    /// Padded planes of the items of a piece, `[item, channel, plane]`.
    planes: Vec<f32>,
    /// The matrix of a piece, `[depth, positions]`.
    columns: Vec<f32>,
    /// Outputs of a piece of several items, `[filter, positions]`.
    outputs: Vec<f32>,
}

impl Scratch {
    fn new(sizes: &Sizes, count: usize) -> Self {
        let (mut items, mut most) = (0, 0);
        for piece in sizes.pieces(count) {
            items = items.max(piece.items.len());
            most = most.max(piece.count());
        }
        let channels = sizes.groups * sizes.inputs;
        let (planes, columns) = match sizes.is_pointwise {
            true => (0, 0),
            false => (items * channels * sizes.padded.len(), sizes.depth() * most),
        };
        let outputs = if items > 1 { sizes.filters * most } else { 0 };
        Scratch {
            planes: memory::zeros(planes),
            columns: memory::zeros(columns),
            outputs: memory::zeros(outputs),
        }
    }
}

/// Outputs of the items in `y`.
pub(super) fn forward(sizes: &Sizes, x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    let (n, depth, filters) = (sizes.padded.positions(), sizes.depth(), sizes.filters);
    let count = y.len() / sizes.output().max(1);
    let mut scratch = Scratch::new(sizes, count);
    for piece in sizes.pieces(count) {
        read_planes(sizes, &mut scratch.planes, x, &piece);
        for group in 0..sizes.groups {
            let Scratch { planes, columns, outputs } = &mut scratch;
            let matrix = matrix(sizes, planes, columns, x, &piece, group);
            let weight = View::rows(&weight[group * filters * depth..], filters, depth);
            let own = group * filters..(group + 1) * filters;
            let bias = bias.get(own.clone()).unwrap_or_default();
            if piece.items.len() > 1 {
                let width = piece.count();
                matmul(outputs, width, weight, matrix, false);
                for (item, at) in piece.items.clone().zip((0..).step_by(n)) {
                    for (f, y) in y[item * sizes.output()..][own.start * n..own.end * n]
                        .chunks_exact_mut(n)
                        .enumerate()
                    {
                        let bias = bias.get(f).copied().unwrap_or(0.0);
                        add_to(y, &outputs[f * width + at..][..n], bias);
                    }
                }
            } else {
                let y = &mut y[piece.items.start * sizes.output()..];
                let y = &mut y[own.start * n + piece.positions.start..];
                for (f, bias) in bias.iter().enumerate() {
                    y[f * n..][..piece.positions.len()].fill(*bias);
                }
                matmul(y, n, weight, matrix, !bias.is_empty());
            }
        }
    }
}

/// The transpose of each group's weights, `[groups, depth, filters]`.
pub(super) fn turned(sizes: &Sizes, weight: &[f32]) -> Vec<f32> {
    let (depth, filters) = (sizes.depth(), sizes.filters);
    let mut turned = memory::zeros(weight.len());
    let groups = weight.chunks_exact(filters * depth);
    for (turned, weight) in turned.chunks_exact_mut(filters * depth).zip(groups) {
        for (f, row) in weight.chunks_exact(depth).enumerate() {
            row.iter().enumerate().for_each(|(k, w)| turned[k * filters + f] = *w);
        }
    }
    turned
}

/// Gradients of the items in `dy`, from the transposed weights. `x` is read for the gradient of the weight only, and the
/// transposed weights for that of the input.
pub(super) fn backward(sizes: &Sizes, x: &[f32], turned: &[f32], dy: &[f32], wanted: Wanted<'_>) {
    let (n, depth, filters) = (sizes.padded.positions(), sizes.depth(), sizes.filters);
    let count = dy.len() / sizes.output().max(1);
    let Wanted { dx, dw } = wanted;
    let mut scratch = Scratch::new(sizes, count);
    let mut slopes = Slopes::new(sizes, if dx.is_empty() { 0 } else { scratch.planes.len() });
    let mut gathered = std::mem::take(&mut scratch.outputs);
    for piece in sizes.pieces(count) {
        if !dw.is_empty() {
            read_planes(sizes, &mut scratch.planes, x, &piece);
        }
        for group in 0..sizes.groups {
            let dy = gradients(sizes, dy, &piece, group, &mut gathered);
            if !dw.is_empty() {
                let Scratch { planes, columns, .. } = &mut scratch;
                let matrix = matrix(sizes, planes, columns, x, &piece, group);
                let dw = &mut dw[group * filters * depth..][..filters * depth];
                matmul(dw, depth, dy, matrix.transposed(), true);
            }
            if !dx.is_empty() {
                let weight = View::rows(&turned[group * filters * depth..], depth, filters);
                if sizes.is_pointwise {
                    let dx = &mut dx[piece.items.start * sizes.input()..];
                    let dx = &mut dx[sizes.channels(group).start * n..];
                    matmul(dx, n, weight, dy, false);
                } else {
                    let width = piece.count();
                    matmul(&mut scratch.columns, width, weight, dy, false);
                    slopes.add(sizes, &scratch.columns, &piece, group);
                }
            }
        }
        if !dx.is_empty() && !sizes.is_pointwise {
            slopes.write(sizes, dx, &piece);
        }
    }
}

/// `db += ` the sums over the positions of all items of `item` values; nothing if `db` is empty.
pub(super) fn add_sums_of(db: &mut [f32], dy: &[f32], item: usize) {
    if db.is_empty() {
        return;
    }
    for dy in dy.chunks_exact(item.max(1)) {
        add_sums(db, dy);
    }
}

/// Fills the planes of a piece, unless the piece before had the same items.
fn read_planes(sizes: &Sizes, planes: &mut [f32], x: &[f32], piece: &Piece) {
    if sizes.is_pointwise || piece.positions.start > 0 {
        return;
    }
    let padded = &sizes.padded;
    let x = &x[piece.items.start * sizes.input()..piece.items.end * sizes.input()];
    for (plane, x) in planes.chunks_exact_mut(padded.len()).zip(x.chunks_exact(padded.input())) {
        padded.fill(plane, x);
    }
}

/// The matrix `[depth, positions]` of a piece and a group.
fn matrix<'a>(
    sizes: &Sizes,
    planes: &[f32],
    columns: &'a mut [f32],
    x: &'a [f32],
    piece: &Piece,
    group: usize,
) -> View<'a> {
    let (depth, padded, width) = (sizes.depth(), &sizes.padded, piece.count());
    if sizes.is_pointwise {
        let x = &x[piece.items.start * sizes.input()..];
        return View::rows(&x[sizes.channels(group).start * width..], depth, width);
    }
    let item = sizes.groups * sizes.inputs;
    for (row, to) in columns[..depth * width].chunks_exact_mut(width).enumerate() {
        let channel = sizes.channels(group).start + row / sizes.taps;
        for (i, to) in to.chunks_exact_mut(piece.positions.len()).enumerate() {
            let plane = &planes[(i * item + channel) * padded.len()..][..padded.len()];
            copy_runs(to, plane, padded, row % sizes.taps, &piece.positions);
        }
    }
    View::rows(columns, depth, width)
}

/// The output gradients of a piece and a group, `[filters, positions]`.
fn gradients<'a>(
    sizes: &Sizes,
    dy: &'a [f32],
    piece: &Piece,
    group: usize,
    gathered: &'a mut [f32],
) -> View<'a> {
    let (n, filters) = (sizes.padded.positions(), sizes.filters);
    let first = |item: usize| item * sizes.output() + group * filters * n;
    if piece.items.len() == 1 {
        let dy = &dy[first(piece.items.start) + piece.positions.start..];
        return View::strided(dy, filters, piece.positions.len(), n);
    }
    let width = piece.count();
    for (i, item) in piece.items.clone().enumerate() {
        for (f, dy) in dy[first(item)..][..filters * n].chunks_exact(n).enumerate() {
            gathered[f * width + i * n..][..n].copy_from_slice(dy);
        }
    }
    View::rows(gathered, filters, width)
}

/// Gradients of padded planes, `[item, channel, plane]`.
struct Slopes(Vec<f32>);

impl Slopes {
    fn new(sizes: &Sizes, values: usize) -> Self {
        Slopes(memory::zeros(if sizes.is_pointwise { 0 } else { values }))
    }

    /// Adds the gradients of a piece's matrix.
    fn add(&mut self, sizes: &Sizes, columns: &[f32], piece: &Piece, group: usize) {
        let (padded, item) = (&sizes.padded, sizes.groups * sizes.inputs);
        let columns = columns.chunks_exact(piece.count()).take(sizes.depth());
        for (row, from) in columns.enumerate() {
            let channel = sizes.channels(group).start + row / sizes.taps;
            for (i, from) in from.chunks_exact(piece.positions.len()).enumerate() {
                let plane = &mut self.0[(i * item + channel) * padded.len()..][..padded.len()];
                add_runs(plane, from, padded, row % sizes.taps, &piece.positions);
            }
        }
    }

    /// Writes the gradients of items whose last positions are in this piece.
    fn write(&mut self, sizes: &Sizes, dx: &mut [f32], piece: &Piece) {
        let padded = &sizes.padded;
        if piece.positions.end < padded.positions() {
            return;
        }
        let span = piece.items.start * sizes.input()..piece.items.end * sizes.input();
        let planes = self.0.chunks_exact_mut(padded.len());
        for (dx, plane) in dx[span].chunks_exact_mut(padded.input()).zip(planes) {
            padded.read(dx, plane);
            plane.fill(0.0);
        }
    }
}

dispatch! {
    /// Copies what a tap reads at a range of positions.
    fn copy_runs(
        to: &mut [f32],
        plane: &[f32],
        padded: &Padded,
        tap: usize,
        positions: &Range<usize>,
    ) {
        padded.runs(tap, positions, |at, from, len| {
            to[at..][..len].copy_from_slice(&plane[from..][..len]);
        });
    }
}

dispatch! {
    /// Adds gradients to what a tap reads at a range of positions.
    fn add_runs(
        plane: &mut [f32],
        from: &[f32],
        padded: &Padded,
        tap: usize,
        positions: &Range<usize>,
    ) {
        padded.runs(tap, positions, |at, to, len| {
            for (to, from) in plane[to..][..len].iter_mut().zip(&from[at..][..len]) {
                *to += from;
            }
        });
    }
}

dispatch! {
    /// `y = x + bias`.
    fn add_to(y: &mut [f32], x: &[f32], bias: f32) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x + bias;
        }
    }
}

dispatch! {
    /// Adds the sum of each row of `dy` to `sums`, of which there are as many as rows.
    fn add_sums(sums: &mut [f32], dy: &[f32]) {
        let width = dy.len() / sums.len();
        for (total, dy) in sums.iter_mut().zip(dy.chunks_exact(width.max(1))) {
            let (chunks, rest) = dy.as_chunks::<LANES>();
            let mut lanes = [0.0f32; LANES];
            for chunk in chunks {
                for i in 0..LANES {
                    lanes[i] += chunk[i];
                }
            }
            *total += sum(lanes) + rest.iter().sum::<f32>();
        }
    }
}
