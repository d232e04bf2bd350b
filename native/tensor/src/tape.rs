//! The one autograd: the steps of a pass in their order, which the backward pass walks in reverse.
//!
//! Each op adds a step where an input of it wants a gradient ([`op`](super::op) on a CPU, `card::op` on an NVIDIA card).
//! A step is walked back in the precision that it was made in, whatever that of the thread that asks.
//! A gradient is kept as it comes and added to only where a tensor was used twice; a step is dropped once it was walked,
//! and the memory that it kept with it. Gradients of weights stay with the weights where an op leaves them there
//! ([`Weight::accumulate`](crate::weights::Weight::accumulate)).
//!
//! Candle's ops between these are graphs of candle's own. Each ends at outputs of steps, which are variables to candle;
//! the tape notes the graph where an op uses it first, and has candle walk it back.

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

/// Gradients of a step's inputs from those of its outputs; `None` for a gradient that is not there, or was left with a
/// weight.
type Back = dyn FnOnce(&[Option<Tensor>]) -> Result<Vec<Option<Tensor>>>;

#[derive(Default)]
struct Steps {
    all: Vec<Step>,
    /// Outputs of steps. Other tensors with a gradient are variables, or made by candle.
    made: HashSet<TensorId>,
}

enum Step {
    Op {
        outputs: Vec<TensorId>,
        /// `None` for an input without a gradient.
        inputs: Vec<Option<TensorId>>,
        /// Of its products, which is that of their gradients too.
        precision: Precision,
        back: Box<Back>,
    },
    /// The end of a graph of candle's.
    Candle(Tensor),
}

/// As long as it lives, passes of its thread are recorded.
#[must_use]
pub struct Tape {
    /// The steps that the thread had recorded before.
    outer: Option<Steps>,
    _of_this_thread: PhantomData<*const ()>,
}

/// Records the passes of this thread from now on. A tape that was recording goes on when this one is dropped.
pub fn record() -> Tape {
    Tape { outer: STEPS.replace(Some(Steps::default())), _of_this_thread: PhantomData }
}

impl Drop for Tape {
    fn drop(&mut self) {
        STEPS.set(self.outer.take());
    }
}

impl Tape {
    /// Drops what was recorded so far.
    pub fn forget(&self) {
        STEPS.with_borrow_mut(|steps| steps.as_mut().map(std::mem::take));
    }
}

/// The backward pass from `y` on, whose gradient is given, over what this thread has recorded. The tape is empty after it.
///
/// # Errors
/// `NotFound` where nothing records.
pub fn backward(y: &Tensor, gradient: Tensor) -> Result<Gradients> {
    backward_from([(y.clone(), gradient)])
}

/// [`backward`] from several tensors together.
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
    /// Notes what candle made where it is used first: all other uses come after it.
    fn know(&mut self, x: &Tensor) {
        if !x.is_variable() && self.made.insert(x.id()) {
            self.all.push(Step::Candle(x.clone()));
        }
    }
}

/// Whether a tensor wants a gradient: none does where nothing is recorded.
pub fn wants(x: &Tensor) -> bool {
    x.track_op() && STEPS.with_borrow(Option::is_some)
}

/// Adds a step that made `outputs` of `inputs`, of which at least one [wants](wants) a gradient.
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

/// `y`, which has the numbers of `x` in another shape or place; `back` gives a gradient of y the shape of x.
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

/// The numbers of `x` without gaps.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    Ok(view(x, x.contiguous()?, |d| Ok(d.clone())))
}

/// The gradients of a backward pass, by variable: a tensor that neither a step nor candle made.
#[derive(Default)]
pub struct Gradients(HashMap<TensorId, Tensor>);

impl Gradients {
    /// The gradient of a variable, in its shape and type.
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

/// One number in the place of a loss, of which only the gradient is known.
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
        // SAFETY: it is never read.
        let number = unsafe { y.device.alloc::<f32>(1) }?;
        Ok((CudaStorage::wrap_cuda_slice(number, y.device.clone()), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}
