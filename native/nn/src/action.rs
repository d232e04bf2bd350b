//! The named parts of an action, and the dependence between them.

use sconce_game::{InputKind, InputPart};
use serde::{Deserialize, Serialize};

use crate::head::{Gaussian, HeadKind, NONE};
use crate::{Error, Result};

/// The heads of a policy: the named parts of an action, and the dependence between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    /// Independent or autoregressive.
    pub kind: HeadsKind,
    /// Heads in the order in which they choose.
    pub parts: Vec<Head>,
    /// Width of the residual stream of autoregressive heads.
    pub stream_size: usize,
    /// Adds to the logits a learned row, selected by the previous choice. The row starts as log P(a_t | a_{t-1}).
    pub prior: bool,
}

/// Dependence of heads on each other's choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadsKind {
    /// The only input of a head is the trunk vector.
    Independent,
    /// The inputs of a head are the trunk vector and the choices of the heads before it.
    Autoregressive,
}

/// One named part of an action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Name in `[a-z0-9_]`.
    pub name: String,
    /// Distribution of the part.
    pub kind: HeadKind,
    /// Width of the hidden layer of an independent head. If it is 0 for all heads, they are linear.
    pub hidden_size: usize,
}

/// A head with the offsets of its logits and labels in one frame.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The head.
    pub head: &'a Head,
    /// Offset of the head's first logit.
    pub logits: usize,
    /// Offset of the head's first label.
    pub labels: usize,
    /// Offset of the head's first entry in an action mask.
    pub mask: usize,
}

impl Part<'_> {
    /// The head's entries of an action mask of one frame.
    pub fn mask<'m>(&self, mask: &'m [u8]) -> &'m [u8] {
        &mask[self.mask..][..self.head.kind.mask_size()]
    }

    fn check_mask(&self, mask: &[u8], given: Option<&[f32]>) -> Result<()> {
        let (kind, mask) = (self.head.kind, self.mask(mask));
        let is_class = kind.bits() == 0;
        if is_class && !mask.is_empty() && !mask.iter().any(|allowed| *allowed != 0) {
            let what = format!("mask of {}", self.head.name);
            return Err(Error::mismatch(what, "a class that is allowed", "none"));
        }
        let Some(given) = given.filter(|_| !mask.is_empty()) else { return Ok(()) };
        let own = given[self.labels..][..kind.labels()].iter();
        let forbidden = |(i, label): (usize, &f32)| match is_class {
            true => mask.get(*label as usize) == Some(&0),
            false => *label != 0.0 && mask.get(i) == Some(&0),
        };
        match own.enumerate().any(forbidden) {
            true => Err(Error::mismatch(
                self.head.name.as_str(),
                "an action that the mask allows",
                "another",
            )),
            false => Ok(()),
        }
    }
}

impl Heads {
    /// Heads of a Melee controller: eight buttons, four stick axes of 17 positions, a shoulder of 5 steps.
    pub fn controller(kind: HeadsKind) -> Self {
        let head = |name: &str, kind, hidden_size| Head { name: name.into(), kind, hidden_size };
        let mut parts = vec![head("buttons", HeadKind::Bernoulli(8), 64)];
        for axis in ["main_x", "main_y", "c_x", "c_y"] {
            parts.push(head(axis, HeadKind::Categorical(17), 64));
        }
        parts.push(head("shoulder", HeadKind::Categorical(5), 32));
        Heads { kind, parts, stream_size: 128, prior: false }
    }

    /// A head for each part of an input, with a hidden layer of 64.
    pub fn of_parts(parts: &[InputPart], kind: HeadsKind) -> Self {
        let head = |part: &InputPart| Head {
            name: part.name.to_string(),
            kind: match part.kind {
                InputKind::Flags(_) | InputKind::Bits(_) => {
                    HeadKind::Bernoulli(part.kind.numbers())
                }
                InputKind::Axis { classes, .. } => HeadKind::Categorical(classes),
                InputKind::Choice(n) => HeadKind::Categorical(n),
                InputKind::Continuous { size, min, max } => {
                    HeadKind::Gaussian(Gaussian { size, low: min, high: max })
                }
            },
            hidden_size: 64,
        };
        Heads { kind, parts: parts.iter().map(head).collect(), stream_size: 128, prior: false }
    }

