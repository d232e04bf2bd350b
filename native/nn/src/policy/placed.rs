//! Frames uploaded to the device of a policy.

use std::sync::Arc;

use sconce_tensor::{Tensor, tensor};

use super::{Frames, Policy};
use crate::backbone::{Context, State};
use crate::heads::{Read, Trunk};
use crate::ops::{self, Ids, arrange};
use crate::{Error, Result, memory};

/// Frames on the device of a policy's weights.
pub struct Placed {
    shape: (usize, usize),
    /// Continuous features `[b * t, continuous_width]`.
    continuous: Tensor,
    /// Row indices of each table.
    ids: Vec<Ids>,
    /// Inputs of each head's prior.
    prior: Vec<Read>,
}

type Taken<'a> = (&'a [f32], Vec<Arc<[u32]>>);

impl Policy {
    /// Uploads frames to the device of the weights.
    ///
    /// # Errors
    /// `Mismatch` for a wrong number of features or ids, `OutOfRange` for an id that a table does not have.
    pub fn place(&self, frames: &Frames) -> Result<Placed> {
        let rows = frames.batch * frames.time;
        Ok(Placed { prior: self.heads.prior_reads(rows, &frames.previous)?, ..self.input(frames)? })
    }

    /// Frames `[batch, 1]` of continuous features `[batch, continuous_width]` that are already on the device of the
    /// weights.
    ///
    /// # Errors
    /// `Mismatch` for another width, `Unavailable` for a policy that also reads ids or previous actions.
    pub fn placed(&self, continuous: &Tensor) -> Result<Placed> {
        if self.spec.heads.prior {
            return Err(more_than_numbers());
        }
        self.numbers(continuous, (continuous.dims2()?.0, 1))
    }

    /// Frames of continuous features `[b * t, continuous_width]` that are already on the device of the weights, without
    /// the inputs of priors.
    pub(super) fn numbers(&self, continuous: &Tensor, shape: (usize, usize)) -> Result<Placed> {
        tensor::check_shape(
            "continuous features",
            &[shape.0 * shape.1, self.continuous],
            continuous.dims(),
        )?;
        if !self.slots.is_empty() {
            return Err(more_than_numbers());
        }
        let continuous = tensor::moved(continuous, &self.place)?;
        Ok(Placed { shape, continuous, ids: vec![], prior: vec![] })
    }

    /// Uploads frames to the device of the weights, without the inputs of priors.
    pub(super) fn input(&self, frames: &Frames) -> Result<Placed> {
        let (continuous, ids) = self.read(frames)?;
        let shape = (frames.batch * frames.time, self.continuous);
        let tables = self.tables.iter().zip(ids);
        Ok(Placed {
            shape: (frames.batch, frames.time),
            ids: tables
                .map(|((name, table), ids)| Ids::of(table, ids, name))
                .collect::<Result<_>>()?,
            prior: vec![],
            continuous: tensor::beside(&self.place, memory::copied(continuous), shape)?,
        })
    }

