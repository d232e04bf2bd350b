//! Weights by path. A path is the weight's name in the checkpoint, so renaming one breaks old files.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use candle_core::{Tensor, Var};
pub use coded::Coded;
pub use factors::Factors;
pub use init::{Block, Init};
pub use two_four::TwoFour;

use crate::fake_quantise::InputGrid;
use crate::form::Form;
use crate::matmul::{MANY, Operand, Packed, View};
use crate::tape::Gradients;
use crate::{Error, Precision, Result, memory, tensor};

mod coded;
mod factors;
mod init;
mod inputs;
mod orthogonal;
mod stored;
pub mod two_four;

/// The largest number of parameters of a policy: 4 GiB of f32. A larger spec is a mistake or comes from a hostile file.
pub const MAX_NUMBERS: usize = 1 << 30;

/// All weights of a policy, in the order of their names.
pub type Weights = BTreeMap<String, Weight>;

/// A tensor of weights, and the buffer in which large ops accumulate its gradient.
///
/// A product can write its gradient where the optimiser reads it ([`Weight::accumulate`]); such an op gives the tape no
/// gradient of the weight. All other ops give the weight's gradient to the tape, and [`Weight::gather`] adds it.
#[derive(Clone)]
pub struct Weight {
    tensor: Tensor,
    gradient: Arc<Mutex<Gradient>>,
    operands: Arc<Mutex<Vec<Kept>>>,
    codes: Option<Arc<Coded>>,
    factors: Option<Arc<Factors>>,
    inputs: Option<Arc<InputGrid>>,
}

/// Packed rows of a weight and their cache key: the rows, whether they are transposed, whether they serve products of
/// [`MANY`] rows, and the precision.
struct Kept {
    rows: Range<usize>,
    turned: bool,
    many: bool,
    precision: Precision,
    packed: Arc<Packed>,
}

/// Minimum rows of a product for which packing the weight pays.
pub const WORTH_PACKING: usize = 24;

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

#[derive(Debug, Default)]
struct Gradient {
    values: Vec<f32>,
    /// Whether `values` holds a gradient of this step, not of an earlier one.
    filled: bool,
    /// The gradient as a tensor on the weight's device; replaces `values` for weights that CPU ops do not use.
    tensor: Option<Tensor>,
}

impl From<Tensor> for Weight {
    fn from(tensor: Tensor) -> Self {
        let (gradient, operands, codes, factors, inputs) = Default::default();
        Weight { tensor, gradient, operands, codes, factors, inputs }
    }
}

impl Deref for Weight {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Weight {
    /// Converts the weight to the device and dtype of `x`. Returns the weight itself if both match.
    pub fn beside(&self, x: &Tensor) -> Result<Weight> {
        match self.device().same_device(x.device()) && self.dtype() == x.dtype() {
            true => Ok(self.clone()),
            false => Ok(tensor::moved(&self.tensor.detach(), x)?.into()),
        }
    }

