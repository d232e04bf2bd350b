//! A matrix in panels.

use std::ops::Range;

use sconce_tensor::simd::{LANES, level};
use sconce_tensor::{Error, Result};

use super::input::Vectors;
use super::panel::Panel;
use super::written::{Written, has_vnni};
use super::{PANEL, Sums, int4, narrow, two_four, write};
use crate::arena::Packer;
use crate::format::{Encoding, Ratios};

/// `W: [outputs, inputs]` and `b: [outputs]` in the arena: the bias, the scales, then the panels.
pub(super) struct Whole {
    inputs: usize,
    outputs: usize,
    encoding: Encoding,
    bias: Range<usize>,
    /// One scale per output for 8-bit weights; empty otherwise.
    scales: Range<usize>,
    panels: Range<usize>,
    /// For weights in 2:4: when f32 is faster, and the panels of f32.
    also_f32: Option<(Ratios, Range<usize>)>,
}

impl Whole {
    pub(super) fn lay(packer: &mut Packer, written: &Written, bias: &[f32]) -> Self {
        let (inputs, outputs, encoding) = (written.inputs(), bias.len(), written.encoding());
        packer.check(&written.numbers());
        Whole {
            inputs,
            outputs,
            encoding,
            bias: packer.lay(bias),
            scales: packer.lay(written.scales()),
            panels: packer.lay(&written.words(outputs)),
            also_f32: written
                .also_f32()
                .map(|(ratios, written)| (ratios, packer.lay(&written.words(outputs)))),
        }
    }

    /// A matrix of an arena that was built before. Errors call it `name`.
    ///
    /// # Errors
    /// `Mismatch` for an encoding that does not have this number of inputs.
    pub(super) fn recorded(
        packer: &mut Packer,
        name: &str,
        (encoding, ratios): (Encoding, Option<Ratios>),
        [outputs, inputs]: [usize; 2],
    ) -> Result<Self> {
        if !encoding.fits(inputs) {
            return Err(Error::mismatch(name, "an encoding of its inputs", inputs));
        }
        Ok(Whole {
            inputs,
            outputs,
            encoding,
            bias: packer.place(outputs),
            scales: packer.place(encoding.scales(outputs)),
            panels: packer.place(encoding.words(outputs, inputs)),
            also_f32: ratios.map(|own| (own, packer.place(Encoding::F32.words(outputs, inputs)))),
        })
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The form of the weights that these vectors are multiplied with.
    pub(super) fn form(&self, x: &mut Vectors) -> (Encoding, Range<usize>) {
        if let Some((ratios, panels)) = &self.also_f32 {
            x.prepare(self.encoding);
            if x.groups().are_few(x.rows(), *ratios) {
                return (Encoding::F32, panels.clone());
            }
        }
        (self.encoding, self.panels.clone())
    }

    /// `y = x W^T + b`, or its relu. `y` begins with the first output of the first vector, and those of the next one follow
    /// after `stride` values.
    pub(super) fn multiply<const RELU: bool>(
        &self,
        arena: &[f32],
        x: &mut Vectors,
        sums: &mut [Sums],
        (y, stride): (&mut [f32], usize),
    ) {
        let (encoding, panels) = self.form(x);
        x.prepare(encoding);
        let (bias, scales) = (&arena[self.bias.clone()], &arena[self.scales.clone()]);
        let mut rest = &arena[panels];
        let most = encoding.panel();
        if let Some(entries) = x.sparse().filter(|_| most < PANEL) {
            let panels = narrow::Panels { encoding, inputs: self.inputs, weights: rest, bias };
            return panels.multiply::<RELU>(entries, &mut y[..self.outputs]);
        }
        let sums = &mut sums[..x.rows()];
        let (level, has_vnni) = (level(), has_vnni());
        for first in (0..self.outputs).step_by(most) {
            let outputs = first..self.outputs.min(first + most);
            let vectors = encoding.vectors(outputs.len());
            let (weights, next) = rest.split_at(encoding.rows(self.inputs) * vectors * LANES);
            rest = next;
            let bias = &bias[outputs.clone()];
            let panel = Panel { encoding, level, has_vnni, vectors, weights };
            match encoding {
                Encoding::F32 | Encoding::Bf16 => panel.sum(sums, x, bias),
                Encoding::Int8 => {
                    panel.sum_codes(sums, x.codes(), (&scales[outputs.clone()], bias))
                }
                Encoding::Int4(group) => {
                    let weights = weights.as_chunks::<LANES>().0;
                    let panel = int4::Panel { weights, vectors, group, level, has_vnni };
                    panel.sum(sums, x.blocks(), bias);
                }
                Encoding::TwoFour => {
                    let (weights, inputs) = (weights.as_chunks::<LANES>().0, self.inputs);
                    two_four::Panel { weights, vectors, inputs, level }.sum(sums, x.groups(), bias);
                }
            }
            for (y, sums) in y.chunks_mut(stride).zip(&*sums) {
                write::<RELU>(&mut y[outputs.clone()], sums.as_flattened());
            }
        }
    }
}
