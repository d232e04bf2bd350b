//! Choices by logits, head after head.

use sconce_tensor::{Device, Tensor, tensor};

use super::{Decision, Heads, Layers, NONE, card};
use crate::ops::arrange;
use crate::sampling::{Draw, confidence};
use crate::spec::HeadKind;
use crate::{Error, Result, memory, spec};

impl Heads {
    /// Chooses for each row.
    pub fn act(&self, trunk: &Tensor, previous: &[u16], draw: Draw) -> Result<Decision> {
        if self.are_independent() {
            return self.decide(
                tensor::to_vec(&self.forward(trunk, None, previous)?)?,
                previous,
                draw,
            );
        }
        self.check_classes(previous, true)?;
        if let Some(table) = self.table(trunk)? {
            return self.act_on_card(&table, trunk, previous, draw);
        }
        let rows = trunk.dim(0)?;
        let mut choices = self.given(rows, draw)?;
        let prior = self.prior_logits(rows, &self.prior_rows(rows, previous)?)?;
        let mut done = Vec::new();
        self.unroll(trunk, |at, logits| {
            let part = self.spec.iter().nth(at).ok_or_else(|| Error::not_found("head"))?;
            let mut logits = logits.clone();
            if let Some(prior) = &prior {
                logits = (logits + prior.narrow(1, part.logits, part.head.kind.logits())?)?;
            }
            let own = tensor::to_vec(&logits)?;
            self.choose(
                part,
                own.chunks_exact(part.head.kind.logits()),
                previous,
                draw,
                &mut choices,
            );
            done.push(logits);
            Ok(self.part(&choices, at))
        })?;
        Ok(self.decision(tensor::to_vec(&Tensor::cat(&done, 1)?)?, choices))
    }

    /// Whether games are decided together on a device: on a card also where heads read each other's choices.
    pub fn decide_together(&self, device: &Device) -> bool {
        if device.is_cuda() {
            return self.are_independent() || card::Table::takes(&self.spec);
        }
        let _ = device;
        self.are_independent()
    }

    /// Chooses for each row by logits `[n, num_logits]`, of heads that do not read each other's choices.
    pub fn decide(&self, logits: Vec<f32>, previous: &[u16], draw: Draw) -> Result<Decision> {
        self.check_classes(previous, true)?;
        let width = self.spec.num_logits();
        let mut choices = self.given(logits.len() / width, draw)?;
        for part in self.spec.iter() {
            let own = part.logits..part.logits + part.head.kind.logits();
            let rows = logits.chunks_exact(width).map(|row| &row[own.clone()]);
            self.choose(part, rows, previous, draw, &mut choices);
        }
        Ok(self.decision(logits, choices))
    }

    /// Labels to write choices to: those that are given, if any are.
    pub(super) fn given(&self, rows: usize, draw: Draw) -> Result<Vec<u16>> {
        let Some(given) = draw.given else { return Ok(vec![0; rows * self.spec.num_labels()]) };
        self.check_rows(rows, given)?;
        self.check_classes(given, false)?;
        Ok(given.to_vec())
    }