    /// Rows of the weight, whose values are `values [n, k]`, as the right operand W of products with `uses` rows in
    /// total; W^T if `turned`.
    ///
    /// An untrained weight keeps the packed rows for the next call.
    pub fn operand<'a>(
        &self,
        values: &'a [f32],
        rows: Range<usize>,
        turned: bool,
        uses: usize,
    ) -> Operand<'a> {
        self.operand_of(values, rows, turned, uses, uses)
    }

    /// [`operand`](Self::operand) for separate products that cannot be merged: each has `each` of the `uses` rows.
    pub fn operand_of<'a>(
        &self,
        values: &'a [f32],
        rows: Range<usize>,
        turned: bool,
        uses: usize,
        each: usize,
    ) -> Operand<'a> {
        let k = values.len() / self.tensor.dims().first().copied().unwrap_or(1).max(1);
        let view = View::rows(&values[rows.start * k..rows.end * k], rows.len(), k);
        let view = if turned { view.transposed() } else { view };
        if uses < WORTH_PACKING {
            return Operand::View(view);
        }
        let many = each >= MANY;
        let pack = || Arc::new(if many { Packed::new(view) } else { Packed::for_few_rows(view) });
        if self.tensor.track_op() {
            return Operand::Packed(pack());
        }
        let place = || self.operands.lock().unwrap_or_else(|e| e.into_inner());
        let precision = Precision::current();
        let wanted = (&rows, turned, many, precision);
        let same = |k: &&Kept| (&k.rows, k.turned, k.many, k.precision) == wanted;
        if let Some(kept) = place().iter().find(same) {
            return Operand::Packed(kept.packed.clone());
        }
        // Does not hold the lock: packing may wait for threads that wait for the lock.
        let packed = pack();
        let mut all = place();
        if !all.iter().any(|kept| same(&kept)) {
            let packed = packed.clone();
            all.push(Kept { rows: rows.clone(), turned, many, precision, packed });
        }
        Operand::Packed(packed)
    }

    /// Calls `add(gradient, accumulate)`, which adds to the gradient if `accumulate` and overwrites it otherwise. An
    /// untrained weight has no gradient, so `add` is not called.
    pub fn accumulate(&self, add: impl FnOnce(&mut [f32], bool)) {
        if !self.tensor.track_op() {
            return;
        }
        let mut gradient = self.gradient.lock().unwrap_or_else(|e| e.into_inner());
        let Gradient { values, filled, .. } = &mut *gradient;
        memory::resize(values, self.tensor.elem_count());
        add(values, *filled);
        *filled = true;
    }

    /// Adds the tape's gradient to the gradient that ops accumulated here. Returns whether the weight has any gradient.
    pub fn gather(&self, store: &Gradients) -> Result<bool> {
        if self.is_elsewhere() {
            return self.gather_tensor(store);
        }
        if let Some(given) = store.get(&self.tensor) {
            tensor::with(given, |given| {
                self.accumulate(|sum, accumulate| match accumulate {
                    true => crate::simd::add_assign(sum, given),
                    false => sum.copy_from_slice(given),
                });
                Ok(())
            })?;
        }
        Ok(self.gradient.lock().unwrap_or_else(|e| e.into_inner()).filled)
    }

    /// [`gather`](Self::gather) for a weight whose whole gradient is on the tape.
    fn gather_tensor(&self, store: &Gradients) -> Result<bool> {
        let mut gradient = self.gradient.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(given) = store.get(&self.tensor) {
            gradient.tensor = Some(match &gradient.tensor {
                Some(sum) => tensor::sum(sum, given)?,
                None => given.clone(),
            });
        }
        Ok(gradient.tensor.is_some())
    }

    /// Whether the gradient is a tensor on the weight's device instead of `values`.
    fn is_elsewhere(&self) -> bool {
        Form::of(&self.tensor) != Form::Cpu
    }

    /// Calls `with` with the accumulated gradient, which `with` may change.
    pub fn gradient<R>(&self, with: impl FnOnce(&mut [f32]) -> R) -> R {
        with(&mut self.gradient.lock().unwrap_or_else(|e| e.into_inner()).values)
    }

    /// The accumulated gradient on the weight's device, for a weight that is not an f32 on the CPU.
    pub fn gradient_tensor(&self) -> Option<Tensor> {
        self.gradient.lock().unwrap_or_else(|e| e.into_inner()).tensor.clone()
    }

    /// The accumulated gradient as a tensor `[n]` on the weight's device; zeros without a gradient.
    pub fn flat_gradient(&self) -> Result<Tensor> {
        let n = self.tensor.elem_count();
        if self.is_elsewhere() {
            return Ok(match self.gradient_tensor() {
                Some(gradient) => gradient.detach().to_dtype(self.tensor.dtype())?.reshape(n)?,
                None => self.tensor.detach().zeros_like()?.reshape(n)?,
            });
        }
        let gradient = self.gradient.lock().unwrap_or_else(|e| e.into_inner());
        let values = if gradient.filled { gradient.values.clone() } else { memory::zeros(n) };
        Ok(tensor::tensor(values, n)?)
    }

    /// Replaces the accumulated gradient by `gradient`, a tensor on the weight's device with as many values.
    pub fn set_gradient(&self, gradient: &Tensor) -> Result<()> {
        if self.is_elsewhere() {
            let gradient = gradient.reshape(self.tensor.dims())?;
            self.gradient.lock().unwrap_or_else(|e| e.into_inner()).tensor = Some(gradient);
            return Ok(());
        }
        self.forget();
        Ok(tensor::with(gradient, |given| {
            self.accumulate(|values, _| values.copy_from_slice(given));
            Ok(())
        })?)
    }

    /// Calls `with` with the accumulated gradient on any device.
    pub fn read_gradient<R>(&self, with: impl FnOnce(&[f32]) -> R) -> Result<R> {
        match self.gradient_tensor() {
            Some(gradient) => Ok(tensor::read(&gradient, |numbers| Ok(with(numbers)))?),
            None => Ok(self.gradient(|numbers| with(numbers))),
        }
    }

    /// Discards the accumulated gradient: the next backward pass starts from zero.
    pub fn forget(&self) {
        let mut gradient = self.gradient.lock().unwrap_or_else(|e| e.into_inner());
        (gradient.filled, gradient.tensor) = (false, None);
    }
}

