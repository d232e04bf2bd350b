//! What a policy chooses: the named parts of an action, and how they are tied together.

use sconce_game::{InputKind, InputPart};
use serde::{Deserialize, Serialize};

use crate::head::{Gaussian, HeadKind};

/// The named parts of an action and how they are tied together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    pub kind: HeadsKind,
    pub parts: Vec<Head>,
    /// Width of the residual stream of autoregressive heads.
    pub stream_size: usize,
    /// Adds to the logits a learned row per previous choice, which starts at log P(a_t | a_{t-1}).
    pub prior: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadsKind {
    /// Every head reads the trunk vector alone.
    Independent,
    /// Each head also sees what the heads before it chose.
    Autoregressive,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub name: String,
    pub kind: HeadKind,
    /// Width of the hidden layer of an independent head; 0: none has a hidden layer.
    pub hidden_size: usize,
}

/// A head and where its part of the logits and of the labels begins.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub head: &'a Head,
    pub logits: usize,
    pub labels: usize,
}

impl Heads {
    /// The controller: eight buttons, two sticks of 17 positions an axis, a shoulder of 5 steps.
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

    /// Independent heads of these names and kinds, with a hidden layer of 64.
    pub fn of_kinds(heads: &[(String, HeadKind)]) -> Self {
        let head = |(name, kind): &(String, HeadKind)| Head {
            name: name.clone(),
            kind: *kind,
            hidden_size: 64,
        };
        let parts = heads.iter().map(head).collect();
        Heads { kind: HeadsKind::Independent, parts, stream_size: 128, prior: false }
    }

    /// Whether independent heads read their logits straight from the trunk vector.
    pub fn are_linear(&self) -> bool {
        self.parts.iter().all(|head| head.hidden_size == 0)
    }

    /// Those that choose something.
    pub fn choosing(&self) -> impl Iterator<Item = &Head> {
        self.parts.iter().filter(|head| head.kind.labels() > 0)
    }

    /// Whether all labels are bits and classes, which files and Elixir have as 16 bits each; others are f32.
    pub fn are_words(&self) -> bool {
        self.choosing().all(|head| head.kind.classes() > 0)
    }

    /// Heads with the offsets of their logits and labels in one frame.
    pub fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        self.parts.iter().scan((0, 0), |at, head| {
            let part = Part { head, logits: at.0, labels: at.1 };
            *at = (at.0 + head.kind.logits(), at.1 + head.kind.labels());
            Some(part)
        })
    }

    /// Logits of one frame, all heads side by side.
    pub fn num_logits(&self) -> usize {
        self.parts.iter().map(|h| h.kind.logits()).sum()
    }

    /// The least labels that there are, of one frame.
    pub fn least_labels(&self) -> Vec<f32> {
        let of = |head: &Head| std::iter::repeat_n(head.kind.least(), head.kind.labels());
        self.parts.iter().flat_map(of).collect()
    }

    /// Numbers in the label of one frame.
    pub fn num_labels(&self) -> usize {
        self.parts.iter().map(|h| h.kind.labels()).sum()
    }
}
