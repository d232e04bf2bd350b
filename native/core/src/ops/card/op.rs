//! Ops of any number of tensors on a card, in a graph whose ops have three.

use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::cuda_backend::CudaStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, DType, InplaceOp1, Layout, Result, Shape, Tensor,
    bail,
};

use super::launch::unwritten;
use crate::ops::many;

/// What such an op computes. All tensors that it is given are contiguous and part of no graph.
pub trait Op: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// The output, a tensor of its own, and what a backward pass needs besides inputs and output; before that, where
    /// there is more than one, the other outputs ([`apply_all`]). `track` says that a backward pass may follow.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)>;

    /// The gradients of the inputs, each as its input is in shape and type; what is not wanted may be `None`.
    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>>;
}

/// What an op's backward pass has.
pub struct Pass<'a> {
    pub inputs: &'a [Tensor],
    pub kept: &'a [Tensor],
    pub y: &'a Tensor,
    pub dy: &'a Tensor,
    /// Of the other outputs, those that have a gradient.
    pub d_others: &'a [Option<Tensor>],
    pub wanted: &'a [bool],
}

/// The output of an op.
pub fn apply(op: impl Op, inputs: &[&Tensor]) -> crate::Result<Tensor> {
    let [y] = apply_all(op, inputs)?;
    Ok(y)
}

/// All N outputs of an op.
///
/// Candle's graph has an edge for each of up to three inputs that want a gradient. Where there are more, the first
/// ones are tied together one by one by a number that means nothing, the token, which is the last edge in their place:
///
/// ```text
/// input 0 -> tie -> tie -> op -> y
///       input 1 ----^      ^--- inputs 2, 3
/// ```
///
/// Outputs but the first hang on that one, so that their gradients are known before the op's turn comes.
pub fn apply_all<const N: usize>(op: impl Op, inputs: &[&Tensor]) -> crate::Result<[Tensor; N]> {
    let tensors = inputs.iter().map(|t| t.contiguous()).collect::<Result<Vec<_>>>()?;
    let wanted: Vec<bool> = tensors.iter().map(Tensor::track_op).collect();
    let values: Vec<Tensor> = tensors.iter().map(Tensor::detach).collect();
    let edges: Vec<usize> = (0..tensors.len()).filter(|&i| wanted[i]).collect();
    let (y, mut kept) = op.forward(&values, !edges.is_empty())?;
    let others: Vec<Tensor> = kept.drain(..kept.len().min(N - 1)).collect();
    if edges.is_empty() {
        return many::take([vec![y], others].concat());
    }
    let shape = y.shape().clone();
    let own = Arc::new(Applied {
        op: Box::new(op),
        inputs: values,
        kept,
        wanted,
        y: Mutex::new(Some((taken(&y)?, shape))),
        d_others: Mutex::new(vec![None; others.len()]),
        gradients: Mutex::new(vec![]),
    });
    let node = |edges: &[usize]| Node { own: own.clone(), edges: edges.to_vec() };
    let (tied, last) = edges.split_at(if edges.len() > 3 { edges.len() - 2 } else { 0 });
    let mut token: Option<Tensor> = None;
    for &input in tied {
        let tie = Tie { own: own.clone(), input };
        token = Some(match &token {
            Some(token) => tensors[input].apply_op2(token, tie)?,
            None => tensors[input].apply_op1(tie)?,
        });
    }
    let input = |i: usize| &tensors[last[i]];
    let y = match (last.len(), &token) {
        (1, _) => input(0).apply_op1(node(last))?,
        (2, None) => input(0).apply_op2(input(1), node(last))?,
        (2, Some(token)) => input(0).apply_op3(input(1), token, node(last))?,
        _ => input(0).apply_op3(input(1), input(2), node(last))?,
    };
    let mut outputs = vec![y.clone()];
    for (output, other) in others.iter().enumerate() {
        let numbers = Mutex::new(Some((taken(other)?, other.shape().clone())));
        outputs.push(y.apply_op1(Other { own: own.clone(), output, numbers })?);
    }
    many::take(outputs)
}

/// One application of an op.
struct Applied {
    op: Box<dyn Op>,
    inputs: Vec<Tensor>,
    kept: Vec<Tensor>,
    wanted: Vec<bool>,
    y: Mutex<Option<(CudaStorage, Shape)>>,
    d_others: Mutex<Vec<Option<Tensor>>>,
    gradients: Mutex<Vec<Option<Tensor>>>,
}

impl Applied {
    fn output(&self) -> Result<(CudaStorage, Shape)> {
        self.once(&self.y)
    }

