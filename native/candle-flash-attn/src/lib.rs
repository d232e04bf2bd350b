//! Flash attention 2 (Dao 2023) on NVIDIA cards, forward: in the place of the crate of that name.
//!
//! The kernels are those of `candle-flash-attn` 0.11.1. They are launched as kernels of any other PTX are, on the
//! stream of the device and by the driver alone: nothing links with CUDA's runtime, and a launch that fails is an error.
//! Left out is what Sconce does not have: other heads, masks but the causal one, rows of keys that several heads of
//! queries share.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaDType, CudaStorage, WrapErr};
use candle_core::{CpuStorage, CudaDevice, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};
use half::{bf16, f16};

/// Numbers of a head that there are kernels for.
const HEADS: [usize; 3] = [32, 64, 128];
/// Batches and heads, at most.
const MOST: usize = 65_535;

/// Queries of a block, keys that it looks at together, and its threads, as in forward.cuh.
const ROWS: usize = 64;
const COLUMNS: usize = 64;
const THREADS: u32 = 128;

/// `softmax(softmax_scale q k^T) v` of each head: `q`, `k` and `v`, and so the result, are `[batch, time, heads,
/// head_dim]` of f16 or bf16 on a card, with the numbers of a head side by side. A query sees the keys up to its own:
/// there is no kernel that is not `causal`.
pub fn flash_attn(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    if !causal {
        bail!("flash attention is built for causal masks alone")
    }
    q.apply_op3_no_bwd(k, v, &FlashAttention { softmax_scale })
}

struct FlashAttention {
    softmax_scale: f32,
}

impl FlashAttention {
    fn forward<T: CudaDType + DeviceRepr>(
        &self,
        device: &CudaDevice,
        [q, k, v]: [(&CudaStorage, &Layout); 3],
        (kernels, ptx): (&str, &str),
    ) -> Result<(CudaStorage, Shape)> {
        let shape = q.1.shape();
        let (batch, time, heads, head_dim) = shape.dims4()?;
        if !HEADS.contains(&head_dim) || batch.max(heads) > MOST || shape.elem_count() == 0 {
            bail!("flash attention is not built for {shape:?}")
        }
        for (_, layout) in [k, v] {
            if layout.shape() != shape {
                bail!("flash attention of queries {shape:?}, and {:?}", layout.shape())
            }
        }
        // SAFETY: the kernel writes all of both before anybody reads them.
        let (y, log_sums) = unsafe {
            (device.alloc::<T>(shape.elem_count())?, device.alloc::<f32>(batch * heads * time)?)
        };
        let stream = device.cuda_stream();
        let (mut pointers, mut strides) = (vec![], vec![]);
        for (storage, layout) in [q, k, v] {
            let [of_batch, of_time, of_head, 1] = *layout.stride() else {
                bail!("flash attention of heads whose numbers do not lie side by side")
            };
            strides.extend([of_batch, of_time, of_head].map(|stride| stride as i64));
            let first = (layout.start_offset() * size_of::<T>()) as u64;
            pointers.push(storage.as_cuda_slice::<T>()?.device_ptr(&stream).0 + first);
        }
        pointers.extend([y.device_ptr(&stream).0, log_sums.device_ptr(&stream).0]);
        let sizes = [batch, time, heads].map(|size| size as i32);

        let name = format!("{kernels}_{head_dim}");
        let kernel = device.get_or_load_custom_func(&name, kernels, ptx)?.into_cuda_function();
        let mut launch = stream.launch_builder(&kernel);
        for pointer in &pointers {
            launch.arg(pointer);
        }
        for stride in &strides {
            launch.arg(stride);
        }
        for size in &sizes {
            launch.arg(size);
        }
        launch.arg(&self.softmax_scale);
        let config = LaunchConfig {
            grid_dim: (time.div_ceil(ROWS) as u32, batch as u32, heads as u32),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: (2 * head_dim * (ROWS + 2 * COLUMNS)) as u32,
        };
        // SAFETY: as forward.cuh says. What is freed meanwhile is freed in the stream's order, behind this.
        unsafe { launch.launch(config) }.w()?;
        Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), shape.clone()))
    }
}

impl CustomOp3 for FlashAttention {
    fn name(&self) -> &'static str {
        "flash-attention"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        bail!("flash attention runs on a card only")
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let given = [(q, q_layout), (k, k_layout), (v, v_layout)];
        match q.dtype() {
            DType::BF16 => self.forward::<bf16>(q.device(), given, BF16),
            DType::F16 => self.forward::<f16>(q.device(), given, F16),
            other => bail!("flash attention of numbers of {other:?}"),
        }
    }
}

/// What the kernels of a type are called, and their text.
const BF16: (&str, &str) =
    ("flash_attention_bf16", include_str!(concat!(env!("OUT_DIR"), "/bf16.ptx")));
const F16: (&str, &str) =
    ("flash_attention_f16", include_str!(concat!(env!("OUT_DIR"), "/f16.ptx")));
