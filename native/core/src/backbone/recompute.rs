//! Blocks that keep what they read and nothing else, and run once more when the backward pass asks
//! for the rest: gradient checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory
//! cost").
//!
//! To candle a block is a chain of tokens of one number, so that it has any number of inputs and
//! outputs and none of them is joined or cut apart:
//!
//! ```text
//! a weight -> tie -> tie -> .. -> core -> y
//!       x, parts of the state --^     `--> parts of the next state
//! ```

use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Shape, Tensor, Var};

use super::{Context, State};
use crate::ops::tensor::to_vec;
use crate::weights::Weight;
use crate::{Error, Result};

/// Whatever a block computes; twice, with the same result.
type Block = dyn Fn(&Tensor, &State, &Context) -> Result<(Tensor, State)> + Send + Sync;

/// `block(x, state, context)`, which keeps `x` and `state` for the backward pass and nothing else.
///
/// `weights` are all that the block may use; their gradients are left with them, as those of large
/// ops are. The numbers are those of the block itself, and so are the gradients.
///
/// # Errors
/// `Unavailable` on another device than a CPU.
pub fn recomputed(
    x: &Tensor,
    state: &State,
    context: &Context,
    weights: &Arc<[Weight]>,
    block: impl Fn(&Tensor, &State, &Context) -> Result<(Tensor, State)> + Send + Sync + 'static,
) -> Result<(Tensor, State)> {
    if !x.device().is_cpu() {
        let reason = "blocks are run again on a CPU only".into();
        return Err(Error::Unavailable { what: "gradient_checkpoint".into(), reason });
    }
    let inputs: Vec<&Tensor> = std::iter::once(x).chain(&state.0).collect();
    let values: Vec<Tensor> = inputs.iter().map(|t| t.detach()).collect();
    let wanted: Vec<bool> = inputs.iter().map(|t| t.track_op()).collect();
    let context = context.within_block();
    // The graph of this run ends with this statement.
    let outputs: Vec<Tensor> = join(block(&values[0], &State(values[1..].to_vec()), &context)?)
        .iter()
        .map(Tensor::detach)
        .collect();
    let gradients =
        Mutex::new(Gradients { of_outputs: vec![None; outputs.len()], of_inputs: vec![] });
    let (weights, context) = (weights.clone(), context.untapped());
    let run = Arc::new(Run { block: Box::new(block), values, wanted, weights, context, gradients });
    match run.token(&inputs)? {
        None => part(outputs),
        Some(token) => {
            let core = token.apply_op1(Core(run.clone()))?;
            let output = |(output, value)| {
                let value = Mutex::new(Some(value));
                Ok(core.apply_op1(Output { run: run.clone(), output, value })?)
            };
            part(outputs.into_iter().enumerate().map(output).collect::<Result<_>>()?)
        }
    }
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
    /// `x` and the parts of the state, and which of them want a gradient.
    values: Vec<Tensor>,
    wanted: Vec<bool>,
    weights: Arc<[Weight]>,
    context: Context,
    gradients: Mutex<Gradients>,
}

#[derive(Default)]
struct Gradients {
    /// `None` for what nothing used.
    of_outputs: Vec<Option<Tensor>>,
    of_inputs: Vec<Option<Tensor>>,
}

impl Run {
    fn gradients(&self) -> MutexGuard<'_, Gradients> {
        self.gradients.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The end of the chain of ties; none if nothing here learns.
    fn token(self: &Arc<Self>, inputs: &[&Tensor]) -> Result<Option<Tensor>> {
        let tie = |input| Tie { run: self.clone(), input };
        let mut token = match self.weights.iter().find(|weight| weight.track_op()) {
            Some(weight) => Some(weight.apply_op1(tie(None))?),
            None => None,
        };
        for (i, input) in inputs.iter().enumerate().filter(|(i, _)| self.wanted[*i]) {
            token = Some(match token {
                Some(token) => input.apply_op2(&token, tie(Some(i)))?,
                None => input.apply_op1(tie(Some(i)))?,
            });
        }
        Ok(token)
    }

    /// Runs the block again, and its backward pass.
    fn backward(&self) -> Result<()> {
        let leaf = |(value, wanted): (&Tensor, &bool)| -> Result<Tensor> {
            Ok(if *wanted { Var::from_tensor(value)?.into_inner() } else { value.clone() })
        };
        let leaves = self.values.iter().zip(&self.wanted).map(leaf).collect::<Result<Vec<_>>>()?;
        let outputs = (self.block)(&leaves[0], &State(leaves[1..].to_vec()), &self.context)?;
        let given: Vec<_> = self.gradients().of_outputs.iter_mut().map(Option::take).collect();
        let mut root: Option<Tensor> = None;
        for (output, gradient) in join(outputs).iter().zip(given) {
            let Some(gradient) = gradient else { continue };
            let seed = output.apply_op1(Seed(gradient))?;
            root = Some(match root {
                Some(root) => (root + seed)?,
                None => seed,
            });
        }
        let Some(root) = root else { return Ok(()) };
        let store = root.backward()?;
        for weight in self.weights.iter() {
            weight.gather(&store)?;
        }
        let of_input = |(leaf, wanted): (&Tensor, &bool)| -> Result<Option<Tensor>> {
            Ok(match (wanted, store.get(leaf)) {
                (false, _) => None,
                (true, Some(gradient)) => Some(gradient.clone()),
                (true, None) => Some(leaf.zeros_like()?.detach()),
            })
        };
        self.gradients().of_inputs =
            leaves.iter().zip(&self.wanted).map(of_input).collect::<Result<_>>()?;
        Ok(())
    }
}

fn token() -> candle_core::Result<(CpuStorage, Shape)> {
    Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
}

/// An input of the block, or a weight (`None`) whose gradient goes another way.
struct Tie {
    run: Arc<Run>,
    input: Option<usize>,
}

impl Tie {
    fn gradient(&self) -> Option<Tensor> {
        self.run.gradients().of_inputs.get_mut(self.input?)?.take()
    }
}

impl CustomOp1 for Tie {
    fn name(&self) -> &'static str {
        "block input"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        token()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(self.gradient())
    }
}

impl CustomOp2 for Tie {
    fn name(&self) -> &'static str {
        "block input"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        token()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        d: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.gradient(), Some(d.clone())))
    }
}

struct Core(Arc<Run>);

impl CustomOp1 for Core {
    fn name(&self) -> &'static str {
        "block"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        token()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, d: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.0.backward()?;
        Ok(Some(d.clone()))
    }
}

struct Output {
    run: Arc<Run>,
    output: usize,
    /// Until it is the node's own.
    value: Mutex<Option<Tensor>>,
}

impl CustomOp1 for Output {
    fn name(&self) -> &'static str {
        "block output"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        match self.value.lock().unwrap_or_else(|e| e.into_inner()).take() {
            Some(value) => Ok((CpuStorage::F32(to_vec(&value)?), value.shape().clone())),
            None => candle_core::bail!("an output of a block was taken twice"),
        }
    }

    fn bwd(&self, token: &Tensor, _: &Tensor, d: &Tensor) -> candle_core::Result<Option<Tensor>> {
        if let Some(place) = self.run.gradients().of_outputs.get_mut(self.output) {
            *place = Some(d.detach());
        }
        Ok(Some(token.detach()))
    }
}

/// Where a backward pass begins with a gradient that is given.
struct Seed(Tensor);

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        token()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}
