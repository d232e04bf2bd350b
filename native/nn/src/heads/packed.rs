//! Heads, one frame at a time.

use std::ops::Range;

use sconce_ops::weights::Weight;
use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::simd::add_assign;
use sconce_tensor::{Error, Result};

use super::{Decision, Heads, Layers, NONE};
use crate::packed::Game;
use crate::sampling::confidence;
use crate::spec::{self, HeadKind, Part};

/// [`Heads`], one frame at a time.
pub(crate) struct Packed {
    spec: spec::Heads,
    layers: PackedLayers,
    /// A table for each head, if there is a prior.
    prior: Vec<Range<usize>>,
}

enum PackedLayers {
    /// All heads in one matrix.
    Linear(Matrix),
    /// The hidden layers of all heads in one matrix; each head reads its own part of what it gives.
    Independent { hidden: Matrix, heads: Vec<(Range<usize>, Matrix)> },
    /// A stream from which each head reads, and to which it adds a row of its table for its choice.
    Autoregressive { stream: Matrix, decode: Vec<Matrix>, encode: Vec<Range<usize>> },
}

impl Heads {
    pub(crate) fn pack(&self, packer: &mut Packer) -> Result<Packed> {
        let layers = match &self.layers {
            Layers::Linear(layer) => PackedLayers::Linear(layer.pack(packer)?),
            Layers::Independent(branches) => {
                let hidden: Vec<(&Weight, Option<&Weight>)> =
                    branches.iter().map(|b| (&b.hidden.weight, Some(&b.hidden.bias))).collect();
                let hidden = Matrix::side_by_side(packer, &hidden)?;
                let mut at = 0;
                let mut heads = Vec::with_capacity(branches.len());
                for branch in branches {
                    let matrix = Matrix::dense(packer, &branch.out.weight, Some(&branch.out.bias))?;
                    let width = branch.hidden.weight.dim(0)?;
                    heads.push((at..at + width, matrix));
                    at += width;
                }
                PackedLayers::Independent { hidden, heads }
            }
            Layers::Autoregressive { stream, decode, encode } => {
                let stream = stream.pack(packer)?;
                let (mut decoders, mut tables) = (vec![], vec![]);
                for (i, layer) in decode.iter().enumerate() {
                    decoders.push(layer.pack(packer)?);
                    if let Some(encode) = encode.get(i) {
                        let weight = encode.plain()?.weight;
                        let numbers = packer.read(&weight)?;
                        tables.push(packer.lay(&turned(&numbers, weight.dim(1)?)));
                    }
                }
                PackedLayers::Autoregressive { stream, decode: decoders, encode: tables }
            }
        };
        let prior = self.prior.iter().map(|table| packer.keep(table)).collect::<Result<_>>()?;
        Ok(Packed { spec: self.spec.clone(), layers, prior })
    }
}

impl Packed {
    /// A decision to write to.
    pub(crate) fn blank(&self) -> Decision {
        Decision {
            logits: vec![0.0; self.spec.num_logits()],
            choices: vec![0; self.spec.num_labels()],
            confidence: vec![0.0; self.spec.parts.len()],
        }
    }

