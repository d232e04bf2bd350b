//! Gradient checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost"): a block keeps only its
//! inputs, and the backward pass runs it again.

use std::sync::Arc;

use sconce_tensor::candle::Var;
use sconce_tensor::{Tensor, tape};

use super::{Context, State};
use crate::Result;
use crate::weights::Weight;

/// The computation of a block, which must be deterministic.
type Block = dyn Fn(&Tensor, &State, &Context) -> Result<(Tensor, State)>;

/// Runs `block(x, state, context)` and keeps only `x` and `state` for the backward pass.
///
/// `weights` are all weights that the block may use. The backward pass accumulates gradients in the weights, as fused
/// ops do. Outputs and gradients equal those of the block itself.
pub fn recomputed(
    x: &Tensor,
    state: &State,
    context: &Context,
    weights: &Arc<[Weight]>,
    block: impl Fn(&Tensor, &State, &Context) -> Result<(Tensor, State)> + 'static,
) -> Result<(Tensor, State)> {
    let inputs: Vec<Tensor> = std::iter::once(x).chain(&state.0).cloned().collect();
    let values: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
    let context = context.within_block();
    // A trainable weight connects the block to the tape if none of the inputs does.
    let mut tied = inputs;
    tied.extend(weights.iter().find(|weight| tape::wants(weight)).map(|weight| (**weight).clone()));
    let wanted: Vec<bool> = tied.iter().map(tape::wants).collect();
    if !wanted.contains(&true) {
        return block(&values[0], &state_of(&values), &context);
    }
    // The first run is recorded on a tape, which is dropped: an op over a few frames rounds differently without a tape,
    // and both runs must agree.
    let first_run = tape::record();
    let outputs = join(block(&values[0], &state_of(&values), &context)?);
    drop(first_run);
    let outputs = outputs.iter().map(variable).collect::<Result<Vec<_>>>()?;
    let run = Run { block: Box::new(block), values, wanted, weights: weights.clone(), context };
    tape::note(&tied, &outputs, move |gradients| run.backward(gradients));
    part(outputs)
}

/// A new variable with the values of `x`, detached from the graph.
fn variable(x: &Tensor) -> Result<Tensor> {
    Ok(Var::from_tensor(x)?.into_inner())
}

fn state_of(values: &[Tensor]) -> State {
    State(values[1..].to_vec())
}

fn join((y, state): (Tensor, State)) -> Vec<Tensor> {
    std::iter::once(y).chain(state.0).collect()
}

fn part(mut outputs: Vec<Tensor>) -> Result<(Tensor, State)> {
    let y = outputs.remove(0);
    Ok((y, State(outputs)))
}

/// One application of a block.
struct Run {
    block: Box<Block>,
    /// `x` and the parts of the state.
    values: Vec<Tensor>,
    /// True for each input that needs a gradient: `values`, then the weight that connects the block to the tape, if
    /// any.
    wanted: Vec<bool>,
    weights: Arc<[Weight]>,
    context: Context,
}

impl Run {
    /// Runs the block again, then its backward pass.
    fn backward(&self, given: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let _tape = tape::record();
        let leaf = |(value, wanted): (&Tensor, &bool)| match wanted {
            true => variable(value),
            false => Ok(value.clone()),
        };
        let leaves = self.values.iter().zip(&self.wanted).map(leaf).collect::<Result<Vec<_>>>()?;
        let outputs = join((self.block)(&leaves[0], &state_of(&leaves), &self.context.untapped())?);
        let ends = outputs.into_iter().zip(given).filter_map(|(y, d)| Some((y, d.clone()?)));
        let gradients = tape::backward_from(ends)?;
        for weight in self.weights.iter() {
            weight.gather(&gradients)?;
        }
        let mut all: Vec<_> = leaves.iter().map(|leaf| gradients.get(leaf).cloned()).collect();
        all.resize(self.wanted.len(), None);
        Ok(all)
    }
}
