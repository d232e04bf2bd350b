//! Runs autoregressive heads on an NVIDIA card.

use sconce_tensor::{DType, Tensor, tensor};

use super::{Decision, Heads, Layers, by_row, card};
use crate::ops::arrange;
use crate::sampling::Draw;
use crate::{Error, Result, spec};

impl Heads {
    /// Logits for known labels `[n, num_labels]` on the card (teacher forcing).
    pub(super) fn forced(&self, trunk: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let Layers::Autoregressive { stream, decode, encode } = &self.layers else {
            return Err(Error::mismatch("heads", "autoregressive", "independent"));
        };
        let all_labels = [trunk.dim(0)?, self.spec.num_labels()];
        let first = stream.forward(trunk)?;
        let (mut stream, mut logits) = (first.clone(), vec![]);
        for ((part, decode), encode) in self.spec.iter().zip(decode).zip(encode) {
            let chooses = part.head.kind.labels() > 0;
            logits.push(decode.forward(if chooses { &stream } else { &first })?);
            if let Some(encode) = encode {
                let chosen = part.head.kind.encode_there(labels, all_labels, part.labels)?;
                let chosen = chosen.to_dtype(stream.dtype())?;
                stream = arrange::add(&stream, &encode.forward(&chosen)?)?;
            }
        }
        arrange::join(&logits.iter().collect::<Vec<_>>())
    }

    /// The table of autoregressive heads on the card of `x`; none if the card cannot make their choices.
    pub(crate) fn table(&self, x: &Tensor) -> Result<Option<card::Table>> {
        let Layers::Autoregressive { decode, encode, .. } = &self.layers else { return Ok(None) };
        let f32_there = x.device().is_cuda() && x.dtype() == DType::F32;
        if !f32_there || !card::Table::takes(&self.spec) {
            return Ok(None);
        }
        let head = |(i, part): (usize, spec::Part<'_>)| {
            let encode = encode.get(i).and_then(Option::as_ref);
            let encode = encode.map(|layer| layer.plain()).transpose()?;
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

    /// [`act`](Self::act) for autoregressive heads on a card. The choices are copied to the host once, after the last
    /// head.
    pub(super) fn act_on_card(
        &self,
        table: &card::Table,
        trunk: &Tensor,
        previous: &[f32],
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
            mask: None,
        };
        let draws: Vec<Draw> = (0..rows).map(row).collect();
        let mut words = vec![];
        self.row_words(&draws, previous, &mut words)?;
        let rows = card::Rows::of(&words, rows, labels, trunk)?;
        Ok(self.read(&tensor::to_vec(&self.decided(trunk, table, &rows)?)?))
    }

    /// Appends the inputs of the decision of each row, as words.
    pub(crate) fn row_words(
        &self,
        draws: &[Draw<'_>],
        previous: &[f32],
        words: &mut Vec<u32>,
    ) -> Result<()> {
        let labels = self.spec.num_labels();
        let none = previous.is_empty() && self.prior.is_empty();
        if !none && previous.len() != draws.len() * labels {
            return Err(Error::mismatch("previous labels", draws.len() * labels, previous.len()));
        }
        self.spec.check_labels(previous, true)?;
        for given in draws.iter().filter_map(|draw| draw.given) {
            self.check_rows(1, given)?;
            self.spec.check_labels(given, false)?;
        }
        card::row_words(draws, previous, labels, words);
        Ok(())
    }

    /// Decides on the card. Returns logits, then labels as f32, `[n, num_logits + num_labels]`.
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

    /// Converts the output of [`decided`](Self::decided) to decisions.
    pub(crate) fn read(&self, decided: &[f32]) -> Decision {
        let (width, labels) = (self.spec.num_logits(), self.spec.num_labels());
        let (mut logits, mut choices) = (vec![], vec![]);
        for row in decided.chunks_exact(width + labels) {
            logits.extend(&row[..width]);
            choices.extend(&row[width..]);
        }
        self.decision(logits, choices)
    }
}
