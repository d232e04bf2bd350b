//! Conversions between candle's tensors and slices.

use std::fmt::Display;
use std::sync::Mutex;

use candle_core::{
    CpuStorage, DType, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, bail,
};

use crate::{Error, elements, memory, pool, simd};

/// Checks that memory for a tensor as large as all these together can be allocated. Call it before candle allocates,
/// because candle cannot handle a refusal. Tensors on a card are ignored: the card reports its own errors.
pub fn granted(tensors: &[&Tensor]) {
    let here = tensors.iter().filter(|tensor| tensor.device().is_cpu());
    memory::granted(here.map(|tensor| bytes(tensor)).sum());
}

/// The size of a tensor's values in bytes.
pub fn bytes(tensor: &Tensor) -> usize {
    tensor.dtype().size_in_bytes() * tensor.elem_count()
}

/// The values of a contiguous f32 storage on a CPU.
pub fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let all = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((begin, end)) => Ok(&all[begin..end]),
        None => bail!("an op got a tensor that is not contiguous"),
    }
}

/// Calls `f` with the values of a tensor, without a copy if the tensor is contiguous.
pub fn with<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    if !tensor.is_contiguous() {
        memory::granted(bytes(tensor));
    }
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(slice(storage, layout)?),
        _ => bail!("this op runs on a CPU only"),
    }
}

/// The tensor in a contiguous layout, detached from candle's graph. Copies the values only if they are not contiguous.
pub fn contiguous(tensor: &Tensor) -> crate::Result<Tensor> {
    match tensor.is_contiguous() {
        true => Ok(tensor.detach()),
        false => copy(tensor),
    }
}

/// A copy of the tensor in a contiguous layout and in memory of its own, detached from candle's graph.
pub fn copy(tensor: &Tensor) -> crate::Result<Tensor> {
    granted(&[tensor]);
    let tensor = tensor.detach();
    // Candle copies contiguous values without a kernel.
    if tensor.device().is_cuda()
        && !tensor.is_contiguous()
        && let Some(copy) = elements::copy(&tensor)?
    {
        return Ok(copy);
    }
    Ok(tensor.force_contiguous()?)
}

/// An f32 tensor as bf16, without recording.
pub fn to_bf16(x: &Tensor) -> Result<Tensor> {
    match x.device().is_cuda() && x.is_contiguous() {
        true => elements::to_bf16(x),
        false => x.detach().to_dtype(DType::BF16),
    }
}

/// Calls `f` with the values of contiguous tensors.
pub fn with_all<R>(
    tensors: &[Tensor],
    f: impl FnOnce(&[&[f32]]) -> crate::Result<R>,
) -> crate::Result<R> {
    let held: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let slices = held.iter().map(|(storage, layout)| match &**storage {
        Storage::Cpu(storage) => slice(storage, layout),
        _ => Err(candle_core::Error::Msg("this op runs on a CPU only".into())),
    });
    f(&slices.collect::<Result<Vec<_>>>()?)
}

/// Calls `f` with the values of a tensor on any device and of any dtype. Copies the values unless they are f32 on the
/// CPU.
pub fn read<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    // A copy from a card copies the whole storage, so the tensor is made contiguous first.
    let tensor = if tensor.device().is_cpu() { tensor.clone() } else { tensor.contiguous()? };
    with(&tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?, f)
}

/// A tensor of `data` on the CPU.
pub fn tensor(data: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(data, shape.into(), &Device::Cpu)
}

/// A tensor of `data` with the device and dtype of `x`.
pub fn beside(x: &Tensor, data: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    moved(&Tensor::from_vec(data, shape.into(), x.device())?, x)
}

/// Converts the tensor to the device and dtype of `x`. A no-op if both match already.
pub fn moved(tensor: &Tensor, x: &Tensor) -> Result<Tensor> {
    tensor.to_device(x.device())?.to_dtype(x.dtype())
}

/// A tensor of zeros on the CPU.
pub fn zeros(dims: &[usize]) -> Result<Tensor> {
    tensor(memory::zeros(dims.iter().product()), dims)
}

/// Copies a tensor's values as f32 from any device.
pub fn to_vec(t: &Tensor) -> Result<Vec<f32>> {
    read(t, |s| Ok(memory::copied(s)))
}

/// The number of rows, and the width of the last dimension.
pub fn rows(dims: &[usize]) -> (usize, usize) {
    let width = dims.last().copied().unwrap_or(1);
    (dims.iter().rev().skip(1).product(), width)
}

/// Returns the shape of `x` with another last dimension.
pub fn with_width(x: &Tensor, width: usize) -> Vec<usize> {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = width;
    }
    dims
}

/// Returns `Mismatch` unless the shapes are equal; `what` names the tensor.
pub fn check_shape(what: impl Display, expected: &[usize], got: &[usize]) -> crate::Result<()> {
    match got == expected {
        true => Ok(()),
        false => {
            Err(Error::mismatch(what.to_string(), format!("{expected:?}"), format!("{got:?}")))
        }
    }
}

/// Returns `Mismatch` unless the last dimension is `width`; `what` names the tensor.
pub fn check_width(what: impl Display, width: usize, got: &[usize]) -> crate::Result<()> {
    match got.last() == Some(&width) {
        true => Ok(()),
        false => {
            Err(Error::mismatch(what.to_string(), format!("[.., {width}]"), format!("{got:?}")))
        }
    }
}

/// Changes a tensor's values in place, without recording.
pub fn update<R>(t: &Tensor, change: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    let op = Update { change: Mutex::new(Some(change)), result: Mutex::new(None) };
    t.inplace_op1(&op)?;
    match op.result.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(result) => Ok(result),
        None => bail!("an in-place update did not run"),
    }
}

struct Update<F, R> {
    change: Mutex<Option<F>>,
    result: Mutex<Option<R>>,
}

impl<R, F: FnOnce(&mut [f32]) -> R> InplaceOp1 for Update<F, R> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F32(all), Some((begin, end))) = (storage, layout.contiguous_offsets())
        else {
            bail!("only contiguous f32 tensors are updated in place")
        };
        let change = self.change.lock().unwrap_or_else(|e| e.into_inner()).take();
        let result = change.map(|change| change(&mut all[begin..end]));
        *self.result.lock().unwrap_or_else(|e| e.into_inner()) = result;
        Ok(())
    }
}

/// `x + y` of tensors with equal shapes and dtypes, without recording.
pub fn sum(x: &Tensor, y: &Tensor) -> crate::Result<Tensor> {
    granted(&[x]);
    let alike = (x.dims(), x.dtype()) == (y.dims(), y.dtype());
    if x.device().is_cuda() && alike && matches!(x.dtype(), DType::F32 | DType::BF16) {
        return Ok(elements::sum(&contiguous(x)?, &contiguous(y)?)?);
    }
    if !x.device().is_cpu() || x.dtype() != DType::F32 || x.dims() != y.dims() {
        return Ok((x.detach() + y.detach())?);
    }
    Ok(tensor(
        with_all(&[contiguous(x)?, contiguous(y)?], |terms| Ok(sum_of(terms[0], terms[1])))?,
        x.shape(),
    )?)
}

/// The sum of two slices of equal length.
pub fn sum_of(x: &[f32], y: &[f32]) -> Vec<f32> {
    const SHARD: usize = 1 << 14;
    let mut sum = memory::copied(x);
    pool::for_each_rows(&mut sum, 1, SHARD, |first, sum| {
        simd::add_assign(sum, &y[first..first + sum.len()]);
    });
    sum
}
