//! Item memories of 8 bits a number.

use sconce_tensor::{Result, dispatch, memory, pool};

use crate::vectors::{Domain, ROWS, Vectors, inverse, rows};

/// The largest code.
const TOP: f32 = 127.0;
/// Products whose sum fits in 32 bits.
const PART: usize = 1 << 16;

/// Vectors as codes from -127 to 127: a number is `code * largest / 127`, with the largest magnitude of its vector.
#[derive(Debug)]
pub struct Codes {
    dimension: usize,
    domain: Domain,
    codes: Vec<i8>,
    /// The length of each vector of codes.
    norms: Vec<f32>,
}

dispatch! {
    fn encode(row: &[f32], codes: &mut [i8], norm: &mut f32) {
        let mut largest = 0.0f32;
        for v in row {
            largest = largest.max(v.abs());
        }
        // The scale of a tiny number is infinite.
        let scale = if TOP / largest < f32::INFINITY { TOP / largest } else { 0.0 };
        let mut square = 0u64;
        for (row, codes) in row.chunks(PART).zip(codes.chunks_mut(PART)) {
            let mut part = 0i32;
            for (code, v) in codes.iter_mut().zip(row) {
                let own = (v * scale).round_ties_even() as i32;
                *code = own as i8;
                part += own * own;
            }
            square += part as u64;
        }
        *norm = (square as f64).sqrt() as f32;
    }
}

dispatch! {
    fn dot(query: &[i16], codes: &[i8], out: &mut f32) {
        let mut all = 0i64;
        for (query, codes) in query.chunks(PART).zip(codes.chunks(PART)) {
            let products = query.iter().zip(codes).map(|(q, c)| i32::from(*q) * i32::from(*c));
            all += i64::from(products.sum::<i32>());
        }
        *out = all as f32;
    }
}

/// The codes of a query, with 16 bits as the products need them.
pub(crate) struct Query {
    codes: Vec<i16>,
    norm: f32,
}

impl Query {
    /// The codes of vectors.
    pub(crate) fn all(vectors: &Vectors) -> Result<Vec<Query>> {
        let all = Codes::of(vectors)?;
        let rows = all.codes.chunks_exact(all.dimension).zip(&all.norms);
        let widened = |codes: &[i8]| codes.iter().map(|code| i16::from(*code)).collect();
        Ok(rows.map(|(codes, norm)| Query { codes: widened(codes), norm: *norm }).collect())
    }
}

impl Codes {
    /// The codes of vectors, in their domain. Codes of unitary vectors are most exact in the spectrum, where all
    /// numbers are of one magnitude.
    ///
    /// # Errors
    /// `NonFinite` for vectors whose squared length exceeds the range of f32; `OutOfMemory`.
    pub fn of(vectors: &Vectors) -> Result<Codes> {
        vectors.norms("items")?;
        let d = vectors.dimension();
        memory::room("codes", vectors.numbers().len() as u64)?;
        let mut codes = memory::caught(|| Ok(memory::repeated(0i8, vectors.numbers().len())))?;
        let mut norms = rows(vectors.count(), 1)?;
        let shards = codes.chunks_mut(ROWS * d).zip(norms.chunks_mut(ROWS)).collect();
        pool::hand_out(shards, |shard, (codes, norms): (&mut [i8], &mut [f32])| {
            for (at, (codes, norm)) in codes.chunks_exact_mut(d).zip(norms).enumerate() {
                encode(vectors.row(shard * ROWS + at), codes, norm);
            }
        });
        Ok(Codes { dimension: d, domain: vectors.domain(), codes, norms })
    }

    /// The number of items.
    pub fn count(&self) -> usize {
        self.norms.len()
    }

    /// Numbers of an item.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The domain of the items.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Bytes of all codes.
    pub fn bytes(&self) -> usize {
        self.codes.len()
    }

    /// The cosine of a query and an item.
    pub(crate) fn cosine(&self, query: &Query, item: usize) -> f32 {
        let mut product = 0.0;
        dot(&query.codes, &self.codes[item * self.dimension..][..self.dimension], &mut product);
        product * inverse(query.norm) * inverse(self.norms[item])
    }
}
