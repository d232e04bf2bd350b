//! Choices from logits, one head after another.

use sconce_tensor::{Device, Tensor, tensor};

use super::{Decision, Heads, Layers, Trunk, card};
use crate::head::{Chance, known};
use crate::ops::arrange;
use crate::sampling::{Draw, forbid};
use crate::{Error, Result, memory, spec};

impl Heads {
    /// Chooses an action for each row.
    pub fn act(&self, trunk: &Trunk, previous: &[f32], draw: Draw) -> Result<Decision> {
        if self.are_independent() {
            return self.decide(
                tensor::to_vec(&self.forward(trunk, None, previous)?)?,
                previous,
                draw,
            );
        }
        self.spec.check_labels(previous, true)?;
        let vectors = &trunk.vectors;
        // The kernel takes no masks, so masked choices are made op by op.
        if draw.mask.is_none()
            && let Some(table) = self.table(vectors)?
        {
            return self.act_on_card(&table, vectors, previous, draw);
        }
        let rows = vectors.dim(0)?;
        let mut choices = self.given(rows, draw)?;
        let prior = self.prior_logits(rows, &self.prior_reads(rows, previous)?)?;
        let logits = self.unroll(vectors, |at, logits| {
            let part = self.spec.iter().nth(at).ok_or_else(|| Error::not_found("head"))?;
            let mut logits = logits.clone();
            if let Some(prior) = &prior {
                logits = (logits + prior.narrow(1, part.logits, part.head.kind.logits())?)?;
            }
            let mut own = tensor::to_vec(&logits)?;
            let size = self.spec.mask_size().max(1);
            let masks = draw.mask.iter().flat_map(|masks| masks.chunks_exact(size));
            for (own, mask) in own.chunks_exact_mut(part.head.kind.logits()).zip(masks) {
                forbid(own, part.mask(mask));
            }
            let rows = own.chunks_exact(part.head.kind.logits());
            self.choose(part, rows, previous, draw, &mut choices);
            Ok((self.part(&choices, at), logits))
        })?;
        let mut logits = tensor::to_vec(&trunk.beside(Tensor::cat(&logits, 1)?)?)?;
        self.forbid(&mut logits, draw);
        Ok(self.decision(logits, choices))
    }

    /// True if one pass can decide several games on the device. Autoregressive heads need a card for this.
    pub fn decide_together(&self, device: &Device) -> bool {
        self.are_independent() || (device.is_cuda() && card::Table::takes(&self.spec))
    }

    /// Chooses an action for each row from logits `[n, num_logits]` of independent heads.
    pub fn decide(&self, mut logits: Vec<f32>, previous: &[f32], draw: Draw) -> Result<Decision> {
        self.spec.check_labels(previous, true)?;
        let width = self.spec.num_logits();
        let mut choices = self.given(logits.len() / width, draw)?;
        self.forbid(&mut logits, draw);
        for part in self.spec.iter() {
            let own = part.logits..part.logits + part.head.kind.logits();
            let rows = logits.chunks_exact(width).map(|row| &row[own.clone()]);
            self.choose(part, rows, previous, draw, &mut choices);
        }
        Ok(self.decision(logits, choices))
    }

    /// Allocates the choices; filled with the given labels, if any. Checks labels and masks.
    pub(super) fn given(&self, rows: usize, draw: Draw) -> Result<Vec<f32>> {
        let choices = match draw.given {
            None => vec![0.0; rows * self.spec.num_labels()],
            Some(given) => {
                self.check_rows(rows, given)?;
                self.spec.check_labels(given, false)?;
                given.to_vec()
            }
        };
        if let Some(mask) = draw.mask {
            self.spec.check_mask(mask, rows, draw.given)?;
        }
        Ok(choices)
    }

    /// Applies the masks of a draw to logits `[n, num_logits]`.
    fn forbid(&self, logits: &mut [f32], draw: Draw) {
        let size = self.spec.mask_size().max(1);
        let masks = draw.mask.iter().flat_map(|masks| masks.chunks_exact(size));
        for (row, mask) in logits.chunks_exact_mut(self.spec.num_logits()).zip(masks) {
            for part in self.spec.iter() {
                forbid(&mut row[part.logits..][..part.head.kind.mask_size()], part.mask(mask));
            }
        }
    }