    /// Independent heads with these names and kinds, with a hidden layer of 64.
    pub fn of_kinds(heads: &[(String, HeadKind)]) -> Self {
        let head = |(name, kind): &(String, HeadKind)| Head {
            name: name.clone(),
            kind: *kind,
            hidden_size: 64,
        };
        let parts = heads.iter().map(head).collect();
        Heads { kind: HeadsKind::Independent, parts, stream_size: 128, prior: false }
    }

    /// True if the heads are independent and have no hidden layer.
    pub fn are_linear(&self) -> bool {
        self.parts.iter().all(|head| head.hidden_size == 0)
    }

    /// Heads that choose a part of an action: all except the value head.
    pub fn choosing(&self) -> impl Iterator<Item = &Head> {
        self.parts.iter().filter(|head| head.kind.labels() > 0)
    }

    /// True if all labels are bits or classes, which files and Elixir store in 16 bits. Other labels are f32.
    pub fn are_words(&self) -> bool {
        self.choosing().all(|head| head.kind.classes() > 0)
    }

    /// Heads with the offsets of their logits and labels in one frame.
    pub fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        self.parts.iter().scan((0, 0, 0), |at, head| {
            let (part, kind) = (Part { head, logits: at.0, labels: at.1, mask: at.2 }, head.kind);
            *at = (at.0 + kind.logits(), at.1 + kind.labels(), at.2 + kind.mask_size());
            Some(part)
        })
    }

    /// Number of logits of one frame, summed over all heads.
    pub fn num_logits(&self) -> usize {
        self.parts.iter().map(|h| h.kind.logits()).sum()
    }

    /// The smallest valid value of each label of one frame.
    pub fn least_labels(&self) -> Vec<f32> {
        let of = |head: &Head| std::iter::repeat_n(head.kind.least(), head.kind.labels());
        self.parts.iter().flat_map(of).collect()
    }

    /// Checks that each label of rows `[.., num_labels]` is valid for its head. Previous labels may also be [`NONE`].
    ///
    /// # Errors
    /// `OutOfRange` with the name of the head.
    pub fn check_labels(&self, labels: &[f32], previous: bool) -> Result<()> {
        let (width, before) = (self.num_labels().max(1), if previous { "previous " } else { "" });
        for part in self.iter() {
            let (kind, numbers) = (part.head.kind, part.head.kind.labels());
            let own =
                labels.chunks(width).flat_map(|row| row.iter().skip(part.labels).take(numbers));
            for &label in own.filter(|label| !(previous && **label == NONE)) {
                kind.check(label, || format!("{before}{}", part.head.name))?;
            }
        }
        Ok(())
    }

    /// Number of labels of one frame.
    pub fn num_labels(&self) -> usize {
        self.parts.iter().map(|h| h.kind.labels()).sum()
    }

    /// Entries of an action mask of one frame: one for each bit and each class. Numbers and values have none.
    pub fn mask_size(&self) -> usize {
        self.parts.iter().map(|h| h.kind.mask_size()).sum()
    }

    /// Checks action masks `[rows, mask_size]`: every head of classes has one that is allowed, and so are the classes and
    /// the set bits of `given [rows, num_labels]`.
    ///
    /// # Errors
    /// `Mismatch` with the name of the head, or for another length.
    pub fn check_mask(&self, mask: &[u8], rows: usize, given: Option<&[f32]>) -> Result<()> {
        let (size, labels) = (self.mask_size(), self.num_labels());
        if mask.len() != rows * size {
            return Err(Error::mismatch("entries of a mask", rows * size, mask.len()));
        }
        for (row, mask) in mask.chunks_exact(size.max(1)).enumerate() {
            let given = given.and_then(|given| given.get(row * labels..(row + 1) * labels));
            self.iter().try_for_each(|part| part.check_mask(mask, given))?;
        }
        Ok(())
    }
}
