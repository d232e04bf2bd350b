//! The loss of a network in its packed form.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_net::{Packed, Program};
use sconce_tensor::{Error, Result, memory, pool};
use serde::Serialize;

use super::examples::Examples;
use super::loss::{Loss, Score};
use crate::stop::go_on;

/// Examples that a thread computes in the memory of one pass.
const SHARD: usize = 16;

/// The figures of a network on examples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss.
    pub loss: f64,
    /// Share of targets that are the likeliest class; `None` without classes.
    pub accuracy: Option<f64>,
}

/// Evaluates a network on all examples.
///
/// # Errors
/// `Cancelled` once the flag is set, and those of [`Packed::run`].
pub fn evaluate(
    program: &Arc<Program>,
    examples: &Examples<'_>,
    cancelled: &AtomicBool,
) -> Result<Evaluation> {
    let mut all: Vec<usize> = (0..examples.count()).collect();
    evaluate_some(program, examples, &mut all, cancelled)
}

/// [`evaluate`] on the examples of these indices, whose order stays.
pub(super) fn evaluate_some(
    program: &Arc<Program>,
    examples: &Examples<'_>,
    some: &mut [usize],
    cancelled: &AtomicBool,
) -> Result<Evaluation> {
    let zero = || Ok(Score::default());
    let parts = pool::sum_rows(some, 1, SHARD, zero, |_, some, part: &mut Result<Score>| {
        *part = memory::caught(|| shard(program, examples, some, cancelled));
    });
    let mut score = Score::default();
    for part in parts {
        score.add(part?);
    }
    let accuracy = (examples.loss() != Loss::Squared).then(|| score.accuracy());
    Ok(Evaluation { loss: score.mean(), accuracy })
}

fn shard(
    program: &Arc<Program>,
    examples: &Examples<'_>,
    some: &[usize],
    cancelled: &AtomicBool,
) -> Result<Score> {
    let (mut packed, mut score) = (Packed::of(program)?, Score::default());
    let (mut inputs, mut output) = (examples.buffers(), memory::zeros(examples.output_width()));
    for example in some {
        go_on(cancelled)?;
        examples.read(*example, &mut inputs);
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        packed.run(&inputs, &mut output).map_err(|error| named(error, *example))?;
        examples.score(*example, &output, None, &mut score);
    }
    Ok(score)
}

/// An error of a pass, with the number of the example.
fn named(error: Error, example: usize) -> Error {
    match error {
        Error::NonFinite { what, value } => {
            Error::NonFinite { what: format!("{what} of example {example}"), value }
        }
        Error::OutOfRange { field, value, min, max } => {
            Error::OutOfRange { field: format!("{field} of example {example}"), value, min, max }
        }
        other => other,
    }
}
