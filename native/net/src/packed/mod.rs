//! The packed form of a network: for one input at a time, on one core of a CPU.
//!
//! Values lie as pixels with all their channels side by side. They share one arena, in which a value's place is used again
//! after its last reader. A pass allocates nothing.

mod attention;
mod conv;
mod kernels;
mod lower;
mod plan;
mod pointwise;
mod pool;
mod quantised;
mod recurrent;
mod shuffle;
mod values;

use std::fmt;
use std::sync::Arc;

use sconce_tensor::{Error, Result, memory, simd};

use crate::net::Net;
use crate::outline::shown;
use kernels::Word;
use lower::Lowered;
use plan::{Op, Plan, Step};
use quantised::Codes;
use values::{Size, Value};

/// Storage of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// 32-bit floats.
    #[default]
    F32,
    /// 8 bits for the weights and inputs of convolutions in one group of channels, of dense layers and of the products of
    /// attention; 32-bit floats for all others.
    Int8,
}

/// The steps and the packed weights of a network, which passes share.
pub struct Program {
    plan: Plan,
    /// The value of the output.
    last: usize,
    weights: Vec<f32>,
    /// Weights of 8 bits.
    words: Vec<Word>,
    /// Numbers that a step needs besides the arena.
    scratch: usize,
    /// Codes that a step needs.
    codes: usize,
    inputs: Vec<(String, Vec<usize>)>,
    output: Vec<usize>,
}

impl Program {
    /// Packs a network: folds batch norms, and rearranges weights for the kernels.
    ///
    /// # Errors
    /// `OutOfMemory`, and `OutOfRange` for values that are too large with the zeros around them.
    pub fn new(net: &Net, storage: Storage) -> Result<Arc<Self>> {
        memory::caught(|| {
            let Lowered { plan, weights, words, last } = lower::lower(net, storage)?;
            let scratch = plan.steps.iter().map(|step| match &step.op {
                Op::Attention(_) => plan.values[step.output].size.width,
                Op::Recurrent(own) => own.scratch(),
                Op::Pool(_) => plan.values[step.output].size.channels,
                _ => 0,
            });
            let scratch = scratch.max().unwrap_or(0);
            let codes = plan.steps.iter().map(|step| match step.op {
                Op::Quantised(_) => plan.values[step.inputs[0]].len(),
                _ => 0,
            });
            let codes = codes.max().unwrap_or(0);
            let inputs = net.spec().inputs.iter();
            let inputs = inputs.map(|own| (own.name.clone(), own.shape.clone())).collect();
            let output = net.outline().output.clone();
            Ok(Arc::new(Program { plan, last, weights, words, scratch, codes, inputs, output }))
        })
    }

    /// Bytes of the packed weights.
    pub fn weight_bytes(&self) -> usize {
        size_of_val(&self.weights[..]) + size_of_val(&self.words[..])
    }

    /// An estimate of the time of a pass on a core with AVX2.
    pub fn nanoseconds(&self) -> u64 {
        self.plan.nanoseconds()
    }

    /// The names of the inputs.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|(name, _shape)| name.as_str())
    }
}

/// A network that is ready to run, with memory of its own for a pass.
pub struct Packed {
    program: Arc<Program>,
    arena: Vec<f32>,
    scratch: Vec<f32>,
    codes: Codes,
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.program.plan.steps.len();
        f.debug_struct("Packed").field("steps", &steps).finish_non_exhaustive()
    }
}

impl Packed {
    /// Packs a network.
    ///
    /// # Errors
    /// Those of [`Program::new`].
    pub fn new(net: &Net, storage: Storage) -> Result<Self> {
        Self::of(&Program::new(net, storage)?)
    }