    fn once(&self, numbers: &Mutex<Option<(CudaStorage, Shape)>>) -> Result<(CudaStorage, Shape)> {
        match lock(numbers).take() {
            Some(numbers) => Ok(numbers),
            None => bail!("{}: an output was taken twice", self.op.name()),
        }
    }

    fn backward(&self, y: &Tensor, dy: &Tensor) -> Result<()> {
        let Applied { inputs, kept, wanted, .. } = self;
        let dy = dy.contiguous()?.detach();
        let d_others: Vec<_> = lock(&self.d_others).iter_mut().map(Option::take).collect();
        let pass = Pass { inputs, kept, y: &y.detach(), dy: &dy, d_others: &d_others, wanted };
        let gradients = self.op.backward(&pass)?;
        *lock(&self.gradients) = gradients;
        Ok(())
    }

    fn gradient(&self, input: usize) -> Option<Tensor> {
        lock(&self.gradients).get_mut(input).and_then(Option::take)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The numbers of a tensor that nobody else has.
fn taken(y: &Tensor) -> Result<CudaStorage> {
    struct Take(Mutex<Option<CudaStorage>>);
    impl InplaceOp1 for Take {
        fn name(&self) -> &'static str {
            "take"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            bail!("this op runs on a card only")
        }

        fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
            let device = storage.device.clone();
            // SAFETY: nobody reads it.
            let nothing = unsafe { device.alloc::<u8>(1) }?;
            let nothing = CudaStorage::wrap_cuda_slice(nothing, device);
            *lock(&self.0) = Some(std::mem::replace(storage, nothing));
            Ok(())
        }
    }
    let take = Take(Mutex::new(None));
    y.inplace_op1(&take)?;
    match take.0.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(storage) => Ok(storage),
        None => bail!("a tensor has no numbers"),
    }
}

struct Node {
    own: Arc<Applied>,
    edges: Vec<usize>,
}

struct Tie {
    own: Arc<Applied>,
    input: usize,
}

/// An output beside the first one.
struct Other {
    own: Arc<Applied>,
    output: usize,
    numbers: Mutex<Option<(CudaStorage, Shape)>>,
}

macro_rules! on_card {
    ($($layout:ident),* => $output:expr) => {
        fn name(&self) -> &'static str {
            self.own.op.name()
        }

        fn cpu_fwd(&self, $(_: &CpuStorage, $layout: &Layout),*) -> Result<(CpuStorage, Shape)> {
            bail!("this op runs on a card only")
        }

        fn cuda_fwd(&self, $(_: &CudaStorage, $layout: &Layout),*) -> Result<(CudaStorage, Shape)> {
            $output(&self.own)
        }
    };
}

impl Node {
    /// The gradients of its edges; the last one may be the token's.
    fn gradients<const N: usize>(
        &self,
        args: [&Tensor; N],
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; N]> {
        self.own.backward(y, dy)?;
        let mut edges = self.edges.iter();
        Ok(args.map(|arg| match edges.next() {
            Some(&input) => self.own.gradient(input),
            None => Some(arg.detach()),
        }))
    }
}

impl CustomOp1 for Node {
    on_card!(_a => Applied::output);

    fn bwd(&self, a: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        self.gradients([a], y, dy).map(|[a]| a)
    }
}

impl CustomOp2 for Node {
    on_card!(_a, _b => Applied::output);

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.gradients([a, b], y, dy).map(|[a, b]| (a, b))
    }
}

impl CustomOp3 for Node {
    on_card!(_a, _b, _c => Applied::output);

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.gradients([a, b, c], y, dy).map(|[a, b, c]| (a, b, c))
    }
}

/// Its number is never read.
fn token(own: &Applied) -> Result<(CudaStorage, Shape)> {
    let Some(beside) = own.inputs.first() else { bail!("{} has no inputs", own.op.name()) };
    Ok((taken(&unwritten(1, DType::F32, beside)?)?, Shape::from(1)))
}

impl CustomOp1 for Tie {
    on_card!(_a => token);

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(self.own.gradient(self.input))
    }
}

impl CustomOp2 for Tie {
    on_card!(_a, _b => token);

    fn bwd(
        &self,
        _: &Tensor,
        token: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.own.gradient(self.input), Some(token.detach())))
    }
}

impl CustomOp1 for Other {
    fn name(&self) -> &'static str {
        self.own.op.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this op runs on a card only")
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.own.once(&self.numbers)
    }

    /// The first output gets a gradient in any case: without one its op's turn would not come.
    fn bwd(&self, y: &Tensor, _: &Tensor, d: &Tensor) -> Result<Option<Tensor>> {
        if let Some(place) = lock(&self.own.d_others).get_mut(self.output) {
            *place = Some(d.contiguous()?.detach());
        }
        Ok(Some(y.zeros_like()?))
    }
}