    /// Chooses the labels of one head from the logits of each row, unless labels are given.
    pub(super) fn choose<'a>(
        &self,
        part: spec::Part<'_>,
        logits: impl Iterator<Item = &'a [f32]>,
        previous: &[f32],
        draw: Draw,
        choices: &mut [f32],
    ) {
        if draw.given.is_some() {
            return;
        }
        let width = self.spec.num_labels();
        for (row, logits) in logits.enumerate() {
            let from = row * width + part.labels;
            let own = from..from + part.head.kind.labels();
            let held = previous.get(own.clone()).and_then(known);
            let (sampling, rng) = (draw.sampling, &draw.rngs[row]);
            let chance = Chance { sampling, rng, index: part.labels as u64, held };
            part.head.kind.choose(logits, &chance, &mut choices[own]);
        }
    }

    pub(super) fn decision(&self, logits: Vec<f32>, choices: Vec<f32>) -> Decision {
        let of_row = |row: &[f32]| -> Vec<f32> {
            let own = |p: &spec::Part| p.logits..p.logits + p.head.kind.logits();
            self.spec.iter().map(|p| p.head.kind.confidence(&row[own(&p)])).collect()
        };
        let rows = logits.chunks_exact(self.spec.num_logits());
        let confidence = rows.flat_map(of_row).collect();
        Decision { logits, choices, confidence }
    }

    /// Runs the residual stream. `choice(head, logits)` returns the choice of that head and the logits used for the
    /// choice. A value head runs before any choice is added to the stream.
    pub(super) fn unroll(
        &self,
        trunk: &Tensor,
        mut choice: impl FnMut(usize, &Tensor) -> Result<(Vec<f32>, Tensor)>,
    ) -> Result<Vec<Tensor>> {
        let Layers::Autoregressive { stream, decode, encode } = &self.layers else {
            return Err(Error::mismatch("heads", "autoregressive", "independent"));
        };
        let first = stream.forward(trunk)?;
        let mut stream = first.clone();
        let mut all = Vec::with_capacity(decode.len());
        for (i, (decode, encode)) in decode.iter().zip(encode).enumerate() {
            let head = &self.spec.parts[i];
            let read = if head.kind.labels() == 0 { &first } else { &stream };
            let (chosen, logits) = choice(i, &decode.forward(read)?)?;
            if let Some(encode) = encode {
                let features = features(head, &chosen, &stream)?;
                stream = arrange::add(&stream, &encode.forward(&features)?)?;
            }
            all.push(logits);
        }
        Ok(all)
    }

    /// Selects the labels of one head from rows of all labels.
    pub(super) fn part(&self, labels: &[f32], at: usize) -> Vec<f32> {
        let Some(part) = self.spec.iter().nth(at) else { return vec![] };
        let span = part.labels..part.labels + part.head.kind.labels();
        labels
            .chunks_exact(self.spec.num_labels().max(1))
            .flat_map(|row| &row[span.clone()])
            .copied()
            .collect()
    }

    pub(super) fn check_rows(&self, rows: usize, labels: &[f32]) -> Result<()> {
        let expected = rows * self.spec.num_labels();
        if labels.len() != expected {
            return Err(Error::mismatch("labels", expected, labels.len()));
        }
        Ok(())
    }
}

/// Encodes a head's labels as input of later heads, `[n, features]`, on the device of `x`.
fn features(head: &spec::Head, labels: &[f32], x: &Tensor) -> Result<Tensor> {
    let (kind, width) = (head.kind, head.kind.features());
    let labels = labels.chunks_exact(kind.labels().max(1));
    let rows = labels.len();
    let mut data = memory::zeros(rows * width);
    for (label, out) in labels.zip(data.chunks_exact_mut(width.max(1))) {
        label.iter().try_for_each(|label| kind.check(*label, || head.name.clone()))?;
        kind.encode(label, out);
    }
    Ok(tensor::beside(x, data, (rows, width))?)
}