    /// Memory for a pass of a program.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn of(program: &Arc<Program>) -> Result<Self> {
        memory::caught(|| {
            let (arena, scratch) = (program.plan.arena, program.scratch);
            let (arena, scratch) = (memory::zeros(arena), memory::zeros(scratch));
            Ok(Packed {
                program: program.clone(),
                arena,
                scratch,
                codes: Codes::new(program.codes),
            })
        })
    }

    /// Bytes of the memory for a pass.
    pub fn arena_bytes(&self) -> usize {
        size_of_val(&self.arena[..]) + size_of_val(&self.scratch[..]) + self.codes.bytes()
    }

    /// Bytes of the packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.program.weight_bytes()
    }

    /// The shape of the output.
    pub fn output_shape(&self) -> &[usize] {
        &self.program.output
    }

    /// Computes the output from the inputs, in the order of the declaration, each row by row with channels first. Tokens are
    /// whole numbers.
    ///
    /// # Errors
    /// `Mismatch` for an input or output of another size, `NonFinite` for an input or for an output beyond f32, `OutOfRange`
    /// for a token.
    pub fn run(&mut self, inputs: &[&[f32]], output: &mut [f32]) -> Result<()> {
        let Packed { program, arena, scratch, codes } = self;
        let Program { plan, last, inputs: declared, output: shape, .. } = &**program;
        if inputs.len() != declared.len() {
            return Err(Error::mismatch("inputs", declared.len(), inputs.len()));
        }
        for ((name, shape), input) in declared.iter().zip(inputs) {
            let what = || format!("input {name:?}");
            if input.len() != shape.iter().product::<usize>() {
                return Err(Error::mismatch(
                    what(),
                    shown(shape),
                    format!("{} numbers", input.len()),
                ));
            }
            if let Some(value) = simd::non_finite(input) {
                return Err(Error::NonFinite { what: what(), value: f64::from(value) });
            }
        }
        if output.len() != shape.iter().product::<usize>() {
            let got = format!("{} numbers", output.len());
            return Err(Error::mismatch("output", shown(shape), got));
        }
        for step in &plan.steps {
            run(step, program, arena, (scratch, codes), inputs)
                .map_err(|error| named(error, declared, step))?;
        }
        output.copy_from_slice(&arena[plan.values[*last].range()]);
        match simd::non_finite(output) {
            Some(value) => Err(Error::NonFinite { what: "output".into(), value: f64::from(value) }),
            None => Ok(()),
        }
    }
}

/// The error of a token with the name of its input.
fn named(error: Error, inputs: &[(String, Vec<usize>)], step: &Step) -> Error {
    match (error, &step.op) {
        (Error::OutOfRange { field, value, min, max }, Op::Embed { input, .. }) => {
            let field = format!("input {:?}: {field}", inputs[*input].0);
            Error::OutOfRange { field, value, min, max }
        }
        (error, _op) => error,
    }
}

fn run(
    step: &Step,
    program: &Program,
    arena: &mut [f32],
    (scratch, codes): (&mut [f32], &mut Codes),
    inputs: &[&[f32]],
) -> Result<()> {
    let (values, weights) = (&program.plan.values, &program.weights);
    let ys = &values[step.output];
    let overlap = "values that are alive at the same time lie apart";
    if let Op::Concat = step.op {
        let mut first = 0;
        for input in &step.inputs {
            let xs = &values[*input];
            let [x, y] = arena.get_disjoint_mut([xs.range(), ys.range()]).expect(overlap);
            concat((xs, x), (ys, y), first);
            first += xs.size.channels;
        }
        ys.clear_halo(&mut arena[ys.range()]);
        return Ok(());
    }
    if let (Op::Add, [a, b]) = (&step.op, &step.inputs[..]) {
        let (a, b) = (&values[*a], &values[*b]);
        let ranges = [a.range(), b.range(), ys.range()];
        // A network may add a value to itself.
        if a.at == b.at {
            let [a_numbers, y] = arena.get_disjoint_mut([a.range(), ys.range()]).expect(overlap);
            add((a, a_numbers), (b, a_numbers), (ys, y));
        } else {
            let [a_numbers, b_numbers, y] = arena.get_disjoint_mut(ranges).expect(overlap);
            add((a, a_numbers), (b, b_numbers), (ys, y));
        }
        ys.clear_halo(&mut arena[ys.range()]);
        return Ok(());
    }
    let (xs, x, y) = match step.inputs.first() {
        Some(input) => {
            let xs = &values[*input];
            let [x, y] = arena.get_disjoint_mut([xs.range(), ys.range()]).expect(overlap);
            (xs, &*x, y)
        }
        None => (ys, &[][..], &mut arena[ys.range()]),
    };
    match &step.op {
        Op::Load { input } => load(inputs[*input], (ys, y)),
        Op::Embed { input, table, vocabulary } => {
            embed(inputs[*input], &weights[table.clone()], *vocabulary, (ys, y))?;
        }
        Op::Conv(conv) => {
            conv.run(weights, (xs, x), (ys, y));
            if pointwise::apart(conv.function) {
                pointwise::apply_to(conv.function, (ys, y));
            }
        }
        Op::Depthwise(conv) => {
            conv.run(weights, (xs, x), (ys, y));
            if pointwise::apart(conv.function) {
                pointwise::apply_to(conv.function, (ys, y));
            }
        }
        Op::Quantised(conv) => {
            conv.run((weights, &program.words), (xs, x), (ys, y), codes);
            if pointwise::apart(conv.function) {
                pointwise::apply_to(conv.function, (ys, y));
            }
        }
        Op::Pointwise(own) => own.run(weights, (xs, x), (ys, y)),
        Op::Pool(pool) => pool.run((xs, x), (ys, y), scratch),
        Op::Upsample { factor } => upsample((xs, x), (ys, y), *factor),
        Op::Shuffle(own) => own.run((xs, x), (ys, y)),
        Op::Join => join((xs, x), y),
        Op::Permute { size } => permute((xs, x), *size, y),
        Op::Attention(own) => own.run((xs, x), (ys, y), scratch),
        Op::Recurrent(own) => own.run(weights, (xs, x), (ys, y), scratch),
        Op::Add | Op::Concat => {}
    }
    ys.clear_halo(y);
    Ok(())
}

