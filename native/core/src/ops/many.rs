//! Ops of any number of inputs and outputs, in a graph whose ops have three and one.
//!
//! Numbers and gradients stay in a shared place; candle's graph is given one number per edge, so
//! that it walks them in the right order and nothing is joined or cut apart for its sake:
//!
//! ```text
//! input 0 -> tie -> tie -> .. -> core -> output 0
//!       input 1 ----^              `---> output 1
//! ```

use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::tensor;

/// An output: its numbers and their shape.
pub type Numbers = (Vec<f32>, Shape);

/// What such an op computes.
pub trait Many: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// All outputs; `track` says that a backward pass may follow.
    fn forward(&self, inputs: &[&[f32]], track: bool) -> Vec<Numbers>;

    /// Gradients of the inputs from those of the outputs; `None` for an output that nothing used.
    /// Empty for what is not `wanted`, or was left where it belongs ([`crate::weights::Weight`]).
    fn backward(
        &self,
        inputs: &[&[f32]],
        outputs: &[Option<&[f32]>],
        wanted: &[bool],
    ) -> Vec<Vec<f32>>;
}

/// The outputs of an op.
pub fn apply(op: impl Many, inputs: &[&Tensor]) -> crate::Result<Vec<Tensor>> {
    let tensors = inputs.iter().map(|t| t.contiguous()).collect::<Result<Vec<_>>>()?;
    let wanted: Vec<bool> = tensors.iter().map(Tensor::track_op).collect();
    let track = wanted.contains(&true);
    let values = tensors.iter().map(Tensor::detach).collect::<Vec<_>>();
    let outputs = tensor::with_all(&values, |inputs| Ok(op.forward(inputs, track)))?;
    if !track {
        let wrap = |(data, shape)| Ok(tensor::tensor(data, shape)?);
        return outputs.into_iter().map(wrap).collect();
    }
    let count = outputs.len();
    let place = Arc::new(Place {
        op: Box::new(op),
        inputs: values,
        wanted,
        outputs: Mutex::new(outputs.into_iter().map(Some).collect()),
        d_outputs: Mutex::new(vec![None; count]),
        d_inputs: Mutex::new(vec![]),
    });
    let mut token: Option<Tensor> = None;
    for (input, tensor) in tensors.iter().enumerate().filter(|(i, _)| place.wanted[*i]) {
        let tie = Tie { place: place.clone(), input };
        token = Some(match token {
            Some(token) => tensor.apply_op2(&token, tie)?,
            None => tensor.apply_op1(tie)?,
        });
    }
    let Some(token) = token else { return Ok(vec![]) };
    let core = token.apply_op1(Core { place: place.clone() })?;
    let output = |output| Ok(core.apply_op1(Output { place: place.clone(), output })?);
    (0..count).map(output).collect()
}

/// So many outputs as an op has.
pub fn take<const N: usize>(outputs: Vec<Tensor>) -> crate::Result<[Tensor; N]> {
    let count = outputs.len();
    outputs.try_into().map_err(|_| crate::Error::mismatch("outputs of an op", N, count))
}

/// Where the numbers and gradients of one application lie.
struct Place {
    op: Box<dyn Many>,
    inputs: Vec<Tensor>,
    wanted: Vec<bool>,
    outputs: Mutex<Vec<Option<Numbers>>>,
    d_outputs: Mutex<Vec<Option<Tensor>>>,
    d_inputs: Mutex<Vec<Vec<f32>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn token() -> Result<(CpuStorage, Shape)> {
    Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
}

struct Tie {
    place: Arc<Place>,
    input: usize,
}

impl Tie {
    fn gradient(&self) -> Result<Option<Tensor>> {
        let gradient = lock(&self.place.d_inputs).get_mut(self.input).map(std::mem::take);
        let shape = self.place.inputs[self.input].shape();
        let gradient = gradient.filter(|gradient| gradient.len() == shape.elem_count());
        gradient.map(|gradient| tensor::tensor(gradient, shape)).transpose()
    }
}

impl CustomOp1 for Tie {
    fn name(&self) -> &'static str {
        self.place.op.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        token()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        self.gradient()
    }
}

impl CustomOp2 for Tie {
    fn name(&self) -> &'static str {
        self.place.op.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        token()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        d: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.gradient()?, Some(d.clone())))
    }
}

struct Core {
    place: Arc<Place>,
}

impl CustomOp1 for Core {
    fn name(&self) -> &'static str {
        self.place.op.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        token()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, d: &Tensor) -> Result<Option<Tensor>> {
        let place = &self.place;
        let given: Vec<_> = lock(&place.d_outputs).iter_mut().map(Option::take).collect();
        let tensors: Vec<Tensor> = given.iter().flatten().cloned().collect();
        let gradients = tensor::with_all(&tensors, |slices| {
            let mut slices = slices.iter().copied();
            let d_outputs: Vec<_> =
                given.iter().map(|g| g.as_ref().and_then(|_| slices.next())).collect();
            tensor::with_all(&place.inputs, |inputs| {
                Ok(place.op.backward(inputs, &d_outputs, &place.wanted))
            })
        })?;
        *lock(&place.d_inputs) = gradients;
        Ok(Some(d.clone()))
    }
}

struct Output {
    place: Arc<Place>,
    output: usize,
}

impl CustomOp1 for Output {
    fn name(&self) -> &'static str {
        self.place.op.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match lock(&self.place.outputs)[self.output].take() {
            Some((data, shape)) => Ok((CpuStorage::F32(data), shape)),
            None => bail!("{}: an output was taken twice", self.place.op.name()),
        }
    }

    fn bwd(&self, token: &Tensor, _: &Tensor, d: &Tensor) -> Result<Option<Tensor>> {
        lock(&self.place.d_outputs)[self.output] = Some(d.contiguous()?.detach());
        Ok(Some(token.detach()))
    }
}
