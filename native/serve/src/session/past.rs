//! The latest inputs of a player.

use sconce_nn::heads::NONE;
use sconce_nn::spec::Heads;
use sconce_tensor::{Error, Result};

use crate::frames::check_labels;

/// Labels of the latest inputs, `[inputs, num_labels]`, newest first, [`NONE`] where none is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Past {
    width: usize,
    labels: Vec<f32>,
}

impl Past {
    /// Storage for `inputs` inputs, none of them known.
    pub(super) fn new(inputs: usize, width: usize) -> Self {
        Past { width: width.max(1), labels: vec![NONE; inputs * width.max(1)] }
    }

    /// Replaces all labels with these, which must have the same count.
    pub(super) fn load(&mut self, labels: &[f32], heads: &Heads) -> Result<()> {
        if labels.len() != self.labels.len() {
            return Err(Error::mismatch("labels of inputs", self.labels.len(), labels.len()));
        }
        self.known(labels, heads).map(drop)?;
        self.labels.copy_from_slice(labels);
        Ok(())
    }

    /// Replaces all labels with those of another `Past` of the same size.
    pub(super) fn copy(&mut self, other: &Past) {
        self.labels.copy_from_slice(&other.labels);
    }

    /// Overwrites the inputs that are known in `labels`, which has the newest first.
    pub(super) fn give(&mut self, labels: &[f32], heads: &Heads) -> Result<()> {
        let (most, given) = (self.labels.len() / self.width, labels.len().div_ceil(self.width));
        if given > most {
            let most = most as f64;
            return Err(Error::out_of_range("queue (inputs)", given as f64, 0.0, most));
        }
        for (k, _) in self.known(labels, heads)? {
            self.set(k, &labels[k * self.width..][..self.width]);
        }
        Ok(())
    }

    /// The known inputs with their indices, after a check of their labels.
    fn known<'a>(
        &self,
        labels: &'a [f32],
        heads: &Heads,
    ) -> Result<impl Iterator<Item = (usize, &'a [f32])> + use<'a>> {
        let inputs = labels.chunks(self.width).enumerate();
        let known = inputs.filter(|(_, input)| input.iter().any(|label| *label != NONE));
        known.clone().try_for_each(|(_, input)| check_labels(heads, input))?;
        Ok(known)
    }

    /// All labels.
    pub(super) fn labels(&self) -> &[f32] {
        &self.labels
    }

    /// The labels of the newest `inputs` inputs.
    pub(super) fn newest(&self, inputs: usize) -> &[f32] {
        &self.labels[..(inputs * self.width).min(self.labels.len())]
    }

    /// The input at `k`, counted back from the newest, if it is known.
    pub(super) fn get(&self, k: usize) -> Option<&[f32]> {
        let input = self.labels.chunks_exact(self.width).nth(k)?;
        (input.first() != Some(&NONE)).then_some(input)
    }

    pub(super) fn set(&mut self, k: usize, input: &[f32]) {
        if let Some(own) = self.labels.chunks_exact_mut(self.width).nth(k) {
            own.copy_from_slice(input);
        }
    }

    /// Writes the input at `k` by `write`.
    pub(super) fn set_from(
        &mut self,
        k: usize,
        write: impl FnOnce(&mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let own = self.labels.chunks_exact_mut(self.width).nth(k);
        own.map_or(Ok(()), write)
    }

    /// Adds a newest input and drops the oldest.
    pub(super) fn push(&mut self, input: &[f32]) {
        self.labels.rotate_right(self.width);
        self.set(0, input);
    }
}