    /// Checks the frames. Returns their continuous features, and the row indices of each table.
    fn read<'a>(&self, frames: &'a Frames) -> Result<Taken<'a>> {
        self.check_weights()?;
        let rows = frames.batch * frames.time;
        for (what, expected, got) in [
            ("continuous features", rows * self.continuous, frames.continuous.len()),
            ("ids", rows * self.slots.len(), frames.ids.len()),
        ] {
            if expected != got {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        let tables = self.tables.iter().map(|(name, table)| {
            let of_table: Vec<usize> =
                (0..self.slots.len()).filter(|&i| self.slots[i].table == *name).collect();
            let rows = frames.ids.chunks_exact(self.slots.len());
            let ids: Arc<[u32]> = rows.flat_map(|row| of_table.iter().map(|&i| row[i])).collect();
            Ids::check(table, &ids, name)?;
            Ok(ids)
        });
        Ok((&frames.continuous, tables.collect::<Result<_>>()?))
    }

    pub(super) fn embedded(&self, placed: &Placed) -> Result<Tensor> {
        let (b, t) = placed.shape;
        if let Some(eyes) = &self.eyes {
            let x = eyes.forward(&placed.continuous)?;
            return arrange::reshape(&x, [b, t, self.spec.embedding.width()]);
        }
        let mut parts = vec![placed.continuous.clone()];
        for ((_, table), ids) in self.tables.iter().zip(&placed.ids) {
            let rows = ops::gather_of(table, ids)?;
            parts.push(arrange::reshape(&rows, [b * t, rows.elem_count() / (b * t).max(1)])?);
        }
        let x = match parts.len() {
            1 => parts.remove(0),
            _ => arrange::join(&parts.iter().collect::<Vec<_>>())?,
        };
        arrange::reshape(&x, [b, t, self.spec.embedding.width()])
    }

    /// Logits `[n, num_logits]` of all frames, or of the last frames if the context [needs only
    /// those](Context::of_last), and the state after the last frame. Autoregressive heads are conditioned on `labels
    /// [n, num_labels]`, which are on the card.
    pub fn forward_placed(
        &self,
        placed: &Placed,
        labels: Option<&Tensor>,
        state: &State,
        context: &Context,
    ) -> Result<(Tensor, State)> {
        context.run(|| {
            let (trunk, next) = self.trunk_placed(placed, state, context)?;
            Ok((self.heads.of_placed(&trunk, &placed.prior, labels)?, next))
        })
    }

    /// [`forward`](Self::forward), or with `only_last` [`forward_last`](Self::forward_last), of frames of numbers that
    /// are already on the device of the weights. `frames` holds the sizes and the previous labels.
    ///
    /// # Shapes
    /// `numbers [b * t, continuous_width]`.
    ///
    /// # Errors
    /// `Unavailable` for a policy that also reads ids.
    pub fn forward_numbers(
        &self,
        (numbers, frames): (&Tensor, &Frames),
        labels: Option<&[f32]>,
        state: &State,
        context: &Context,
        only_last: bool,
    ) -> Result<(Tensor, State)> {
        self.admitted(frames, context, || {
            let placed = self.numbers(numbers, (frames.batch, frames.time))?;
            if only_last {
                let (last, state) = self.last_of(&placed, state, context)?;
                Ok((self.heads.forward(&last, labels, &self.last_previous(frames))?, state))
            } else {
                let (trunk, state) = self.passed_of(&placed, state, context)?;
                let trunk = self.seen(trunk, context)?;
                Ok((self.heads.forward(&trunk, labels, &frames.previous)?, state))
            }
        })
    }

    /// The input of the heads and the state after the last frame.
    pub(super) fn trunk_placed(
        &self,
        placed: &Placed,
        state: &State,
        context: &Context,
    ) -> Result<(Trunk, State)> {
        self.trunks.forward(&self.embedded(placed)?, state, context)
    }
}

fn more_than_numbers() -> Error {
    let what = "frames of numbers alone".into();
    let reason = "the policy also reads ids or previous actions".into();
    Error::Unavailable { what, reason }
}

pub(super) mod words {
    use std::slice::from_raw_parts;

    use sconce_tensor::Tensor;

    use super::Placed;
    use crate::Result;
    use crate::heads::Read;
    use crate::ops::Ids;
    use crate::policy::{Frames, Policy};

    impl Policy {
        /// Frames as words of 32 bits, in the order of [`Placed::tensors`]. The continuous features, nearly all of
        /// the words, are borrowed; the words after them are copied.
        pub fn words<'a>(&self, frames: &'a Frames) -> Result<(&'a [u32], Vec<u32>)> {
            let prior = self.heads.prior_keys(frames.batch * frames.time, &frames.previous)?;
            let (numbers, mut others) = self.input_words(frames)?;
            others.extend(prior.iter().flatten());
            Ok((numbers, others))
        }

        /// Frames as words of 32 bits, without the inputs of priors.
        pub fn input_words<'a>(&self, frames: &'a Frames) -> Result<(&'a [u32], Vec<u32>)> {
            let (continuous, ids) = self.read(frames)?;
            let ids = ids.iter().flat_map(|ids| ids.iter().copied());
            Ok((words_of(continuous), ids.collect()))
        }
    }

    /// The bits of numbers, as words of 32 bits.
    pub fn words_of(numbers: &[f32]) -> &[u32] {
        // SAFETY: every f32 of the slice is a valid u32 with the same size and alignment.
        unsafe { from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
    }

    impl Placed {
        /// Tensors that the words are written to, in order.
        pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
            let ids = self.ids.iter().filter_map(|ids| match ids {
                Ids::There(ids) => Some(ids),
                Ids::Here(_) => None,
            });
            let prior = self.prior.iter().filter_map(Read::tensor);
            std::iter::once(&self.continuous).chain(ids).chain(prior)
        }

        /// Number of words.
        pub fn len(&self) -> usize {
            self.tensors().map(Tensor::elem_count).sum()
        }

        /// True if there are no words.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }
}
