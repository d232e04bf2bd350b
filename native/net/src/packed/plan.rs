//! Steps of a pass over values, and the places of the values in one arena.

use std::ops::Range;

use crate::packed::attention::Attention;
use crate::packed::conv::{Conv, Depthwise};
use crate::packed::pointwise::Pointwise;
use crate::packed::pool::Pool;
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
    Pointwise(Pointwise),
    Pool(Pool),
    /// Repeats rows and pixels.
    Upsample {
        factor: [usize; 2],
    },
    /// Rows without the zeros around them.
    Join,
    /// Pixels of this size to channels first.
    Permute {
        size: Size,
    },
    Attention(Attention),
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
    pub(crate) fn new(mut steps: Vec<Step>, mut values: Vec<Value>, last: usize) -> Self {
        for step in &steps {
            for (value, halo) in step.inputs.iter().zip(step.op.halos()) {
                let own = &mut values[*value].halo;
                *own = [own[0].max(halo[0]), own[1].max(halo[1])];
            }
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
            taken.push((ends[step.output].max(i), value.range()));
        }
        for step in &mut steps {
            match &mut step.op {
                Op::Conv(conv) => conv.place(&values[step.inputs[0]]),
                Op::Depthwise(conv) => conv.place(&values[step.inputs[0]]),
                _ => {}
            }
        }
        Plan { steps, values, arena }
    }
}

impl Op {
    /// The zeros that it reads around each of its inputs.
    fn halos(&self) -> Vec<[usize; 2]> {
        match self {
            Op::Conv(conv) => vec![conv.window.padding],
            Op::Depthwise(conv) => vec![conv.window.padding],
            _ => vec![],
        }
    }
}
