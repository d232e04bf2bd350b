//! Heads that decide one frame at a time.

use std::ops::Range;

use sconce_ops::weights::Weight;
use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::simd::add_assign;
use sconce_tensor::{Error, Result};

use super::{Decision, Heads, Layers};
use crate::embedding::with_numbers;
use crate::head::{Chance, known};
use crate::layer::Linear;
use crate::packed::Game;
use crate::sampling::forbid;
use crate::spec::{self, Part};

/// [`Heads`] packed for one frame at a time.
pub(crate) struct Packed {
    spec: spec::Heads,
    layers: PackedLayers,
    /// Range of each choosing head's prior table in the arena, if there is a prior.
    prior: Vec<Option<Range<usize>>>,
}

enum PackedLayers {
    /// The logits of all heads in one matrix.
    Linear(Matrix),
    /// The hidden layers of all heads in one matrix. Each head reads its own range of the output.
    Independent { hidden: Matrix, heads: Vec<(Range<usize>, Matrix)> },
    /// A stream from which each head computes its logits. Each head then adds to the stream a row that encodes its
    /// choice. Value heads run before any choice is added.
    Autoregressive { stream: Matrix, decode: Vec<Matrix>, encode: Vec<Option<Range<usize>>> },
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
                for (layer, encode) in decode.iter().zip(encode) {
                    decoders.push(layer.pack(packer)?);
                    let mut table = |encode: &Linear| -> Result<Range<usize>> {
                        let weight = encode.plain()?.weight;
                        let numbers = packer.read(&weight)?;
                        Ok(packer.lay(&turned(&numbers, weight.dim(1)?)))
                    };
                    tables.push(encode.as_ref().map(&mut table).transpose()?);
                }
                PackedLayers::Autoregressive { stream, decode: decoders, encode: tables }
            }
        };
        let mut tables = self.prior.iter();
        let table = |head: &spec::Head| match head.kind.labels() {
            0 => Ok(None),
            _ => tables.next().map(|table| packer.keep(table)).transpose(),
        };
        let prior = self.spec.parts.iter().map(table).collect::<Result<_>>()?;
        Ok(Packed { spec: self.spec.clone(), layers, prior })
    }
}

impl Packed {
    /// A blank decision to write to.
    pub(crate) fn blank(&self) -> Decision {
        Decision {
            logits: vec![0.0; self.spec.num_logits()],
            choices: self.spec.least_labels(),
            confidence: vec![0.0; self.spec.parts.len()],
        }
    }

    /// Decides on the trunk vectors `scratch.x [games, width]`. A critic has written its value to the logits before.
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
        for (i, part) in self.in_order() {
            // The value of a critic is already among the logits, and has no layer here.
            if let PackedLayers::Autoregressive { decode, .. } = &self.layers
                && let Some(decode) = decode.get(i)
            {
                decode.read(input, y, rows);
                decode.apply(arena, input, z);
                give(games, z, decode.outputs(), part.logits);
            }
            for game in &mut *games {
                game.then(|game| {
                    self.add_prior(arena, i, &part, game);
                    if let Some(mask) = game.mask {
                        let own = part.logits..part.logits + part.head.kind.logits();
                        forbid(&mut game.decision.logits[own], part.mask(mask));
                    }
                    choose(&part, game);
                    let logits = logits(&part, game.decision);
                    game.decision.confidence[i] = part.head.kind.confidence(logits);
                    Ok(())
                });
            }
            if let PackedLayers::Autoregressive { stream, encode, .. } = &self.layers
                && let Some(Some(table)) = encode.get(i)
            {
                let streams = y.chunks_exact_mut(stream.outputs());
                for (game, y) in games.iter().zip(streams).filter(|(game, _)| game.outcome.is_ok())
                {
                    add_choice(y, &arena[table.clone()], &part, &game.decision.choices);
                }
            }
        }
    }

    /// Checks lengths and labels before anything is computed. Copies given labels to the choice.
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
        if let Some(mask) = game.mask {
            self.spec.check_mask(mask, 1, game.given)?;
        }
        Ok(())
    }

    /// The heads and their indices, value heads first.
    fn in_order(&self) -> impl Iterator<Item = (usize, Part<'_>)> {
        let heads = |chooses: bool| {
            let all = self.spec.iter().enumerate();
            all.filter(move |(_, part)| (part.head.kind.labels() > 0) == chooses)
        };
        heads(false).chain(heads(true))
    }

    /// Checks that the labels are those of one action and are valid. Previous labels may also be [`NONE`].
    fn check_labels(&self, labels: &[f32], previous: bool) -> Result<()> {
        let what = if previous { "previous labels" } else { "labels" };
        match labels.len() == self.spec.num_labels() {
            true => self.spec.check_labels(labels, previous),
            false => Err(Error::mismatch(what, self.spec.num_labels(), labels.len())),
        }
    }

    /// Adds the prior's offset for the previous choice to a head's logits.
    fn add_prior(&self, arena: &[f32], head: usize, part: &Part<'_>, game: &mut Game<'_>) {
        let Some(Some(table)) = self.prior.get(head) else { return };
        let (kind, previous) = (part.head.kind, own(part, game.frame.previous));
        let logits = &mut game.decision.logits[part.logits..][..kind.logits()];
        kind.add_prior(&arena[table.clone()], known(previous), logits);
    }
}

/// The slice of `labels` that belongs to a head.
fn own<'a>(part: &Part<'_>, labels: &'a [f32]) -> &'a [f32] {
    &labels[part.labels..][..part.head.kind.labels()]
}

fn logits<'a>(part: &Part<'_>, decision: &'a Decision) -> &'a [f32] {
    &decision.logits[part.logits..][..part.head.kind.logits()]
}

/// Copies `numbers [games, n]` to the logits of each game, from logit `at` on.
fn give(games: &mut [Game<'_>], numbers: &[f32], n: usize, at: usize) {
    for (game, numbers) in games.iter_mut().zip(numbers.chunks_exact(n)) {
        if game.outcome.is_ok() {
            game.decision.logits[at..at + n].copy_from_slice(numbers);
        }
    }
}

/// Draws the labels of a head, unless labels are given.
fn choose(part: &Part<'_>, game: &mut Game<'_>) {
    if game.given.is_some() {
        return;
    }
    let held = known(own(part, game.frame.previous));
    let (kind, decision) = (part.head.kind, &mut *game.decision);
    let logits = &decision.logits[part.logits..][..kind.logits()];
    let out = &mut decision.choices[part.labels..][..kind.labels()];
    let (sampling, rng) = (game.sampling, &game.rng);
    kind.choose(logits, &Chance { sampling, rng, index: part.labels as u64, held }, out);
}

/// Adds the encoding of a head's choice to the stream: each feature times its row of the table.
fn add_choice(stream: &mut [f32], table: &[f32], part: &Part<'_>, choices: &[f32]) {
    let (kind, n, chosen) = (part.head.kind, stream.len(), own(part, choices));
    with_numbers(kind.features(), |features| {
        kind.encode(chosen, features);
        let rows = features.iter().zip(table.chunks_exact(n));
        for (feature, row) in rows.filter(|(feature, _)| **feature != 0.0) {
            match feature {
                // A set bit or chosen class has the feature 1.
                1.0 => add_assign(stream, row),
                _ => stream.iter_mut().zip(row).for_each(|(sum, number)| *sum += feature * number),
            }
        }
    });
}

/// Transposes a matrix: its columns, one after the other.
fn turned(weight: &[f32], columns: usize) -> Vec<f32> {
    let column = |j| weight.iter().skip(j).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
