//! Reverse-mode automatic differentiation: a tape of the ops of a forward pass, which the backward pass walks in
//! reverse.
//!
//! An op adds a step if one of its inputs requires a gradient (`op` on a CPU, `card::op` on an NVIDIA card). The
//! backward pass runs each step in the precision of its recording, whatever the precision of the calling thread. A
//! tensor's first gradient is stored unchanged; further gradients are added. After a step has run, the step and its
//! saved activations are dropped. An op may store the gradient of a weight in the weight (`Weight::accumulate`).
//!
//! Candle's own ops between the steps form candle graphs. Each graph begins at outputs of steps, which candle sees as
//! variables. The tape records the end of a graph at its first use by an op, and runs candle's backward pass from
//! there.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor, TensorId};

use crate::{Error, Precision, Result, tensor};

thread_local! {
    static STEPS: RefCell<Option<Steps>> = const { RefCell::new(None) };
}

/// Maps the gradients of a step's outputs to the gradients of the step's inputs. `None` means no gradient, or a
/// gradient that was stored in a weight.
type Back = dyn FnOnce(&[Option<Tensor>]) -> Result<Vec<Option<Tensor>>>;

#[derive(Default)]
struct Steps {
    all: Vec<Step>,
    /// Outputs of steps and ends of candle's graphs on the tape. Other tensors with a gradient are variables or results
    /// of candle's ops.
    made: HashSet<TensorId>,
}

enum Step {
    Op {
        outputs: Vec<TensorId>,
        /// The inputs; `None` for an input that requires no gradient.
        inputs: Vec<Option<TensorId>>,
        /// The precision of the step's products and of their gradients.
        precision: Precision,
        back: Box<Back>,
    },
    /// The end of a graph of candle.
    Candle(Tensor),
}

/// A guard during which forward passes of its thread are recorded.
#[must_use]
pub struct Tape {
    /// The steps of the enclosing tape of this thread.
    outer: Option<Steps>,
    _of_this_thread: PhantomData<*const ()>,
}

/// Records forward passes of this thread from now on. When this tape is dropped, an enclosing tape resumes.
pub fn record() -> Tape {
    Tape { outer: STEPS.replace(Some(Steps::default())), _of_this_thread: PhantomData }
}

impl Drop for Tape {
    fn drop(&mut self) {
        STEPS.set(self.outer.take());
    }
}

impl Tape {
    /// Drops the steps recorded so far.
    pub fn forget(&self) {
        STEPS.with_borrow_mut(|steps| steps.as_mut().map(std::mem::take));
    }
}

/// Runs the backward pass over the steps that this thread has recorded, starting with `gradient` as the gradient of
/// `y`. The tape is empty afterwards.
///
/// # Errors
/// `NotFound` without a tape.
pub fn backward(y: &Tensor, gradient: Tensor) -> Result<Gradients> {
    backward_from([(y.clone(), gradient)])
}

/// [`backward`] from several tensors at once.
pub fn backward_from(ends: impl IntoIterator<Item = (Tensor, Tensor)>) -> Result<Gradients> {
    let steps = STEPS.with_borrow_mut(|steps| steps.as_mut().map(std::mem::take));
    let mut steps = steps.ok_or_else(|| Error::not_found("a tape of the pass"))?;
    let mut gradients = Gradients::default();
    for (y, gradient) in ends {
        if y.track_op() {
            steps.know(&y);
            gradients.add(y.id(), gradient.detach())?;
        }
    }
    while let Some(step) = steps.all.pop() {
        step.walk(&mut gradients)?;
    }
    Ok(gradients)
}

impl Step {
    fn walk(self, gradients: &mut Gradients) -> Result<()> {
        match self {
            Step::Op { outputs, inputs, precision, back } => {
                let given: Vec<_> = outputs.iter().map(|id| gradients.0.remove(id)).collect();
                if given.iter().all(Option::is_none) {
                    return Ok(());
                }
                let found = precision.during(|| back(&given))?;
                drop(given);
                for (id, gradient) in inputs.into_iter().zip(found) {
                    if let (Some(id), Some(gradient)) = (id, gradient) {
                        gradients.add(id, gradient)?;
                    }
                }
            }
            Step::Candle(end) => {
                let Some(gradient) = gradients.0.remove(&end.id()) else { return Ok(()) };
                let store = end.apply_op1(Start(gradient))?.backward()?;
                for id in store.get_ids() {
                    store.get_id(*id).map_or(Ok(()), |g| gradients.add(*id, g.detach()))?;
                }
            }
        }
        Ok(())
    }
}

impl Steps {
    /// Records the end of candle's graph at the first use of `x`, which precedes all other uses.
    fn know(&mut self, x: &Tensor) {
        if !x.is_variable() && self.made.insert(x.id()) {
            self.all.push(Step::Candle(x.clone()));
        }
    }
}

/// Whether a tensor requires a gradient; always false without a tape.
pub fn wants(x: &Tensor) -> bool {
    x.track_op() && STEPS.with_borrow(Option::is_some)
}

/// Records a step that computed `outputs` from `inputs`. At least one input [requires](wants) a gradient.
pub fn note(
    inputs: &[Tensor],
    outputs: &[Tensor],
    back: impl FnOnce(&[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + 'static,
) {
    let wanted = inputs.iter().map(|x| wants(x).then(|| x.id())).collect();
    STEPS.with_borrow_mut(|steps| {
        let Some(steps) = steps else { return };
        inputs.iter().filter(|x| x.track_op()).for_each(|x| steps.know(x));
        let outputs: Vec<TensorId> = outputs.iter().map(Tensor::id).collect();
        steps.made.extend(&outputs);
        let precision = Precision::current();
        steps.all.push(Step::Op { outputs, inputs: wanted, precision, back: Box::new(back) });
    });
}

/// Records and returns `y`, which has the values of `x` in another shape or layout. `back` maps the gradient of `y` to
/// the shape of `x`.
pub fn view(
    x: &Tensor,
    y: Tensor,
    back: impl FnOnce(&Tensor) -> candle_core::Result<Tensor> + 'static,
) -> Tensor {
    if !wants(x) || x.id() == y.id() {
        return y;
    }
    let from = std::slice::from_ref(x);
    note(from, std::slice::from_ref(&y), move |given| {
        Ok(vec![given[0].as_ref().map(back).transpose()?])
    });
    y
}

/// `x` in a contiguous layout.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    Ok(view(x, x.contiguous()?, |d| Ok(d.clone())))
}

/// The gradients of a backward pass by variable. A variable is a tensor that neither a step nor candle computed.
#[derive(Default)]
pub struct Gradients(HashMap<TensorId, Tensor>);

impl Gradients {
    /// The gradient of a variable, in the variable's shape and dtype.
    pub fn get(&self, x: &Tensor) -> Option<&Tensor> {
        self.0.get(&x.id())
    }

    fn add(&mut self, of: TensorId, gradient: Tensor) -> Result<()> {
        let sum = match self.0.remove(&of) {
            Some(sum) => tensor::sum(&sum, &gradient)?,
            None => gradient,
        };
        self.0.insert(of, sum);
        Ok(())
    }
}

/// An op from a tensor to a scalar with a given gradient. Replaces a loss whose gradient alone is known.
struct Start(Tensor);

impl CustomOp1 for Start {
    fn name(&self) -> &'static str {
        "start"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, y: &CudaStorage, _: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        // SAFETY: the value is never read.
        let number = unsafe { y.device.alloc::<f32>(1) }?;
        Ok((CudaStorage::wrap_cuda_slice(number, y.device.clone()), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}