/// Channels first to pixels.
fn load(x: &[f32], (ys, y): (&Value, &mut [f32])) {
    let (width, channels) = (ys.size.width, ys.size.channels);
    for row in 0..ys.size.rows {
        let y = &mut y[ys.row(row)];
        for c in 0..channels {
            let x = &x[(c * ys.size.rows + row) * width..][..width];
            for (y, x) in y[c..].iter_mut().step_by(channels).zip(x) {
                *y = *x;
            }
        }
    }
}

fn join((xs, x): (&Value, &[f32]), y: &mut [f32]) {
    for (row, y) in y.chunks_exact_mut(xs.size.width * xs.size.channels).enumerate() {
        y.copy_from_slice(&x[xs.row(row)]);
    }
}

/// Pixels to channels first. A vector has its pixels one after the other.
fn permute((xs, x): (&Value, &[f32]), size: Size, y: &mut [f32]) {
    let (width, channels) = (size.width, size.channels);
    let pitch = if xs.size == size { xs.pitch() } else { width * channels };
    for row in 0..size.rows {
        let x = &x[xs.place(0, 0) + row * pitch..][..width * channels];
        for c in 0..channels {
            let y = &mut y[(c * size.rows + row) * width..][..width];
            for (y, x) in y.iter_mut().zip(x[c..].iter().step_by(channels)) {
                *y = *x;
            }
        }
    }
}

fn embed(x: &[f32], table: &[f32], vocabulary: usize, (ys, y): (&Value, &mut [f32])) -> Result<()> {
    let size = ys.size.channels;
    for (t, token) in x.iter().enumerate() {
        // A number that is no token becomes one that is refused.
        let at = if token.fract() == 0.0 && *token >= 0.0 { *token as usize } else { usize::MAX };
        if at >= vocabulary {
            let most = (vocabulary - 1) as f64;
            return Err(Error::out_of_range(format!("token {t}"), f64::from(*token), 0.0, most));
        }
        let to = ys.place(0, t);
        y[to..to + size].copy_from_slice(&table[at * size..][..size]);
    }
    Ok(())
}

fn upsample((xs, x): (&Value, &[f32]), (ys, y): (&Value, &mut [f32]), factor: [usize; 2]) {
    let channels = xs.size.channels;
    for row in 0..ys.size.rows {
        let x = &x[xs.row(row / factor[0])];
        let y = y[ys.row(row)].chunks_exact_mut(factor[1] * channels);
        for (x, y) in x.chunks_exact(channels).zip(y) {
            y.chunks_exact_mut(channels).for_each(|y| y.copy_from_slice(x));
        }
    }
}

fn concat((xs, x): (&Value, &[f32]), (ys, y): (&Value, &mut [f32]), first: usize) {
    let (own, all) = (xs.size.channels, ys.size.channels);
    for row in 0..xs.size.rows {
        let y = y[ys.row(row)].chunks_exact_mut(all);
        for (x, y) in x[xs.row(row)].chunks_exact(own).zip(y) {
            y[first..first + own].copy_from_slice(x);
        }
    }
}

fn add((a, x): (&Value, &[f32]), (b, z): (&Value, &[f32]), (ys, y): (&Value, &mut [f32])) {
    for row in 0..ys.size.rows {
        let numbers = x[a.row(row)].iter().zip(&z[b.row(row)]);
        for (y, (x, z)) in y[ys.row(row)].iter_mut().zip(numbers) {
            *y = x + z;
        }
    }
}
