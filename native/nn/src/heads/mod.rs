//! From the trunk vector to logits, and from logits to an action.

pub(crate) mod card;

use std::sync::Arc;

use sconce_tensor::DType;
use sconce_tensor::{Device, Tensor};

use crate::layer::Linear;
use crate::memory;
use crate::ops::arrange;
use crate::ops::gather::one_hot;
use crate::ops::{self, Activation, Branch, Dense, Ids};
use crate::sampling::{Draw, confidence};
use crate::spec::{self, HeadKind, HeadsKind};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};
use sconce_tensor::tensor;

pub use crate::spec::NONE;

/// One action for each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// `[n, num_logits]`
    pub logits: Vec<f32>,
    /// `[n, num_labels]`: bits and classes.
    pub choices: Vec<u16>,
    /// `[n, heads]`, each 0..1.
    pub confidence: Vec<f32>,
}

pub struct Heads {
    spec: spec::Heads,
    layers: Layers,
    prior: Vec<Weight>,
}

enum Layers {
    /// `logits = W x` of all heads; weight `logits`.
    Linear(Linear),
    /// `logits = W_2 relu(W_1 x)` per head; weights `NAME_hidden`, `NAME_logits`.
    Independent(Vec<Branch>),
    /// A residual stream: each head reads its logits from it and adds an encoding of its choice
    /// (Vinyals et al. 2019). Weights `stream_in`, `decode.NAME`, `encode.NAME` (all but the last).
    Autoregressive { stream: Linear, decode: Vec<Linear>, encode: Vec<Linear> },
}

