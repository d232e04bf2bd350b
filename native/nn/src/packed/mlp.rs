//! No memory: each frame on its own.

use std::mem;

use crate::spec::MlpConfig;
use sconce_ops::Activation;
use sconce_tensor::Result;
use sconce_tensor::simd::add_assign;

use super::layer::{Game, Layer};
use sconce_realtime::Matrix;
use sconce_realtime::Norm;
use sconce_realtime::Packer;
use sconce_realtime::Scratch;

/// Per layer `relu(norm(dense(x))) + skip`, as in `crate::backbone::Mlp`.
pub(crate) struct Mlp {
    layers: Vec<Dense>,
}

struct Dense {
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
    pub(crate) fn new(config: &MlpConfig, input: usize, packer: &mut Packer) -> Result<Self> {
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
            layers.push(Dense { dense, norm, skip });
            width = size;
        }
        Ok(Mlp { layers })
    }
}

impl Layer for Mlp {
    fn state_len(&self) -> usize {
        0
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], _at: usize, scratch: &mut Scratch) {
        for layer in &self.layers {
            layer.step(arena, games.len(), scratch);
        }
    }
}

impl Dense {
    fn step(&self, arena: &[f32], rows: usize, scratch: &mut Scratch) {
        let Scratch { x, y, z, input, .. } = scratch;
        let n = rows * self.dense.outputs();
        self.dense.read(input, x, rows);
        match &self.norm {
            None => self.dense.relu(arena, input, y),
            Some(norm) => {
                self.dense.apply(arena, input, z);
                norm.apply(arena, rows, z, y);
                Activation::Relu.apply(&mut y[..n]);
            }
        }
        match &self.skip {
            Skip::None => {}
            Skip::Same => add_assign(&mut y[..n], &x[..n]),
            Skip::Projected(projection) => {
                projection.apply(arena, input, z);
                add_assign(&mut y[..n], &z[..n]);
            }
        }
        mem::swap(x, y);
    }
}