/// The source of a layer's weights.
pub enum Source {
    /// New weights, drawn from this seed.
    Seed(u64),
    /// New weights, drawn from this seed, with orthogonal matrices in dense layers ([`Init::fan_in`]) and biases of 0
    /// there. All other weights are drawn as usual.
    Orthogonal(u64),
    /// Weights of a checkpoint, by path.
    Stored(Weights),
    /// Weights of the right shapes without memory, for counting a layer's parameters.
    Sizes,
}

/// Whether training leaves the weight of this name unchanged (frozen).
pub type Frozen = Rc<dyn Fn(&str) -> bool>;

/// Hands out weights under a growing path and records them.
#[derive(Clone)]
pub struct Builder {
    source: Rc<Source>,
    /// Trainable weights are variables of candle's autograd; others keep no graph alive.
    trainable: bool,
    /// Selects weights that are frozen even if `trainable`.
    frozen: Option<Frozen>,
    path: String,
    /// Blocks of the dense layers under this path.
    blocks: Rc<[Block]>,
    taken: Rc<RefCell<Weights>>,
    total: Rc<Cell<usize>>,
}

impl Builder {
    /// Returns a builder at the root path, whose weights are trainable if `trainable`.
    pub fn new(source: Source, trainable: bool) -> Self {
        let (taken, total) = Default::default();
        let (source, frozen, path) = (Rc::new(source), None, String::new());
        Builder { source, trainable, frozen, path, blocks: Rc::default(), taken, total }
    }

    /// Treats the weights that `frozen` selects as untrained.
    #[must_use]
    pub fn freezing(self, frozen: Option<Frozen>) -> Self {
        Builder { frozen, ..self }
    }

    /// Hands out constants, which training leaves unchanged.
    #[must_use]
    pub fn constants(&self) -> Self {
        Builder { trainable: false, ..self.clone() }
    }

    /// Divides the rows of the dense layers under this path into blocks, each with an initial gain of its own. Only
    /// [`Source::Orthogonal`] reads the blocks.
    #[must_use]
    pub fn in_blocks(&self, blocks: impl IntoIterator<Item = Block>) -> Self {
        Builder { blocks: blocks.into_iter().collect(), ..self.clone() }
    }

    /// Returns the builder of the part `name`.
    pub fn under(&self, name: impl std::fmt::Display) -> Self {
        Builder { path: self.name(name), ..self.clone() }
    }

