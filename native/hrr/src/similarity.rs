//! Similarity, and clean-up by the most similar item.

use std::ops::Range;

use sconce_tensor::{Error, Result, memory, pool};

use crate::codes::{Codes, Query};
use crate::tile::{self, Block, ITEMS, QUERIES};
use crate::vectors::{Domain, Vectors, inverse};

/// The vectors that queries are compared with.
#[derive(Debug, Clone, Copy)]
pub enum Items<'a> {
    /// Numbers of 32 bits.
    Numbers(&'a Vectors),
    /// Numbers of 8 bits.
    Codes(&'a Codes),
}

/// The most similar item of each query.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Index of the item; of equally similar ones the first.
    pub indices: Vec<u32>,
    /// Its similarity.
    pub similarities: Vec<f32>,
}

impl Items<'_> {
    fn count(&self) -> usize {
        match self {
            Items::Numbers(items) => items.count(),
            Items::Codes(items) => items.count(),
        }
    }

    fn dimension(&self) -> usize {
        match self {
            Items::Numbers(items) => items.dimension(),
            Items::Codes(items) => items.dimension(),
        }
    }

    fn domain(&self) -> Domain {
        match self {
            Items::Numbers(items) => items.domain(),
            Items::Codes(items) => items.domain(),
        }
    }
}

/// Queries in the domain and the form of the items, with the lengths of all vectors.
enum Pairs<'a> {
    Numbers { queries: &'a Vectors, items: &'a Vectors, lengths: [&'a [f32]; 2] },
    Codes { queries: Vec<Query>, items: &'a Codes },
}

impl Pairs<'_> {
    /// Writes the cosines of some queries and items, `[queries, items]`.
    fn cosines(&self, query: Range<usize>, item: Range<usize>, out: &mut [f32]) {
        let count = item.len();
        match self {
            Pairs::Numbers { queries, items, lengths: [own, others] } => {
                let width = queries.dimension();
                let rows = |all: &Range<usize>| all.start * width..all.end * width;
                let block = Block {
                    queries: &queries.numbers()[rows(&query)],
                    items: &items.numbers()[rows(&item)],
                    width,
                };
                tile::dots(block, out);
                for (row, own) in out.chunks_exact_mut(count).zip(&own[query]) {
                    for (dot, other) in row.iter_mut().zip(&others[item.clone()]) {
                        // Two products: that of both inverses may be infinite.
                        *dot = *dot * inverse(*own) * inverse(*other);
                    }
                }
            }
            Pairs::Codes { queries, items } => {
                // An item is read from memory once for all queries.
                for (column, item) in item.enumerate() {
                    for (row, query) in queries[query.clone()].iter().enumerate() {
                        out[row * count + column] = items.cosine(query, item);
                    }
                }
            }
        }
        out.iter_mut().for_each(|cosine| *cosine = cosine.clamp(-1.0, 1.0));
    }
}

impl Vectors {
    fn paired_with<T>(
        &self,
        items: Items<'_>,
        work: impl FnOnce(&Pairs<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_width(items.dimension(), "items")?;
        self.with_domain(items.domain(), |queries| match items {
            Items::Numbers(items) => {
                let lengths = [queries.norms("queries")?, items.norms("items")?];
                work(&Pairs::Numbers { queries, items, lengths })
            }
            Items::Codes(items) => work(&Pairs::Codes { queries: Query::all(queries)?, items }),
        })
    }

    /// The cosine of the angle between each vector and each item, `[count, items]`. The vectors move to the domain of
    /// the items. A vector of zeros is not similar to any: its cosines are 0.
    ///
    /// # Errors
    /// `Mismatch` for items of another width; `NonFinite` for vectors whose squared length exceeds the range of f32;
    /// `OutOfMemory`.
    pub fn similarity(&self, items: Items<'_>) -> Result<Vec<f32>> {
        self.paired_with(items, |pairs| {
            let (queries, items) = (self.count(), items.count());
            let bytes = queries.saturating_mul(items).saturating_mul(2 * size_of::<f32>());
            memory::room("similarities", bytes as u64)?;
            let mut columns = memory::caught(|| Ok(memory::zeros(queries * items)))?;
            pool::for_each_rows(&mut columns, queries, ITEMS, |first, columns| {
                let item = first..first + columns.len() / queries;
                let mut block = [0.0; QUERIES * ITEMS];
                for from in (0..queries).step_by(QUERIES) {
                    let query = from..(from + QUERIES).min(queries);
                    let block = &mut block[..query.len() * item.len()];
                    pairs.cosines(query, item.clone(), block);
                    for (at, row) in block.chunks_exact(item.len()).enumerate() {
                        for (column, cosine) in row.iter().enumerate() {
                            columns[column * queries + from + at] = *cosine;
                        }
                    }
                }
            });
            Ok(transposed(columns, queries))
        })
    }

    /// The most similar item of each vector (an item memory, or clean-up memory).
    ///
    /// # Errors
    /// As of [`similarity`](Self::similarity); `OutOfRange` for more than `u32::MAX` items.
    pub fn cleanup(&self, items: Items<'_>) -> Result<Found> {
        let (queries, count) = (self.count(), items.count());
        if count > u32::MAX as usize {
            return Err(Error::out_of_range("items", count as f64, 1.0, f64::from(u32::MAX)));
        }
        let worst = (f32::NEG_INFINITY, 0u32);
        self.paired_with(items, |pairs| {
            let shards = count.div_ceil(ITEMS);
            let bytes = shards.saturating_mul(queries).saturating_mul(size_of_val(&worst));
            memory::room("similarities", bytes as u64)?;
            let mut best = memory::caught(|| Ok(memory::repeated(worst, shards * queries)))?;
            pool::for_each_rows(&mut best, queries, 1, |shard, best| {
                let item = shard * ITEMS..((shard + 1) * ITEMS).min(count);
                let mut block = [0.0; QUERIES * ITEMS];
                for (at, best) in best.chunks_mut(QUERIES).enumerate() {
                    let from = at * QUERIES;
                    let block = &mut block[..best.len() * item.len()];
                    pairs.cosines(from..from + best.len(), item.clone(), block);
                    for (best, row) in best.iter_mut().zip(block.chunks_exact(item.len())) {
                        for (cosine, item) in row.iter().zip(item.clone()) {
                            // Of equal items the first stays.
                            if *cosine > best.0 {
                                *best = (*cosine, item as u32);
                            }
                        }
                    }
                }
            });
            let (mut indices, mut similarities) = (vec![0; queries], vec![worst.0; queries]);
            for shard in best.chunks_exact(queries) {
                for (query, (cosine, item)) in shard.iter().enumerate() {
                    if *cosine > similarities[query] {
                        (similarities[query], indices[query]) = (*cosine, *item);
                    }
                }
            }
            Ok(Found { indices, similarities })
        })
    }
}

/// Rows of columns of `width` numbers.
fn transposed(columns: Vec<f32>, width: usize) -> Vec<f32> {
    if width == 1 {
        return columns;
    }
    let mut rows = memory::with_capacity(columns.len());
    for row in 0..width {
        rows.extend(columns.iter().skip(row).step_by(width));
    }
    rows
}
