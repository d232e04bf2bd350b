//! Dot products of several queries with several items.
//!
//! The sum of a pair has [`WIDTH`] lanes and is added in the same order in each tile, so a dot product does not
//! depend on the number of queries or items.

use sconce_tensor::dispatch;
use sconce_tensor::simd::mul_add;

/// Lanes of a sum.
const WIDTH: usize = 8;
/// Queries and items of a block, whose parts of [`DEPTH`] numbers stay in the L2 cache.
pub(crate) const QUERIES: usize = 16;
pub(crate) const ITEMS: usize = 24;
/// Numbers of a part.
const DEPTH: usize = 1024;
/// Queries and items of a tile, whose sums stay in registers. One query has more items.
const TILE: (usize, usize) = (4, 3);
const ALONE: usize = 4;

type Lanes = [f32; WIDTH];

#[inline(always)]
fn total(mut lanes: Lanes) -> f32 {
    let mut half = WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Adds the products of `Q` queries from `query` on with `I` items from `item` on.
#[inline(always)]
fn tile<const FMA: bool, const Q: usize, const I: usize>(
    block: &Block<'_>,
    (query, item): (usize, usize),
    (from, to): (usize, usize),
    sums: &mut [Lanes],
) {
    let a: [&[f32]; Q] = std::array::from_fn(|q| &block.query(query + q)[from..to]);
    let b: [&[f32]; I] = std::array::from_fn(|i| &block.item(item + i)[from..to]);
    let place = |q: usize, i: usize| (query + q) * ITEMS + item + i;
    let mut own: [[Lanes; I]; Q] =
        std::array::from_fn(|q| std::array::from_fn(|i| sums[place(q, i)]));
    // Slices of one known length need no checks of bounds in the loop.
    let count = (to - from) / WIDTH;
    let a_lanes: [&[Lanes]; Q] = std::array::from_fn(|q| &a[q].as_chunks().0[..count]);
    let b_lanes: [&[Lanes]; I] = std::array::from_fn(|i| &b[i].as_chunks().0[..count]);
    for at in 0..count {
        let b: [Lanes; I] = std::array::from_fn(|i| b_lanes[i][at]);
        for q in 0..Q {
            let a = a_lanes[q][at];
            for i in 0..I {
                for lane in 0..WIDTH {
                    own[q][i][lane] = mul_add::<FMA>(a[lane], b[i][lane], own[q][i][lane]);
                }
            }
        }
    }
    for q in 0..Q {
        for i in 0..I {
            sums[place(q, i)] = own[q][i];
        }
    }
    // The rest is added in memory: a variable index into `own` would keep the sums out of registers.
    for at in count * WIDTH..to - from {
        for q in 0..Q {
            for i in 0..I {
                let sum = &mut sums[place(q, i)][at % WIDTH];
                *sum = mul_add::<FMA>(a[q][at], b[i][at], *sum);
            }
        }
    }
}

/// At most [`QUERIES`] queries and [`ITEMS`] items of `width` numbers each.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) queries: &'a [f32],
    pub(crate) items: &'a [f32],
    pub(crate) width: usize,
}

impl<'a> Block<'a> {
    #[inline(always)]
    fn query(&self, at: usize) -> &'a [f32] {
        &self.queries[at * self.width..][..self.width]
    }

    #[inline(always)]
    fn item(&self, at: usize) -> &'a [f32] {
        &self.items[at * self.width..][..self.width]
    }
}

dispatch! {
    fn products(block: Block<'_>, out: &mut [f32]) {
        let (queries, items) =
            (block.queries.len() / block.width, block.items.len() / block.width);
        let mut sums = [[0.0f32; WIDTH]; QUERIES * ITEMS];
        // A few queries read each item once: reading it in parts is slower.
        let depth = if queries < TILE.0 { block.width } else { DEPTH };
        for from in (0..block.width).step_by(depth) {
            let part = (from, (from + depth).min(block.width));
            let mut query = 0;
            while query + TILE.0 <= queries {
                let mut item = 0;
                while item + TILE.1 <= items {
                    tile::<FMA, { TILE.0 }, { TILE.1 }>(&block, (query, item), part, &mut sums);
                    item += TILE.1;
                }
                while item < items {
                    tile::<FMA, { TILE.0 }, 1>(&block, (query, item), part, &mut sums);
                    item += 1;
                }
                query += TILE.0;
            }
            while query < queries {
                let mut item = 0;
                while item + ALONE <= items {
                    tile::<FMA, 1, ALONE>(&block, (query, item), part, &mut sums);
                    item += ALONE;
                }
                while item < items {
                    tile::<FMA, 1, 1>(&block, (query, item), part, &mut sums);
                    item += 1;
                }
                query += 1;
            }
        }
        for query in 0..queries {
            for item in 0..items {
                out[query * items + item] = total(sums[query * ITEMS + item]);
            }
        }
    }
}

/// Writes the dot products of a block, `[queries, items]`.
pub(crate) fn dots(block: Block<'_>, out: &mut [f32]) {
    products(block, out);
}

dispatch! {
    /// Writes the sum of squares. Four sums in turn hide the latency of an addition.
    pub(crate) fn square(row: &[f32], sum: &mut f32) {
        let (blocks, rest) = row.as_chunks::<{ 4 * WIDTH }>();
        let mut lanes = [0.0f32; 4 * WIDTH];
        for block in blocks {
            for i in 0..4 * WIDTH {
                lanes[i] = mul_add::<FMA>(block[i], block[i], lanes[i]);
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane = mul_add::<FMA>(*v, *v, *lane);
        }
        let (parts, _) = lanes.as_chunks::<WIDTH>();
        let mut all = [0.0; WIDTH];
        for part in parts {
            for i in 0..WIDTH {
                all[i] += part[i];
            }
        }
        *sum = total(all);
    }
}
