//! Times a training step, forward and backward pass without an optimiser, of two small networks with a batch of 64 on
//! one thread: a keyword spotter and a reader of text lines. `bench/convolutions/step.py` times them in PyTorch.
//!
//!     cargo run --release -p sconce-ops --example convolutions

use std::time::Instant;

use candle_core::{Device, Tensor, Var};
use sconce_ops::arrange::reshape;
use sconce_ops::weights::Weight;
use sconce_ops::{
    Activation, BatchNorm, Kernel, Pooling, activate, batch_norm, convolution, global_pooling,
    linear, pooling,
};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Result, pool, tape};

const BATCH: usize = 64;
const TRIALS: usize = 60;

fn noise(shape: &[usize], seed: u64) -> Result<Tensor> {
    let rng = Rng::new(seed, "example", 0);
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count as u64).map(|i| 0.1 * rng.normal(i)).collect();
    Ok(Tensor::from_vec(data, shape, &Device::Cpu)?)
}

fn weight(shape: &[usize]) -> Result<Weight> {
    Ok(Var::from_tensor(&noise(shape, 1)?)?.into_inner().into())
}

/// A convolution with its batch normalisation, ReLU and maximum of two positions on each axis.
struct Block {
    weight: Weight,
    bias: Weight,
    kernel: Kernel,
    groups: usize,
    norm: Option<BatchNorm>,
    pool: Option<Kernel>,
}

impl Block {
    /// A block of kernels of three positions on each of `rank` axes.
    fn new(
        [inputs, filters, groups]: [usize; 3],
        rank: usize,
        norms: bool,
        pools: bool,
    ) -> Result<Self> {
        let list = |n: usize| vec![n; rank];
        let shape = [vec![filters, inputs / groups], list(3)].concat();
        let norm = || -> Result<BatchNorm> {
            Ok(BatchNorm {
                weight: weight(&[filters])?,
                bias: weight(&[filters])?,
                running_mean: noise(&[filters], 2)?,
                running_var: noise(&[filters], 3)?,
                eps: 1e-5,
                momentum: 0.1,
            })
        };
        Ok(Block {
            weight: weight(&shape)?,
            bias: weight(&[filters])?,
            kernel: Kernel::new(&list(3), &list(1), &list(1), &list(1))?,
            groups,
            norm: if norms { Some(norm()?) } else { None },
            pool: if pools {
                Some(Kernel::new(&list(2), &list(2), &list(0), &list(1))?)
            } else {
                None
            },
        })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = convolution(x, &self.weight, Some(&self.bias), self.kernel, self.groups)?;
        if let Some(norm) = &self.norm {
            y = batch_norm(&y, norm)?;
        }
        y = activate(&y, Activation::Relu)?;
        match self.pool {
            Some(kernel) => pooling(&y, Pooling::Max, kernel),
            None => Ok(y),
        }
    }
}

struct Net {
    input: Vec<usize>,
    blocks: Vec<Block>,
    is_global: bool,
    head: Weight,
}

impl Net {
    fn step(&self, x: &Tensor) -> Result<()> {
        let _tape = tape::record();
        let mut y = x.clone();
        for block in &self.blocks {
            y = block.apply(&y)?;
        }
        y = match self.is_global {
            true => global_pooling(&y, Pooling::Mean { counted: true })?,
            false => {
                let width = y.elem_count() / BATCH;
                reshape(&y, [BATCH, width])?
            }
        };
        let y = linear(&y, &self.head, None, Activation::None)?;
        let gradients = tape::backward(&y, y.ones_like()?)?;
        let norms = self.blocks.iter().flat_map(|b| &b.norm).flat_map(|n| [&n.weight, &n.bias]);
        let own = self.blocks.iter().flat_map(|block| [&block.weight, &block.bias]);
        for weight in norms.chain(own).chain([&self.head]) {
            assert!(weight.gather(&gradients)?);
            weight.forget();
        }
        Ok(())
    }

    /// The median time of a step in milliseconds.
    fn time(&self) -> Result<f64> {
        let x = noise(&[&[BATCH], &self.input[..]].concat(), 4)?;
        let mut times = vec![];
        for _ in 0..TRIALS {
            let start = Instant::now();
            self.step(&x)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[TRIALS / 2])
    }
}

fn main() -> Result<()> {
    pool::keep_libraries_single_threaded();
    pool::set_threads(1)?;
    let nets = [
        (
            "keyword",
            Net {
                input: vec![40, 49],
                blocks: vec![
                    Block::new([40, 64, 1], 1, true, true)?,
                    Block::new([64, 64, 1], 1, true, true)?,
                    Block::new([64, 64, 1], 1, true, false)?,
                ],
                is_global: true,
                head: weight(&[12, 64])?,
            },
        ),
        (
            "text",
            Net {
                input: vec![1, 32, 128],
                blocks: vec![
                    Block::new([1, 32, 1], 2, true, true)?,
                    Block::new([32, 64, 1], 2, true, true)?,
                    Block::new([64, 64, 1], 2, true, true)?,
                ],
                is_global: false,
                head: weight(&[37, 64 * 4 * 16])?,
            },
        ),
        (
            "depthwise",
            Net {
                input: vec![32, 48, 48],
                blocks: vec![Block::new([32, 32, 32], 2, false, false)?],
                is_global: true,
                head: weight(&[12, 32])?,
            },
        ),
    ];
    for (name, net) in nets {
        println!("{name} {:.3} ms", net.time()?);
    }
    Ok(())
}
