//! No memory: each frame on its own.

use std::mem;

use sconce_core::Result;
use sconce_core::ops::Activation;
use sconce_core::ops::simd::add_assign;
use sconce_core::spec::MlpConfig;

use crate::arena::Packer;
use crate::gemv::Matrix;
use crate::norm::Norm;
use crate::scratch::Scratch;

/// Per layer `relu(norm(dense(x))) + skip`, as in `sconce_core::backbone::Mlp`.
pub struct Mlp {
    layers: Vec<Layer>,
}

struct Layer {
    dense: Matrix,
    norm: Option<Norm>,
    skip: Skip,
}

enum Skip {
    None,
    Same,
    Projected(Matrix),
}

impl Mlp {
    pub fn new(config: &MlpConfig, input: usize, packer: &mut Packer) -> Result<Self> {
        let mut width = input;
        let mut layers = Vec::with_capacity(config.hidden_sizes.len());
        for (i, &size) in config.hidden_sizes.iter().enumerate() {
            let name = format!("backbone.layers.{i}");
            let dense = Matrix::dense(packer, &format!("{name}.dense"))?;
            let norm = Norm::layer(config.layer_norm, packer, &format!("{name}.norm"))?;
            let skip = match config.residual {
                false => Skip::None,
                true if i == 0 || size != width => {
                    Skip::Projected(Matrix::dense(packer, &format!("{name}.proj"))?)
                }
                true => Skip::Same,
            };
            layers.push(Layer { dense, norm, skip });
            width = size;
        }
        Ok(Mlp { layers })
    }

    /// From `scratch.x` to the same.
    pub fn step(&self, arena: &[f32], scratch: &mut Scratch, input: usize) {
        let mut width = input;
        for layer in &self.layers {
            layer.step(arena, scratch, width);
            width = layer.dense.outputs();
        }
    }
}

impl Layer {
    fn step(&self, arena: &[f32], scratch: &mut Scratch, width: usize) {
        let Scratch { x, y, z, active } = scratch;
        let n = self.dense.outputs();
        active.read(&x[..width]);
        match &self.norm {
            None => self.dense.relu(arena, active, y),
            Some(norm) => {
                self.dense.apply(arena, active, z);
                norm.apply(arena, &z[..n], &mut y[..n]);
                Activation::Relu.apply(&mut y[..n]);
            }
        }
        match &self.skip {
            Skip::None => {}
            Skip::Same => add_assign(&mut y[..n], &x[..n]),
            Skip::Projected(projection) => {
                projection.apply(arena, active, z);
                add_assign(&mut y[..n], &z[..n]);
            }
        }
        mem::swap(x, y);
    }
}