impl Heads {
    pub fn new(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Self> {
        let layers = match spec.kind {
            HeadsKind::Independent if spec.are_linear() => {
                let logits = spec.num_logits();
                Layers::Linear(Linear::new(input, logits, Activation::None, &b.under("logits"))?)
            }
            HeadsKind::Independent => Layers::Independent(independent(spec, input, b)?),
            HeadsKind::Autoregressive => autoregressive(spec, input, b)?,
        };
        let prior = match spec.prior {
            true => prior(spec, &b.under("prior"))?,
            false => vec![],
        };
        Ok(Heads { spec: spec.clone(), layers, prior })
    }

    /// `trunk [.., w]`, n vectors -> `[n, num_logits]`. `labels [n, num_labels]` feed autoregressive heads
    /// (teacher forcing), `previous [n, num_labels]` the prior; [`NONE`] stands for no previous.
    pub fn forward(
        &self,
        trunk: &Tensor,
        labels: Option<&[u16]>,
        previous: &[u16],
    ) -> Result<Tensor> {
        self.check_classes(previous, true)?;
        let rows = tensor::rows(trunk.dims()).0;
        let mut logits = match &self.layers {
            Layers::Linear(layer) => layer.forward(&by_row(trunk, rows)?)?,
            Layers::Independent(layers) => ops::branches(trunk, layers)?,
            Layers::Autoregressive { .. } => {
                let labels =
                    labels.ok_or_else(|| Error::not_found("labels for autoregressive heads"))?;
                let trunk = by_row(trunk, rows)?;
                self.check_rows(rows, labels)?;
                let given = |at, _: &Tensor| Ok(self.part(labels, at));
                arrange::join(&self.unroll(&trunk, given)?.iter().collect::<Vec<_>>())?
            }
        };
        if let Some(prior) = self.prior_logits(rows, &self.prior_rows(rows, previous)?)? {
            logits = arrange::add(&logits, &prior)?;
        }
        Ok(logits)
    }

    /// Whether no head reads another's choice.
    pub fn are_independent(&self) -> bool {
        !matches!(self.layers, Layers::Autoregressive { .. })
    }

    /// [`forward`](Self::forward) from what was uploaded before; `labels` are u16, as bytes, on a card.
    pub(crate) fn of_placed(
        &self,
        trunk: &Tensor,
        prior: &[Ids],
        labels: Option<&Tensor>,
    ) -> Result<Tensor> {
        let rows = tensor::rows(trunk.dims()).0;
        let logits = match &self.layers {
            Layers::Linear(layer) => layer.forward(&by_row(trunk, rows)?)?,
            Layers::Independent(layers) => ops::branches(trunk, layers)?,
            Layers::Autoregressive { .. } => {
                let missing = || Error::not_found("labels for autoregressive heads");
                self.forced(&by_row(trunk, rows)?, labels.ok_or_else(missing)?)?
            }
        };
        match self.prior_logits(rows, prior)? {
            Some(prior) => arrange::add(&logits, &prior),
            None => Ok(logits),
        }
    }

    /// Logits where all choices are known, and on the card: `labels [n, num_labels]`.
    fn forced(&self, trunk: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let Layers::Autoregressive { stream, decode, encode } = &self.layers else {
            return Err(Error::mismatch("heads", "autoregressive", "independent"));
        };
        let all_labels = [trunk.dim(0)?, self.spec.num_labels()];
        let (mut stream, mut logits) = (stream.forward(trunk)?, vec![]);
        for (i, (part, decode)) in self.spec.iter().zip(decode).enumerate() {
            logits.push(decode.forward(&stream)?);
            if let Some(encode) = encode.get(i) {
                let kind = part.head.kind;
                let classes = matches!(kind, HeadKind::Categorical(_));
                let chosen = one_hot(labels, all_labels, part.labels, kind.logits(), classes)?;
                let chosen = chosen.to_dtype(stream.dtype())?;
                stream = arrange::add(&stream, &encode.forward(&chosen)?)?;
            }
        }
        arrange::join(&logits.iter().collect::<Vec<_>>())
    }

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

    /// Heads that read each other's choices, as they are found on the card of `x`, where choices are made there.
    pub(crate) fn table(&self, x: &Tensor) -> Result<Option<card::Table>> {
        let Layers::Autoregressive { decode, encode, .. } = &self.layers else { return Ok(None) };
        let f32_there = x.device().is_cuda() && x.dtype() == DType::F32;
        if !f32_there || !card::Table::takes(&self.spec) {
            return Ok(None);
        }
        let head = |(i, part): (usize, spec::Part<'_>)| {
            let encode = encode.get(i).map(|layer| layer.plain()).transpose()?;
            let decode = decode.get(i).ok_or_else(|| Error::not_found("head"))?.plain()?;
            let bias = decode.bias.ok_or_else(|| Error::not_found("bias of a head"))?;
            let prior = self.prior.get(i).cloned();
            let kind = part.head.kind;
            let first = [part.logits, part.labels];
            Ok(card::Head {
                kind,
                first,
                decode: decode.weight,
                bias,
                encode: encode.map(|encode| encode.weight),
                prior,
            })
        };
        let heads: Result<Vec<_>> = self.spec.iter().enumerate().map(head).collect();
        Ok(Some(card::Table::new(&self.spec, &heads?, x)?))
    }

    /// [`act`](Self::act) of heads that read each other's choices, which are read back when all are made.
    fn act_on_card(
        &self,
        table: &card::Table,
        trunk: &Tensor,
        previous: &[u16],
        draw: Draw,
    ) -> Result<Decision> {
        let (rows, labels) = (trunk.dim(0)?, self.spec.num_labels());
        if draw.rngs.len() != rows {
            return Err(Error::mismatch("generators", rows, draw.rngs.len()));
        }
        self.given(rows, draw)?;
        let row = |row: usize| Draw {
            sampling: draw.sampling,
            rngs: &draw.rngs[row..row + 1],
            given: draw.given.map(|given| &given[row * labels..][..labels]),
        };
        let draws: Vec<Draw> = (0..rows).map(row).collect();
        let mut words = vec![];
        self.row_words(&draws, previous, &mut words)?;
        let rows = card::Rows::of(&words, rows, labels, trunk)?;
        Ok(self.read(&tensor::to_vec(&self.decided(trunk, table, &rows)?)?))
    }

    /// What rows are decided by, as words.
    pub(crate) fn row_words(
        &self,
        draws: &[Draw<'_>],
        previous: &[u16],
        words: &mut Vec<u32>,
    ) -> Result<()> {
        let labels = self.spec.num_labels();
        let none = previous.is_empty() && self.prior.is_empty();
        if !none && previous.len() != draws.len() * labels {
            return Err(Error::mismatch("previous labels", draws.len() * labels, previous.len()));
        }
        self.check_classes(previous, true)?;
        for given in draws.iter().filter_map(|draw| draw.given) {
            self.check_rows(1, given)?;
            self.check_classes(given, false)?;
        }
        card::row_words(draws, previous, labels, words);
        Ok(())
    }

    /// Logits and labels as numbers, `[n, num_logits + num_labels]`.
    pub(crate) fn decided(
        &self,
        trunk: &Tensor,
        table: &card::Table,
        rows: &card::Rows,
    ) -> Result<Tensor> {
        let Layers::Autoregressive { stream, .. } = &self.layers else {
            return Err(Error::mismatch("heads", "autoregressive", "independent"));
        };
        let trunk = by_row(trunk, tensor::rows(trunk.dims()).0)?;
        Ok(card::decide(table, &stream.forward(&trunk)?, rows)?)
    }

    /// What was [decided](Self::decided).
    pub(crate) fn read(&self, decided: &[f32]) -> Decision {
        let (width, labels) = (self.spec.num_logits(), self.spec.num_labels());
        let (mut logits, mut choices) = (vec![], vec![]);
        for row in decided.chunks_exact(width + labels) {
            logits.extend(&row[..width]);
            choices.extend(row[width..].iter().map(|label| *label as u16));
        }
        self.decision(logits, choices)
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
    fn given(&self, rows: usize, draw: Draw) -> Result<Vec<u16>> {
        let Some(given) = draw.given else { return Ok(vec![0; rows * self.spec.num_labels()]) };
        self.check_rows(rows, given)?;
        self.check_classes(given, false)?;
        Ok(given.to_vec())
    }

    /// One head's choices by its logits of each row, unless they are given.
    fn choose<'a>(
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

    fn decision(&self, logits: Vec<f32>, choices: Vec<u16>) -> Decision {
        let of_row = |row: &[f32]| -> Vec<f32> {
            let own = |p: &spec::Part| p.logits..p.logits + p.head.kind.logits();
            self.spec.iter().map(|p| confidence(p.head.kind, &row[own(&p)])).collect()
        };
        let rows = logits.chunks_exact(self.spec.num_logits());
        let confidence = rows.flat_map(of_row).collect();
        Decision { logits, choices, confidence }
    }

    /// Walks the stream; `choice(head, its logits)` gives what that head chose.
    fn unroll(
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
    fn part(&self, labels: &[u16], at: usize) -> Vec<u16> {
        let Some(part) = self.spec.iter().nth(at) else { return vec![] };
        let span = part.labels..part.labels + part.head.kind.labels();
        labels
            .chunks_exact(self.spec.num_labels())
            .flat_map(|row| &row[span.clone()])
            .copied()
            .collect()
    }

    fn check_rows(&self, rows: usize, labels: &[u16]) -> Result<()> {
        let expected = rows * self.spec.num_labels();
        if labels.len() != expected {
            return Err(Error::mismatch("labels", expected, labels.len()));
        }
        Ok(())
    }

    /// Rows of labels hold classes of their heads; previous ones may be [`NONE`] as well.
    fn check_classes(&self, labels: &[u16], previous: bool) -> Result<()> {
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

    /// The rows of the prior tables that belong to the previous choices, by head.
    pub(crate) fn prior_rows(&self, rows: usize, previous: &[u16]) -> Result<Vec<Ids>> {
        let ids = self.prior_ids(rows, previous)?.into_iter();
        let heads = self.spec.iter().zip(&self.prior).zip(ids);
        let of_head = |((part, table), ids): ((spec::Part<'_>, &Weight), Arc<[u32]>)| {
            Ids::of(&flat_prior(part.head.kind, table)?, ids, &part.head.name)
        };
        heads.map(of_head).collect()
    }

    /// The same as numbers.
    pub(crate) fn prior_ids(&self, rows: usize, previous: &[u16]) -> Result<Vec<Arc<[u32]>>> {
        let width = self.spec.num_labels();
        if !self.prior.is_empty() && previous.len() != rows * width {
            return Err(Error::mismatch("previous labels", rows * width, previous.len()));
        }
        self.check_classes(previous, true)?;
        let of_head = |(part, _): (spec::Part<'_>, &Weight)| {
            let previous = previous.chunks_exact(width).map(|row| &row[part.labels..]);
            match part.head.kind {
                HeadKind::Categorical(n) => previous.map(|p| row(p[0], n)).collect(),
                // Each bit has a row for off, on and none.
                HeadKind::Bernoulli(n) => previous
                    .flat_map(|p| (0..n).map(move |i| row(p[i], 2) * n as u32 + i as u32))
                    .collect(),
            }
        };
        Ok(self.spec.iter().zip(&self.prior).map(of_head).collect())
    }

    /// These rows, `[n, num_logits]`.
    fn prior_logits(&self, rows: usize, ids: &[Ids]) -> Result<Option<Tensor>> {
        if self.prior.is_empty() {
            return Ok(None);
        }
        let heads = self.spec.iter().zip(&self.prior).zip(ids);
        let parts = heads.map(|((part, table), ids)| {
            let logits = ops::gather_of(&flat_prior(part.head.kind, table)?, ids)?;
            arrange::reshape(&logits, [rows, part.head.kind.logits()])
        });
        let parts = parts.collect::<Result<Vec<Tensor>>>()?;
        Ok(Some(arrange::join(&parts.iter().collect::<Vec<_>>())?))
    }
}

/// A head's prior table as rows: that of n bits, `[3, n]`, as `[3 n, 1]`.
fn flat_prior(kind: HeadKind, table: &Weight) -> Result<Tensor> {
    match kind {
        HeadKind::Categorical(_) => Ok(Tensor::clone(table)),
        HeadKind::Bernoulli(n) => Ok(table.reshape((3 * n, 1))?),
    }
}

/// The row of a prior table: the previous value, or the last row where there was none.
fn row(previous: u16, classes: usize) -> u32 {
    u32::from(previous).min(classes as u32)
}

fn independent(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Vec<Branch>> {
    let dense = |input, output, b: Builder| -> Result<Dense> {
        let init = Init::fan_in(input);
        Ok(Dense {
            bias: b.get("bias", &[output], init)?,
            weight: b.get("weight", &[output, input], init)?,
        })
    };
    let head = |h: &spec::Head| -> Result<Branch> {
        let hidden = dense(input, h.hidden_size, b.under(format!("{}_hidden", h.name)))?;
        let b = b.under(format!("{}_logits", h.name));
        Ok(Branch { hidden, out: dense(h.hidden_size, h.kind.logits(), b)? })
    };
    spec.parts.iter().map(head).collect()
}

fn autoregressive(spec: &spec::Heads, input: usize, b: &Builder) -> Result<Layers> {
    let stream = Linear::new(input, spec.stream_size, Activation::None, &b.under("stream_in"))?;
    let (mut decode, mut encode) = (vec![], vec![]);
    for (i, head) in spec.parts.iter().enumerate() {
        let n = head.kind.logits();
        decode.push(Linear::new(
            spec.stream_size,
            n,
            Activation::None,
            &b.under("decode").under(&head.name),
        )?);
        if i + 1 < spec.parts.len() {
            encode.push(Linear::zero(n, spec.stream_size, &b.under("encode").under(&head.name))?);
        }
    }
    Ok(Layers::Autoregressive { stream, decode, encode })
}

/// A table per head, zero until the trainer fits it: `[n + 1, n]`, for bits `[3, n]`.
fn prior(spec: &spec::Heads, b: &Builder) -> Result<Vec<Weight>> {
    let table = |h: &spec::Head| {
        b.get(&h.name, &[h.kind.classes() + 1, h.kind.logits()], Init::Constant(0.0))
    };
    spec.parts.iter().map(table).collect()
}

fn no_class(field: &str, label: u16, classes: usize) -> Error {
    Error::out_of_range(field, label.into(), 0.0, classes as f64 - 1.0)
}

/// Bits as numbers, classes one-hot: `[n, logits]`, on the device of `x`.
fn flat(head: &spec::Head, choice: &[u16], x: &Tensor) -> Result<Tensor> {
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

/// `[rows, width]` of a trunk of so many rows.
fn by_row(trunk: &Tensor, rows: usize) -> Result<Tensor> {
    arrange::reshape(trunk, [rows, trunk.elem_count() / rows.max(1)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::sampling::Sampling;
    use crate::weights::Source;

    /// A controller: eight buttons, four axes, a shoulder.
    const NEUTRAL: [u16; 13] = [0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 0];

    fn changed(at: usize, label: u16) -> [u16; 13] {
        let mut labels = NEUTRAL;
        labels[at] = label;
        labels
    }

    #[test]
    fn a_label_that_is_no_class_is_named_by_its_head_and_none_may_stand_before() -> Result<()> {
        let (sampling, rngs) = (Sampling::default(), [Rng::new(1, "act", 0)]);
        let said = |e: Result<()>| e.err().map(|e| e.to_string());
        let (button, stick) = (changed(3, 2), changed(9, 17));
        for (kind, prior) in [(HeadsKind::Independent, true), (HeadsKind::Autoregressive, false)] {
            let spec = spec::Heads { prior, ..spec::Heads::controller(kind) };
            let heads = Heads::new(&spec, 4, &Builder::new(Source::Seed(1), false))?;
            let trunk = tensor::tensor(vec![0.5; 4], (1, 4))?;
            let forward = |previous: &[u16]| heads.forward(&trunk, Some(&NEUTRAL), previous);
            let act = |previous: &[u16], given: Option<[u16; 13]>| {
                let given = given.as_ref().map(|labels| labels.as_slice());
                heads.act(&trunk, previous, Draw { sampling: &sampling, rngs: &rngs, given })
            };
            for previous in [NEUTRAL, [NONE; 13], changed(12, NONE)] {
                forward(&previous)?;
                act(&previous, None)?;
            }
            for (wrong, name) in
                [(button, "buttons: 2 is outside 0..1"), (stick, "main_y: 17 is outside 0..16")]
            {
                let previous = Some(format!("previous {name}"));
                assert_eq!(said(forward(&wrong).map(drop)), previous);
                assert_eq!(said(act(&wrong, None).map(drop)), previous);
                let given = said(act(&NEUTRAL, Some(wrong)).map(drop));
                assert_eq!(given.as_deref(), Some(name));
                // Independent heads do not look at labels.
                if kind == HeadsKind::Autoregressive {
                    let forced = heads.forward(&trunk, Some(&wrong), &NEUTRAL);
                    assert_eq!(said(forced.map(drop)).as_deref(), Some(name));
                }
            }
        }
        Ok(())
    }
}
