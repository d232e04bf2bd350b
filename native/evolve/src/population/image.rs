//! The numbers and the layers of a population as `population.cu` has them.

use half::bf16;
use sconce_nn::spec::HeadKind;
use sconce_tensor::simd::LANES;
use sconce_tensor::{Error, Result, memory};

use super::stored::Stored;
use super::{Episodes, Measure, Network, Population};

/// Weights `[weights, stride]`.
#[derive(Debug, Clone, PartialEq)]
pub enum CardWeights {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 16-bit floats with the exponent of f32.
    Bf16(Vec<bf16>),
    /// 8-bit integers with a sign, as bytes.
    Int8(Vec<u8>),
}

impl CardWeights {
    /// The type of the weights as the kernels number it.
    pub fn storage(&self) -> usize {
        match self {
            CardWeights::F32(_) => 0,
            CardWeights::Bf16(_) => 1,
            CardWeights::Int8(_) => 2,
        }
    }
}

/// A population as the kernels of a card read it. A row has a number of each individual.
#[derive(Debug, Clone, PartialEq)]
pub struct CardImage {
    /// `[weights, stride]`.
    pub weights: CardWeights,
    /// `[rows, stride]`.
    pub biases: Vec<f32>,
    /// The factor of each row of weights, `[rows, stride]`; empty for factors of 1.
    pub scales: Vec<f32>,
    /// Numbers of a row: the count, rounded up.
    pub stride: usize,
    /// The layers in words.
    pub layers: Vec<i64>,
    /// Number of layers.
    pub num_layers: usize,
    /// Units of an individual.
    pub units: usize,
    /// The first unit of the logits.
    pub logits: usize,
}

/// Rows of one number of each individual, of blocks of rows of [`LANES`] individuals.
fn joined<T: Copy + Default>(cells: &[[T; LANES]], blocks: usize) -> Vec<T> {
    let rows = cells.len() / blocks.max(1);
    let mut all = memory::repeated(T::default(), cells.len() * LANES);
    for (row, out) in all.chunks_exact_mut((blocks * LANES).max(1)).enumerate() {
        let own = cells.iter().skip(row).step_by(rows.max(1));
        out.chunks_exact_mut(LANES).zip(own).for_each(|(out, own)| out.copy_from_slice(own));
    }
    all
}

impl Population {
    /// The population as the kernels of a card read it.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn image(&self) -> Result<CardImage> {
        let (network, blocks) = (&self.network, self.count.div_ceil(LANES));
        memory::room("a copy of a population", self.bytes() as u64)?;
        memory::caught(|| {
            let (weights, biases, scales) = match &self.stored {
                Stored::F32(cells) => {
                    (CardWeights::F32(joined(&cells.weights, blocks)), &cells.biases, &cells.scales)
                }
                Stored::Bf16(cells) => (
                    CardWeights::Bf16(joined(&cells.weights, blocks)),
                    &cells.biases,
                    &cells.scales,
                ),
                Stored::Int8(cells) => {
                    let codes = joined(&cells.weights, blocks).into_iter().map(|code| code as u8);
                    (CardWeights::Int8(codes.collect()), &cells.biases, &cells.scales)
                }
            };
            Ok(CardImage {
                weights,
                biases: joined(biases, blocks),
                scales: joined(scales, blocks),
                stride: blocks * LANES,
                layers: network.words(),
                num_layers: network.layers.len(),
                units: network.units,
                logits: network.logits.start,
            })
        })
    }
}

impl Network {
    /// The layers as `population.cu` has them.
    fn words(&self) -> Vec<i64> {
        let words = self.layers.iter().flat_map(|layer| {
            let sizes = [layer.from.start, layer.to.start, layer.inputs(), layer.outputs()];
            let places = [layer.weights, layer.biases, layer.activation as usize];
            sizes.into_iter().chain(places)
        });
        words.map(|word| word as i64).collect()
    }

    /// The heads as `population.cu` has them.
    ///
    /// # Errors
    /// `Unavailable` for heads of other kinds than classes and numbers.
    pub fn heads_for_a_card(&self) -> Result<Vec<i64>> {
        let mut words = vec![];
        for (kind, logits, labels) in self.heads() {
            let (number, count, low, high) = match kind {
                HeadKind::Categorical(classes) => (1, classes, 0.0f32, 0.0f32),
                HeadKind::Gaussian(of) => (2, of.size, of.low, of.high),
                HeadKind::Bernoulli(_) | HeadKind::Value(_) => {
                    let what = "a population with heads of bits on a card".into();
                    let reason = "no environment of a card has such inputs".into();
                    return Err(Error::Unavailable { what, reason });
                }
            };
            let bounds = u64::from(high.to_bits()) << 32 | u64::from(low.to_bits());
            let sizes = [number, self.logits.start + logits, labels, count];
            words.extend(sizes.map(|word| word as i64));
            words.push(bounds as i64);
        }
        Ok(words)
    }
}

impl Episodes {
    /// The measures as `population.cu` has them.
    pub fn words_for_a_card(&self) -> Vec<i64> {
        let word = |measure: &Measure| match measure {
            Measure::Final(at) => [0, *at as i64],
            Measure::Observation(at) => [1, *at as i64],
            Measure::Input(at) => [2, *at as i64],
            Measure::Length => [3, 0],
        };
        self.measures.iter().flat_map(word).collect()
    }
}
