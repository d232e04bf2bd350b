//! Elementwise functions and gates on a card.

use candle_core::{D, DType, Result, Tensor, bail};
use sconce_cuda::kernels::ACTIVATION;

use crate::columns::card::sum_of_parts;
use crate::device::launch::{Launch, MOST_ALONG_Y, output, suffix, unwritten};
use crate::op::card::{Op, Pass, apply};
use crate::{Activation, tensor};

/// Threads of a block, and values of each thread.
const THREADS: usize = 256;
const EACH: usize = 2;
/// Columns of a block that sums columns, rows that it reads at a time, and the least rows of a part.
const COLUMNS: usize = 32;
const LINES: usize = 8;
const ROWS: usize = 256;

pub(crate) fn activate(x: &Tensor, activation: Activation) -> crate::Result<Tensor> {
    finished(x, None, activation, None)
}

/// `activation(x + bias) + rest`, `bias [d]`.
pub(crate) fn finished(
    x: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    rest: Option<&Tensor>,
) -> crate::Result<Tensor> {
    let bias = bias.map(|bias| bias.to_dtype(x.dtype())).transpose()?;
    let op = Activate { activation, bias: bias.is_some(), rest: rest.is_some() };
    if let Activate { activation: Activation::None, bias: false, rest: false } = op {
        return Ok(x.clone());
    }
    apply(op, &[x].into_iter().chain(&bias).chain(rest).collect::<Vec<_>>())
}

pub(crate) fn gated(x: &Tensor, gate: &Tensor, activation: Activation) -> crate::Result<Tensor> {
    apply(Gated(activation), &[x, gate])
}

pub(crate) fn glu(x: &Tensor, activation: Activation) -> crate::Result<Tensor> {
    apply(Glu(activation), &[x])
}

fn launch(op: &str, step: &str, x: &Tensor) -> Result<Launch> {
    Launch::of(ACTIVATION, &format!("{op}_{}_{step}", suffix(x)), x)
}

/// Runs a launch over `n` values; the activation is the last argument of every kernel.
fn run(launch: Launch, n: usize, activation: Activation) -> Result<()> {
    let launch = launch.int(activation as usize);
    // SAFETY: as activation.cu requires, a thread for EACH values.
    unsafe { launch.run([n.div_ceil(THREADS * EACH), 1, 1], [THREADS, 1, 1], 0) }
}

/// The number of parts of `rows` rows; each part is summed on its own.
fn parts_of(rows: usize) -> usize {
    rows.div_ceil(ROWS).min(MOST_ALONG_Y)
}

fn like(x: &Tensor) -> Result<Tensor> {
    unwritten(x.shape(), x.dtype(), x)
}

/// `y = activation(x + bias) + rest`.
fn finish(
    x: &Tensor,
    [bias, rest]: [Option<&Tensor>; 2],
    activation: Activation,
    y: &Tensor,
) -> Result<()> {
    if rest.is_some_and(|rest| (rest.shape(), rest.dtype()) != (x.shape(), x.dtype())) {
        bail!("{x:?} and {rest:?} have different shapes or types");
    }
    let (n, (_, d)) = (x.elem_count(), tensor::rows(x.dims()));
    let launch = launch("activation", "forward", x)?.tensor(x)?.option(bias)?.option(rest)?;
    run(launch.tensor(y)?.long(n).int(d), n, activation)
}

/// Inputs are x, and the bias and the rest where they are given.
struct Activate {
    activation: Activation,
    bias: bool,
    rest: bool,
}

impl Activate {
    /// x, the bias and the rest.
    fn parts<'a>(&self, inputs: &'a [Tensor]) -> Result<(&'a Tensor, [Option<&'a Tensor>; 2])> {
        let [x, given @ ..] = inputs else { bail!("an activation takes at least one input") };
        let mut given = given.iter();
        Ok((x, [self.bias, self.rest].map(|is| if is { given.next() } else { None })))
    }

    /// The gradients of x and of its bias; without an activation the gradient of x is `dy`.
    fn with_bias(&self, x: &Tensor, bias: &Tensor, dy: &Tensor) -> Result<[Tensor; 2]> {
        let (rows, d) = tensor::rows(x.dims());
        let dx = (self.activation != Activation::None).then(|| like(x)).transpose()?;
        let parts = unwritten((parts_of(rows), d), DType::F32, x)?;
        let blocks = [d.div_ceil(COLUMNS), parts_of(rows), 1];
        let launch = launch("activation", "bias_parts", x)?.tensor(x)?.tensor(bias)?.tensor(dy)?;
        let launch = launch.option(dx.as_ref())?.tensor(&parts)?.long(rows).int(d);
        // SAFETY: as activation.cu requires, a block for COLUMNS of each part.
        unsafe { launch.int(self.activation as usize).run(blocks, [COLUMNS, LINES, 1], 0) }?;
        let dbias = sum_of_parts(&parts)?.to_dtype(bias.dtype())?;
        Ok([dx.unwrap_or_else(|| dy.clone()), dbias])
    }

    fn without_bias(&self, x: &Tensor, dy: &Tensor) -> Result<Tensor> {
        if self.activation == Activation::None {
            return Ok(dy.clone());
        }
        let (dx, n) = (like(x)?, x.elem_count());
        let launch = launch("activation", "backward", x)?.tensor(x)?.tensor(dy)?;
        run(launch.tensor(&dx)?.long(n), n, self.activation)?;
        Ok(dx)
    }
}