    /// One head's choices by its logits of each row, unless they are given.
    pub(super) fn choose<'a>(
        &self,
        part: spec::Part<'_>,
        logits: impl Iterator<Item = &'a [f32]>,
        previous: &[u16],
        draw: Draw,
        choices: &mut [u16],
    ) {
        if draw.given.is_some() {
            return;
        }
        let width = self.spec.num_labels();
        for (row, logits) in logits.enumerate() {
            let from = row * width + part.labels;
            let own = from..from + part.head.kind.labels();
            let held = previous.get(own.clone()).filter(|held| held.first() != Some(&NONE));
            let (index, rng) = (part.labels as u64, &draw.rngs[row]);
            let out = &mut choices[own];
            draw.sampling.choose(part.head.kind, logits, rng, index, held, out);
        }
    }

    pub(super) fn decision(&self, logits: Vec<f32>, choices: Vec<u16>) -> Decision {
        let of_row = |row: &[f32]| -> Vec<f32> {
            let own = |p: &spec::Part| p.logits..p.logits + p.head.kind.logits();
            self.spec.iter().map(|p| confidence(p.head.kind, &row[own(&p)])).collect()
        };
        let rows = logits.chunks_exact(self.spec.num_logits());
        let confidence = rows.flat_map(of_row).collect();
        Decision { logits, choices, confidence }
    }

    /// Walks the stream; `choice(head, its logits)` gives what that head chose.
    pub(super) fn unroll(
        &self,
        trunk: &Tensor,
        mut choice: impl FnMut(usize, &Tensor) -> Result<Vec<u16>>,
    ) -> Result<Vec<Tensor>> {
        let Layers::Autoregressive { stream, decode, encode } = &self.layers else {
            return Err(Error::mismatch("heads", "autoregressive", "independent"));
        };
        let mut stream = stream.forward(trunk)?;
        let mut all = Vec::with_capacity(decode.len());
        for (i, decode) in decode.iter().enumerate() {
            let logits = decode.forward(&stream)?;
            let chosen = choice(i, &logits)?;
            if let Some(encode) = encode.get(i) {
                let flat = flat(&self.spec.parts[i], &chosen, &stream)?;
                stream = arrange::add(&stream, &encode.forward(&flat)?)?;
            }
            all.push(logits);
        }
        Ok(all)
    }

    /// The columns of one head, from rows of all labels.
    pub(super) fn part(&self, labels: &[u16], at: usize) -> Vec<u16> {
        let Some(part) = self.spec.iter().nth(at) else { return vec![] };
        let span = part.labels..part.labels + part.head.kind.labels();
        labels
            .chunks_exact(self.spec.num_labels())
            .flat_map(|row| &row[span.clone()])
            .copied()
            .collect()
    }

    pub(super) fn check_rows(&self, rows: usize, labels: &[u16]) -> Result<()> {
        let expected = rows * self.spec.num_labels();
        if labels.len() != expected {
            return Err(Error::mismatch("labels", expected, labels.len()));
        }
        Ok(())
    }

    /// Rows of labels hold classes of their heads; previous ones may be [`NONE`] as well.
    pub(super) fn check_classes(&self, labels: &[u16], previous: bool) -> Result<()> {
        let wrong =
            |label: u16, classes| usize::from(label) >= classes && !(previous && label == NONE);
        for part in self.spec.iter() {
            let (numbers, classes) = (part.head.kind.labels(), part.head.kind.classes());
            let rows = labels.chunks(self.spec.num_labels());
            let mut own = rows.flat_map(|row| row.iter().skip(part.labels).take(numbers));
            if let Some(&label) = own.find(|label| wrong(**label, classes)) {
                let before = if previous { "previous " } else { "" };
                return Err(no_class(&format!("{before}{}", part.head.name), label, classes));
            }
        }
        Ok(())
    }
}

pub(super) fn no_class(field: &str, label: u16, classes: usize) -> Error {
    Error::out_of_range(field, label.into(), 0.0, classes as f64 - 1.0)
}

/// Bits as numbers, classes one-hot: `[n, logits]`, on the device of `x`.
pub(super) fn flat(head: &spec::Head, choice: &[u16], x: &Tensor) -> Result<Tensor> {
    let (width, classes) = (head.kind.logits(), head.kind.classes());
    if let Some(&label) = choice.iter().find(|label| usize::from(**label) >= classes) {
        return Err(no_class(&head.name, label, classes));
    }
    let data = match head.kind {
        HeadKind::Bernoulli(_) => choice.iter().map(|&b| f32::from(b)).collect(),
        HeadKind::Categorical(n) => {
            let mut data = memory::zeros(choice.len() * n);
            for (row, &class) in data.chunks_exact_mut(n).zip(choice) {
                row[usize::from(class)] = 1.0;
            }
            data
        }
    };
    Ok(tensor::beside(x, data, (choice.len() / head.kind.labels(), width))?)
}
