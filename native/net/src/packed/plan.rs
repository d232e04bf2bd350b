//! Steps of a pass over values, and the places of the values in one arena.

use std::ops::Range;

use crate::Result;
use crate::bounds::{MAX_VALUES, product, within};
use crate::packed::attention::Attention;
use crate::packed::conv::{Conv, Depthwise};
use crate::packed::pointwise::Pointwise;
use crate::packed::pool::Pool;
use crate::packed::quantised::Quantised;
use crate::packed::recurrent::Recurrent;
use crate::packed::shuffle::Shuffle;
use crate::packed::values::{Size, Value};

/// Numbers in a cache line, at which each value begins.
const LINE: usize = 16;

/// The work of a step.
pub(crate) enum Op {
    /// Copies an input, channels first, to pixels.
    Load {
        input: usize,
    },
    /// Rows of a table, one for each token of an input.
    Embed {
        input: usize,
        table: Range<usize>,
        vocabulary: usize,
    },
    Conv(Conv),
    Depthwise(Depthwise),
    Quantised(Quantised),
    Pointwise(Pointwise),
    Pool(Pool),
    /// Repeats rows and pixels.
    Upsample {
        factor: [usize; 2],
    },
    /// Phases of pixels as pixels.
    Shuffle(Shuffle),
    /// Rows without the zeros around them.
    Join,
    /// Pixels of this size to channels first.
    Permute {
        size: Size,
    },
    Attention(Attention),
    Recurrent(Recurrent),
    /// The sum of two values.
    Add,
    /// The channels of several values, pixel by pixel.
    Concat,
}

/// A step: it reads values and writes another one.
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) inputs: Vec<usize>,
    pub(crate) output: usize,
}

/// Steps in their order.
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) values: Vec<Value>,
    /// Numbers of the arena.
    pub(crate) arena: usize,
}

impl Plan {
    /// Places the values. `last` is read when all steps have run.
    ///
    /// # Errors
    /// `OutOfRange` for values that are too large with the zeros around them.
    pub(crate) fn new(mut steps: Vec<Step>, mut values: Vec<Value>, last: usize) -> Result<Self> {
        for step in &steps {
            for (value, halo) in step.inputs.iter().zip(step.op.halos()) {
                let own = &mut values[*value].halo;
                *own = [own[0].max(halo[0]), own[1].max(halo[1])];
            }
        }
        for value in &values {
            let sides = [value.size.rows + 2 * value.halo[0], value.size.width + 2 * value.halo[1]];
            let sizes = [&sides[..], &[value.size.channels]].concat();
            product("the numbers of a value with the zeros around it", &sizes, MAX_VALUES)?;
        }
        let mut ends = vec![0; values.len()];
        for (i, step) in steps.iter().enumerate() {
            for value in &step.inputs {
                ends[*value] = i;
            }
        }
        ends[last] = steps.len();
        // First fit: the lowest place that no value takes which is alive at the same time.
        let mut taken: Vec<(usize, Range<usize>)> = Vec::new();
        let mut arena = 0;
        for (i, step) in steps.iter().enumerate() {
            taken.retain(|(end, _range)| *end >= i);
            taken.sort_by_key(|(_end, range)| range.start);
            let value = &mut values[step.output];
            let mut at = 0;
            for (_end, range) in &taken {
                if at + value.len() <= range.start {
                    break;
                }
                at = at.max(range.end.next_multiple_of(LINE));
            }
            value.at = at;
            arena = arena.max(value.range().end);
            within("the numbers of all values", arena, 0, 4 * MAX_VALUES)?;
            taken.push((ends[step.output].max(i), value.range()));
        }
        for step in &mut steps {
            match &mut step.op {
                Op::Conv(conv) => conv.place(&values[step.inputs[0]]),
                Op::Depthwise(conv) => conv.place(&values[step.inputs[0]]),
                Op::Quantised(conv) => conv.place(&values[step.inputs[0]]),
                _ => {}
            }
        }
        Ok(Plan { steps, values, arena })
    }
}

impl Plan {
    /// An estimate of the time of a pass, in nanoseconds of a core with AVX2: 20 products each, a number that is moved each
    /// half, and 2 for a function of a number.
    pub(crate) fn nanoseconds(&self) -> u64 {
        let of = |step: &Step| {
            let out = self.values[step.output].len() as u64;
            let read: u64 = step.inputs.iter().map(|value| self.values[*value].len() as u64).sum();
            let moved = (out + read) / 2;
            match &step.op {
                Op::Conv(conv) => {
                    moved + conv.weights.len() as u64 / 2 + out * conv.products() / 20
                }
                Op::Quantised(conv) => {
                    2 * moved + conv.words.len() as u64 / 2 + out * conv.products() / 20
                }
                Op::Depthwise(conv) => moved + out * conv.products() / 20,
                Op::Pool(pool) => moved + out * pool.window.numbers() / 8,
                Op::Pointwise(_) => moved + 2 * out,
                Op::Recurrent(own) => {
                    let time = self.values[step.inputs[0]].size.width as u64;
                    moved + 2 * out + time * own.products() / 10
                }
                Op::Attention(_) => moved + out * self.values[step.output].size.width as u64 / 5,
                _ => moved,
            }
        };
        self.steps.iter().map(of).sum()
    }
}

impl Op {
    /// The zeros that it reads around each of its inputs.
    fn halos(&self) -> Vec<[usize; 2]> {
        match self {
            Op::Conv(conv) => vec![conv.window.padding],
            Op::Depthwise(conv) => vec![conv.window.padding],
            Op::Quantised(conv) => vec![conv.window.padding],
            _ => vec![],
        }
    }
}
