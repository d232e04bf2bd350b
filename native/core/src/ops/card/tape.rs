//! What a pass did on a card, in its order, for the backward pass that goes the other way.
//!
//! Candle's own backward pass begins every gradient with zeros and adds to them: two launches and four times the memory
//! traffic of a gradient that is kept as it comes, which it is here. Candle's ops between ours are graphs of their own
//! that candle goes back through: each ends at outputs of ours, which are variables to it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, bail};

use super::activation::sum_of;
use super::op::{Op, Pass};
use super::wanted;
use crate::ops::tensor::Start;

thread_local! {
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Tape {
    steps: Vec<Step>,
    /// What steps made. Other tensors with a gradient are variables, or candle's.
    made: HashSet<TensorId>,
}

enum Step {
    Applied(Applied),
    /// The same numbers in another shape or place.
    View {
        of: Tensor,
        made: TensorId,
        back: Box<dyn Fn(Tensor) -> Result<Tensor>>,
    },
    /// The end of a graph of candle's.
    Candle(Tensor),
}

/// One application of an op.
pub struct Applied {
    pub op: Box<dyn Op>,
    pub inputs: Vec<Tensor>,
    pub kept: Vec<Tensor>,
    /// Those of the inputs that want a gradient.
    pub wanted: Vec<Option<TensorId>>,
    /// Variables to candle.
    pub outputs: Vec<Tensor>,
}

/// As long as it lives, passes of its thread are noted.
pub struct Tracked {
    /// What was noted before.
    outer: Option<Tape>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Tracked {
    pub fn begin() -> Self {
        Tracked { outer: TAPE.replace(Some(Tape::default())), _of_this_thread: PhantomData }
    }

    /// Lets go of what was noted.
    pub fn forget(&self) {
        TAPE.with_borrow_mut(|tape| tape.as_mut().map(std::mem::take));
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        TAPE.set(self.outer.take());
    }
}

/// Whether a tensor has a gradient here.
pub fn wants(x: &Tensor) -> bool {
    x.track_op() && TAPE.with_borrow(Option::is_some)
}

/// Notes an application to tensors.
pub fn note(applied: Applied, to: &[Tensor]) {
    let made: Vec<TensorId> = applied.outputs.iter().map(Tensor::id).collect();
    add(to, &made, Step::Applied(applied));
}

/// Notes that `y` has the numbers of `x`; `back` gives a gradient of y the shape of x.
pub fn view(x: &Tensor, y: Tensor, back: impl Fn(Tensor) -> Result<Tensor> + 'static) -> Tensor {
    if wants(x) && x.id() != y.id() {
        let step = Step::View { of: x.clone(), made: y.id(), back: Box::new(back) };
        add(std::slice::from_ref(x), &[y.id()], step);
    }
    y
}

fn add(from: &[Tensor], made: &[TensorId], step: Step) {
    TAPE.with_borrow_mut(|tape| {
        let Some(tape) = tape else { return };
        from.iter().filter(|x| x.track_op()).for_each(|x| tape.know(x));
        tape.made.extend(made);
        tape.steps.push(step);
    });
}

impl Tape {
    /// What candle made is noted where it is used first: all that use it come after that.
    fn know(&mut self, x: &Tensor) {
        if !x.is_variable() && self.made.insert(x.id()) {
            self.steps.push(Step::Candle(x.clone()));
        }
    }
}

/// The gradients of all variables behind `y`, whose own is given.
pub fn backward(y: &Tensor, gradient: Tensor) -> Result<GradStore> {
    let Some(mut tape) = TAPE.with_borrow_mut(|tape| tape.as_mut().map(std::mem::take)) else {
        bail!("a backward pass on a card is outside of what was tracked")
    };
    if y.track_op() {
        tape.know(y);
    }
    let mut all = Gradients(HashMap::from([(y.id(), gradient.detach())]));
    while let Some(step) = tape.steps.pop() {
        match step {
            Step::Applied(applied) => applied.backward(&mut all)?,
            Step::View { of, made, back } => {
                if let Some(gradient) = all.0.remove(&made) {
                    all.add(of.id(), back(gradient)?)?;
                }
            }
            Step::Candle(end) => {
                if let Some(gradient) = all.0.remove(&end.id()) {
                    let store = end.apply_op1(Start(gradient))?.backward()?;
                    for id in store.get_ids() {
                        store.get_id(*id).map_or(Ok(()), |g| all.add(*id, g.detach()))?;
                    }
                }
            }
        }
    }
    let mut store = GradStore::default();
    all.0.into_iter().for_each(|(id, gradient)| drop(store.insert_id(id, gradient)));
    Ok(store)
}

/// Those of a backward pass so far.
struct Gradients(HashMap<TensorId, Tensor>);

impl Gradients {
    fn add(&mut self, of: TensorId, gradient: Tensor) -> Result<()> {
        let sum = match self.0.remove(&of) {
            Some(sum) if wanted(&sum) => sum_of(&sum.contiguous()?, &gradient.contiguous()?)?,
            Some(sum) => (sum + gradient)?,
            None => gradient,
        };
        self.0.insert(of, sum);
        Ok(())
    }
}

impl Applied {
    fn backward(self, all: &mut Gradients) -> Result<()> {
        let Applied { op, inputs, kept, wanted, outputs } = self;
        let given = |y: &Tensor| all.0.remove(&y.id()).map(|d| d.contiguous()).transpose();
        let mut given = outputs.iter().map(given).collect::<Result<Vec<_>>>()?;
        if given.iter().all(Option::is_none) {
            return Ok(());
        }
        let y = outputs[0].detach();
        let dy = given.remove(0).map_or_else(|| y.zeros_like(), Ok)?;
        let wants: Vec<bool> = wanted.iter().map(Option::is_some).collect();
        let (inputs, kept, d_others) = (&inputs[..], &kept[..], &given[..]);
        let pass = Pass { inputs, kept, y: &y, dy: &dy, d_others, wanted: &wants };
        let gradients = op.backward(&pass)?;
        for (id, gradient) in wanted.into_iter().zip(gradients) {
            if let (Some(id), Some(gradient)) = (id, gradient) {
                all.add(id, gradient)?;
            }
        }
        Ok(())
    }
}
