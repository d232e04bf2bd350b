//! Functions of each number on its own, and gates.

use candle_core::{D, DType, Result, Tensor, bail};
use sconce_cuda::kernels::ACTIVATION;

use super::launch::{Launch, output, suffix, unwritten};
use super::norm::sum_parts;
use super::op::{Op, Pass, apply};
use crate::ops::{Activation, tensor};

/// Threads of a block, and numbers of each.
const THREADS: usize = 256;
const EACH: usize = 2;
/// Columns, and rows at a time, of a block that sums columns, and rows of a part.
const COLUMNS: usize = 32;
const LINES: usize = 8;
const ROWS: usize = 256;

pub fn activate(x: &Tensor, activation: Activation) -> crate::Result<Tensor> {
    apply(Activate(activation), &[x])
}

/// `activation(x + bias)`, `bias [d]`
pub fn biased(x: &Tensor, bias: &Tensor, activation: Activation) -> crate::Result<Tensor> {
    apply(Activate(activation), &[x, &bias.to_dtype(x.dtype())?])
}

pub fn gated(x: &Tensor, gate: &Tensor, activation: Activation) -> crate::Result<Tensor> {
    apply(Gated(activation), &[x, gate])
}

pub fn glu(x: &Tensor, activation: Activation) -> crate::Result<Tensor> {
    apply(Glu(activation), &[x])
}

fn launch(op: &str, step: &str, x: &Tensor) -> Result<Launch> {
    Launch::of(ACTIVATION, &format!("{op}_{}_{step}", suffix(x)), x)
}

/// Of `n` numbers, with the activation that ends the arguments of all.
fn run(launch: Launch, n: usize, activation: Activation) -> Result<()> {
    let launch = launch.int(activation as usize);
    // SAFETY: as activation.cu says: a thread for EACH numbers.
    unsafe { launch.run([n.div_ceil(THREADS * EACH), 1, 1], [THREADS, 1, 1], 0) }
}

fn like(x: &Tensor) -> Result<Tensor> {
    unwritten(x.shape(), x.dtype(), x)
}

struct Activate(Activation);

impl Activate {
    /// The gradients of numbers, which without an activation are those of the sum, and of their bias.
    fn with_bias(&self, x: &Tensor, bias: &Tensor, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let (rows, d) = tensor::rows(x.dims());
        let dx = (self.0 != Activation::None).then(|| like(x)).transpose()?;
        let parts = unwritten((rows.div_ceil(ROWS), d), DType::F32, x)?;
        let blocks = [d.div_ceil(COLUMNS), rows.div_ceil(ROWS), 1];
        let launch = launch("activation", "bias_parts", x)?.tensor(x)?.tensor(bias)?.tensor(dy)?;
        let launch = launch.option(dx.as_ref())?.tensor(&parts)?.long(rows).int(d);
        // SAFETY: as activation.cu says: a block for COLUMNS of each part.
        unsafe { launch.int(self.0 as usize).run(blocks, [COLUMNS, LINES, 1], 0) }?;
        let dbias = sum_parts(&parts)?.to_dtype(bias.dtype())?;
        Ok(vec![Some(dx.unwrap_or_else(|| dy.clone())), Some(dbias)])
    }
}

impl Op for Activate {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, bias @ ..] = inputs else { bail!("a function has an argument") };
        let (y, n) = (output(x.shape(), x.dtype(), x, track)?, x.elem_count());
        let launch = launch("activation", "forward", x)?.tensor(x)?.option(bias.first())?;
        run(launch.tensor(&y)?.long(n).int(tensor::rows(x.dims()).1), n, self.0)?;
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        match pass.inputs {
            [x, bias] => self.with_bias(x, bias, pass.dy),
            [x] => {
                let (dx, n) = (like(x)?, x.elem_count());
                let launch = launch("activation", "backward", x)?.tensor(x)?.tensor(pass.dy)?;
                run(launch.tensor(&dx)?.long(n), n, self.0)?;
                Ok(vec![Some(dx)])
            }
            _ => bail!("a function has an argument"),
        }
    }
}

struct Gated(Activation);

impl Op for Gated {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, gate] = inputs else { bail!("a product has a gate") };
        let (y, n) = (output(x.shape(), x.dtype(), x, track)?, x.elem_count());
        let launch = launch("gated", "forward", x)?.tensor(x)?.tensor(gate)?;
        run(launch.tensor(&y)?.long(n), n, self.0)?;
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let [x, gate] = pass.inputs else { bail!("a product has a gate") };
        let (dx, dgate, n) = (like(x)?, like(gate)?, x.elem_count());
        let launch = launch("gated", "backward", x)?.tensor(x)?.tensor(gate)?.tensor(pass.dy)?;
        run(launch.tensor(&dx)?.tensor(&dgate)?.long(n), n, self.0)?;
        Ok(vec![Some(dx), Some(dgate)])
    }
}

/// Of two halves that lie side by side.
struct Glu(Activation);

impl Op for Glu {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x] = inputs else { bail!("a gated linear unit has an argument") };
        let mut dims = x.dims().to_vec();
        let d = x.dim(D::Minus1)? / 2;
        if let Some(last) = dims.last_mut() {
            *last = d;
        }
        let y = output(dims, x.dtype(), x, track)?;
        let (launch, n) = (launch("glu", "forward", x)?.tensor(x)?, y.elem_count());
        run(launch.tensor(&y)?.long(n).int(d), n, self.0)?;
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x], dy) = (pass.inputs, pass.dy) else {
            bail!("a gated linear unit has an argument")
        };
        let (dx, n) = (like(x)?, dy.elem_count());
        let launch = launch("glu", "backward", x)?.tensor(x)?.tensor(dy)?.tensor(&dx)?;
        run(launch.long(n).int(dy.dim(D::Minus1)?), n, self.0)?;
        Ok(vec![Some(dx)])
    }
}