    /// Decides on the trunk vectors `scratch.x [games, width]`.
    pub(crate) fn act(&self, arena: &[f32], games: &mut [Game<'_>], scratch: &mut Scratch) {
        let Scratch { x, y, z, input, .. } = scratch;
        let rows = games.len();
        match &self.layers {
            PackedLayers::Linear(matrix) => {
                matrix.read(input, x, rows);
                matrix.apply(arena, input, z);
                give(games, z, matrix.outputs(), 0);
            }
            PackedLayers::Independent { hidden, heads } => {
                hidden.read(input, x, rows);
                hidden.relu(arena, input, y);
                let mut at = 0;
                for (own, matrix) in heads {
                    let hidden = y.chunks_exact(hidden.outputs()).take(rows);
                    input.read(hidden.map(|y| &y[own.clone()]));
                    matrix.apply(arena, input, z);
                    give(games, z, matrix.outputs(), at);
                    at += matrix.outputs();
                }
            }
            PackedLayers::Autoregressive { stream, .. } => {
                stream.read(input, x, rows);
                stream.apply(arena, input, y);
            }
        }
        for (i, part) in self.spec.iter().enumerate() {
            if let PackedLayers::Autoregressive { decode, .. } = &self.layers {
                decode[i].read(input, y, rows);
                decode[i].apply(arena, input, z);
                give(games, z, decode[i].outputs(), part.logits);
            }
            for game in &mut *games {
                game.then(|game| {
                    self.add_prior(arena, i, &part, game);
                    choose(&part, game);
                    let logits = logits(&part, game.decision);
                    game.decision.confidence[i] = confidence(part.head.kind, logits);
                    Ok(())
                });
            }
            if let PackedLayers::Autoregressive { stream, encode, .. } = &self.layers
                && let Some(table) = encode.get(i)
            {
                let streams = y.chunks_exact_mut(stream.outputs());
                for (game, y) in games.iter().zip(streams).filter(|(game, _)| game.outcome.is_ok())
                {
                    add_choice(y, &arena[table.clone()], &part, &game.decision.choices);
                }
            }
        }
    }

    /// What must fit before anything is computed; what was given is the choice.
    pub(crate) fn check(&self, game: &mut Game<'_>) -> Result<()> {
        let decision = &mut *game.decision;
        for (what, expected, got) in [
            ("logits of a decision", self.spec.num_logits(), decision.logits.len()),
            ("choices of a decision", self.spec.num_labels(), decision.choices.len()),
            ("heads of a decision", self.spec.parts.len(), decision.confidence.len()),
        ] {
            if expected != got {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        self.check_labels(game.frame.previous, true)?;
        if let Some(given) = game.given {
            self.check_labels(given, false)?;
            decision.choices.copy_from_slice(given);
        }
        Ok(())
    }

    /// Labels are as many as one action has, each a class of its head; previous ones may be [`NONE`].
    fn check_labels(&self, labels: &[u16], previous: bool) -> Result<()> {
        let (what, before) =
            if previous { ("previous labels", "previous ") } else { ("labels", "") };
        if labels.len() != self.spec.num_labels() {
            return Err(Error::mismatch(what, self.spec.num_labels(), labels.len()));
        }
        for part in self.spec.iter() {
            let classes = part.head.kind.classes();
            let wrong = |l: &&u16| usize::from(**l) >= classes && !(previous && **l == NONE);
            if let Some(&label) = own(&part, labels).iter().find(wrong) {
                let field = format!("{before}{}", part.head.name);
                return Err(Error::out_of_range(&field, label.into(), 0.0, classes as f64 - 1.0));
            }
        }
        Ok(())
    }

    /// Adds to a head's logits the rows of its table that belong to the previous choice.
    fn add_prior(&self, arena: &[f32], head: usize, part: &Part<'_>, game: &mut Game<'_>) {
        let Some(table) = self.prior.get(head) else { return };
        let (table, previous) = (&arena[table.clone()], own(part, game.frame.previous));
        let n = part.head.kind.logits();
        let row = |label: u16, classes: usize| usize::from(label).min(classes) * n;
        let logits = &mut game.decision.logits[part.logits..][..n];
        match part.head.kind {
            HeadKind::Categorical(n) => add_assign(logits, &table[row(previous[0], n)..][..n]),
            HeadKind::Bernoulli(_) => {
                for (i, (logit, label)) in logits.iter_mut().zip(previous).enumerate() {
                    *logit += table[row(*label, 2) + i];
                }
            }
        }
    }
}

/// A head's part of labels.
fn own<'a>(part: &Part<'_>, labels: &'a [u16]) -> &'a [u16] {
    &labels[part.labels..][..part.head.kind.labels()]
}

fn logits<'a>(part: &Part<'_>, decision: &'a Decision) -> &'a [f32] {
    &decision.logits[part.logits..][..part.head.kind.logits()]
}

/// Puts numbers `[games, n]` among the logits of each game.
fn give(games: &mut [Game<'_>], numbers: &[f32], n: usize, at: usize) {
    for (game, numbers) in games.iter_mut().zip(numbers.chunks_exact(n)) {
        if game.outcome.is_ok() {
            game.decision.logits[at..at + n].copy_from_slice(numbers);
        }
    }
}

/// Draws a head's part of the choice, unless it is given.
fn choose(part: &Part<'_>, game: &mut Game<'_>) {
    if game.given.is_some() {
        return;
    }
    let held = Some(own(part, game.frame.previous)).filter(|held| held.first() != Some(&NONE));
    let (kind, decision) = (part.head.kind, &mut *game.decision);
    let logits = &decision.logits[part.logits..][..kind.logits()];
    let out = &mut decision.choices[part.labels..][..kind.labels()];
    game.sampling.choose(kind, logits, &game.rng, part.labels as u64, held, out);
}

/// Adds the encoding of a head's choice: the row of its class, or of each bit that is set.
fn add_choice(stream: &mut [f32], table: &[f32], part: &Part<'_>, choices: &[u16]) {
    let chosen = own(part, choices);
    let n = stream.len();
    let mut add = |row: usize| add_assign(stream, &table[row * n..][..n]);
    match part.head.kind {
        HeadKind::Categorical(_) => add(usize::from(chosen[0])),
        HeadKind::Bernoulli(_) => {
            (0..chosen.len()).filter(|bit| chosen[*bit] == 1).for_each(&mut add);
        }
    }
}

/// The columns of a matrix of so many, one after the other.
fn turned(weight: &[f32], columns: usize) -> Vec<f32> {
    let column = |j| weight.iter().skip(j).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