    fn name(&self, name: impl std::fmt::Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    /// The weight `name` under this path, of this shape: drawn by `init` or taken from the checkpoint.
    ///
    /// # Errors
    /// `NotFound` or `Mismatch` for a stored weight that is missing or of another shape; `OutOfMemory` from
    /// [`reserve`](Self::reserve).
    pub fn get(&self, name: &str, shape: &[usize], init: Init) -> Result<Weight> {
        let name = self.name(name);
        self.reserve(&name, shape)?;
        let (mut codes, mut factors, mut inputs) = (None, None, None);
        let weight = match &*self.source {
            Source::Seed(seed) => {
                tensor::tensor(init.draw(*seed, &name, shape.iter().product()), shape)?
            }
            Source::Orthogonal(seed) => {
                tensor::tensor(init.orthogonal(*seed, &name, shape, &self.blocks)?, shape)?
            }
            Source::Stored(stored) => {
                let found =
                    stored.get(&name).ok_or_else(|| Error::not_found(format!("weight {name}")))?;
                if found.dims() != shape {
                    let got = format!("{:?}", found.dims());
                    return Err(Error::mismatch(
                        format!("weight {name}"),
                        format!("{shape:?}"),
                        got,
                    ));
                }
                (codes, factors) = (found.codes.clone(), found.factors.clone());
                inputs = found.inputs.as_deref().cloned().map(Arc::new);
                found.tensor.clone()
            }
            Source::Sizes => tensor::tensor(vec![0.0], ())?.broadcast_as(shape)?,
        };
        let learns = self.trainable && !self.frozen.as_ref().is_some_and(|frozen| frozen(&name));
        if learns || weight.is_variable() {
            memory::granted(size_of::<f32>() * weight.elem_count());
        }
        let tensor = match learns {
            true => Var::from_tensor(&weight)?.into_inner(),
            // A frozen weight is a copy of the trained weight, whose later updates would not reach the copy's packed
            // rows.
            false if weight.is_variable() => weight.copy()?.detach(),
            false => weight.detach(),
        };
        if learns {
            (codes, factors) = (None, None);
        }
        let weight = Weight { codes, factors, inputs, ..tensor.into() };
        self.taken.borrow_mut().insert(name, weight.clone());
        Ok(weight)
    }

    /// All weights handed out so far, under any path.
    pub fn taken(&self) -> Arc<[Weight]> {
        self.taken.borrow().values().cloned().collect()
    }

    /// Whether its weights have shapes and no values of their own.
    pub fn has_sizes_only(&self) -> bool {
        matches!(*self.source, Source::Sizes)
    }

    /// Values in all weights so far.
    pub fn total(&self) -> usize {
        self.total.get()
    }

    /// Counts a weight, or other memory of a policy, before the allocation.
    pub fn reserve(&self, name: &str, shape: &[usize]) -> Result<()> {
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        let total = self.total.get().saturating_add(count);
        if total > MAX_NUMBERS {
            let bytes = (total as u64).saturating_mul(4);
            return Err(Error::out_of_memory(format!("weights up to {name}"), bytes));
        }
        self.total.set(total);
        Ok(())
    }

    /// The weights handed out. A stored weight that no layer requested is a mismatch.
    pub fn finish(self) -> Result<Weights> {
        let taken = self.taken.take();
        if let Source::Stored(stored) = &*self.source
            && let Some(extra) = stored.keys().find(|name| !taken.contains_key(*name))
        {
            return Err(Error::mismatch(
                "weights",
                "those of the spec",
                format!("{extra} besides"),
            ));
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::tape;

    #[test]
    fn a_spec_that_exceeds_the_limit_is_refused_before_it_allocates() {
        let b = Builder::new(Source::Seed(1), false);
        let huge = b.get("w", &[1 << 18, 1 << 16], Init::Constant(0.0));
        assert!(matches!(huge, Err(Error::OutOfMemory { bytes, .. }) if bytes == 1 << 36));
        let overflow = b.get("w", &[usize::MAX, 3], Init::Constant(0.0));
        assert!(matches!(overflow, Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn a_gradient_is_read_flat_and_replaced_in_every_form() -> Result<()> {
        let there_and_back = |dtype| {
            let w = tensor::tensor(vec![1.0; 6], (2, 3))?.to_dtype(dtype)?;
            let w = Weight::from(Var::from_tensor(&w)?.into_inner());
            assert_eq!(tensor::to_vec(&w.flat_gradient()?)?, [0.0; 6]);
            let x = tensor::tensor(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3))?.to_dtype(dtype)?;
            let _tape = tape::record();
            let y = (&*w * x)?.sum_all()?;
            w.gather(&tape::backward(&y, y.ones_like()?)?)?;
            let flat = w.flat_gradient()?;
            assert_eq!(tensor::to_vec(&flat)?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            w.set_gradient(&(flat * 2.0)?)?;
            let doubled = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0];
            assert_eq!(w.read_gradient(<[f32]>::to_vec)?, doubled);
            w.forget();
            assert_eq!(tensor::to_vec(&w.flat_gradient()?)?, [0.0; 6]);
            Ok(())
        };
        there_and_back(DType::F32)?;
        there_and_back(DType::F64)
    }

    #[test]
    fn packed_rows_of_a_frozen_weight_do_not_follow_its_training() -> Result<()> {
        let trained = Builder::new(Source::Seed(1), true);
        trained.get("w", &[3, 5], Init::Normal(1.0))?;
        let trained = trained.finish()?;
        let frozen = Builder::new(Source::Stored(trained.clone()), false);
        let frozen = frozen.get("w", &[3, 5], Init::Constant(0.0))?;
        let x = tensor::tensor(vec![1.0; 5 * WORTH_PACKING], (WORTH_PACKING, 5))?;
        let y = || {
            let y = crate::linear(&x, &frozen, None, crate::Activation::None)?;
            Ok::<_, Error>((tensor::to_vec(&y)?, tensor::to_vec(&frozen)?))
        };
        let before = y()?;
        tensor::update(&trained["w"], |w| w.fill(7.0))?;
        assert_eq!(y()?, before);
        Ok(())
    }

    #[test]
    fn a_weight_that_is_not_trained_accumulates_no_gradient() -> Result<()> {
        let weight = Weight::from(tensor::tensor(vec![2.0; 6], (2, 3))?);
        let x = Var::from_tensor(&tensor::tensor(vec![1.0; 3], (1, 3))?)?;
        let _tape = tape::record();
        let y = crate::linear(&x, &weight, None, crate::Activation::None)?;
        let store = tape::backward(&y, y.ones_like()?)?;
        assert_eq!(store.get(&x).map(tensor::to_vec).transpose()?, Some(vec![4.0; 3]));
        assert!(!weight.gather(&store)? && weight.gradient(|g| g.is_empty()));
        Ok(())
    }
}