impl Op for Activate {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let (x, given) = self.parts(inputs)?;
        let y = output(x.shape(), x.dtype(), x, track)?;
        finish(x, given, self.activation, &y)?;
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let (x, [bias, rest]) = self.parts(pass.inputs)?;
        let mut gradients = match bias {
            Some(bias) => self.with_bias(x, bias, pass.dy)?.into(),
            None => vec![self.without_bias(x, pass.dy)?],
        };
        gradients.extend(rest.map(|_| pass.dy.clone()));
        Ok(gradients.into_iter().map(Some).collect())
    }
}

/// `y + d x`, `d [c]`.
pub(crate) fn skip(y: &Tensor, x: &Tensor, d: &Tensor) -> crate::Result<Tensor> {
    apply(Skip, &[y, x, &d.to_dtype(x.dtype())?])
}

struct Skip;

impl Op for Skip {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [y, x, d] = inputs else { bail!("a skip takes three inputs") };
        let (z, n) = (output(y.shape(), y.dtype(), y, track)?, y.elem_count());
        let launch = launch("skip", "forward", y)?.tensor(y)?.tensor(x)?.tensor(d)?.tensor(&z)?;
        let launch = launch.long(n).int(d.elem_count());
        // SAFETY: as activation.cu requires, a thread for EACH values.
        unsafe { launch.run([n.div_ceil(THREADS * EACH), 1, 1], [THREADS, 1, 1], 0) }?;
        Ok((z, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let [_, x, d] = pass.inputs else { bail!("a skip takes three inputs") };
        let ((rows, c), dx) = (tensor::rows(x.dims()), like(x)?);
        let parts = unwritten((parts_of(rows), c), DType::F32, x)?;
        let launch = launch("skip", "parts", x)?.tensor(x)?.tensor(d)?.tensor(pass.dy)?;
        let launch = launch.tensor(&dx)?.tensor(&parts)?.long(rows).int(c);
        let blocks = [c.div_ceil(COLUMNS), parts_of(rows), 1];
        // SAFETY: as activation.cu requires, a block for COLUMNS of each part.
        unsafe { launch.run(blocks, [COLUMNS, LINES, 1], 0) }?;
        let dd = sum_of_parts(&parts)?.to_dtype(d.dtype())?;
        Ok(vec![Some(pass.dy.clone()), Some(dx), Some(dd)])
    }
}

struct Gated(Activation);

impl Op for Gated {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, gate] = inputs else { bail!("a gated product takes two inputs") };
        let (y, n) = (output(x.shape(), x.dtype(), x, track)?, x.elem_count());
        let launch = launch("gated", "forward", x)?.tensor(x)?.tensor(gate)?;
        run(launch.tensor(&y)?.long(n), n, self.0)?;
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let [x, gate] = pass.inputs else { bail!("a gated product takes two inputs") };
        let (dx, dgate, n) = (like(x)?, like(gate)?, x.elem_count());
        let launch = launch("gated", "backward", x)?.tensor(x)?.tensor(gate)?.tensor(pass.dy)?;
        run(launch.tensor(&dx)?.tensor(&dgate)?.long(n), n, self.0)?;
        Ok(vec![Some(dx), Some(dgate)])
    }
}

/// A gated product of two halves that lie side by side.
struct Glu(Activation);

impl Op for Glu {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x] = inputs else { bail!("a gated linear unit takes one input") };
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
            bail!("a gated linear unit takes one input")
        };
        let (dx, n) = (like(x)?, dy.elem_count());
        let launch = launch("glu", "backward", x)?.tensor(x)?.tensor(dy)?.tensor(&dx)?;
        run(launch.long(n).int(dy.dim(D::Minus1)?), n, self.0)?;
        Ok(vec![Some(dx)])
    }
}
