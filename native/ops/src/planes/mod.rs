//! Signals `[b, c, t]` and images `[b, c, h, w]` as planes, and the positions of a kernel on them.
//!
//! A signal is an image of one row. Ops of planes run on CPUs only.

mod padded;

use candle_core::Tensor;

pub(crate) use self::padded::Padded;
use crate::form::Form;
use crate::{Error, Result};

/// The shape of a kernel, and how it moves over one or two axes (Dumoulin & Visin 2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// The number of spatial axes.
    rank: usize,
    pub(crate) size: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
}

impl Kernel {
    /// A kernel of `size` with one number for each axis in every list. `padding` is added at both ends of an axis.
    ///
    /// # Errors
    /// `Mismatch` for lists of different lengths or for another number of axes than 1 and 2. `OutOfRange` for a size,
    /// stride or dilation of 0.
    pub fn new(
        size: &[usize],
        stride: &[usize],
        padding: &[usize],
        dilation: &[usize],
    ) -> Result<Self> {
        let rank = size.len();
        if !(1..=2).contains(&rank) {
            return Err(Error::mismatch("axes of a kernel", "1 or 2", rank));
        }
        let lists = [("stride", stride), ("padding", padding), ("dilation", dilation)];
        if let Some((name, list)) = lists.iter().find(|(_, list)| list.len() != rank) {
            return Err(Error::mismatch(format!("axes of the {name}"), rank, list.len()));
        }
        for (name, list) in [("kernel", size), ("stride", stride), ("dilation", dilation)] {
            if list.contains(&0) {
                return Err(Error::out_of_range(name, 0.0, 1.0, f64::from(u32::MAX)));
            }
        }
        let [size, stride, dilation] = [size, stride, dilation].map(|list| pair(list, 1));
        Ok(Kernel { rank, size, stride, padding: pair(padding, 0), dilation })
    }

    /// A kernel that moves by one position, without padding or dilation.
    pub fn plain(size: &[usize]) -> Result<Self> {
        let (ones, zeros) = (vec![1; size.len()], vec![0; size.len()]);
        Kernel::new(size, &ones, &zeros, &ones)
    }

    /// The number of spatial axes.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of positions on each axis of an input `[h, w]`.
    ///
    /// # Errors
    /// `Mismatch` for a kernel larger than its padded input.
    pub fn output(&self, input: [usize; 2]) -> Result<[usize; 2]> {
        let mut output = [0; 2];
        for axis in 0..2 {
            let reach = (self.size[axis] - 1)
                .checked_mul(self.dilation[axis])
                .and_then(|reach| reach.checked_add(1));
            let padded = self.padding[axis].checked_mul(2).and_then(|p| p.checked_add(input[axis]));
            let (Some(reach), Some(padded)) = (reach, padded) else {
                return Err(Error::mismatch("size of a kernel", "a size in memory", "an overflow"));
            };
            let Some(room) = padded.checked_sub(reach) else {
                let got = format!("a kernel of {reach}");
                return Err(Error::mismatch(
                    "kernel on its padded input",
                    format!("at most {padded}"),
                    got,
                ));
            };
            output[axis] = room / self.stride[axis] + 1;
        }
        Ok(output)
    }

    /// The number of positions on each axis of the output of a transposed convolution of an input `[h, w]`. `more` are the
    /// positions beyond the last one that the kernel reaches, on each axis fewer than the stride.
    ///
    /// # Errors
    /// `Mismatch` for another number of axes and for a padding that leaves no position, `OutOfRange` for a stride or more.
    pub fn transposed(&self, input: [usize; 2], more: &[usize]) -> Result<[usize; 2]> {
        if more.len() != self.rank {
            return Err(Error::mismatch("axes of the output padding", self.rank, more.len()));
        }
        let (more, mut output) = (pair(more, 0), [0; 2]);
        for axis in 0..2 {
            let (stride, more) = (self.stride[axis], more[axis]);
            if more >= stride {
                return Err(Error::out_of_range(
                    "output padding",
                    more as f64,
                    0.0,
                    stride as f64 - 1.0,
                ));
            }
            let reach = (self.size[axis] - 1).saturating_mul(self.dilation[axis]);
            let last = input[axis].checked_sub(1).map(|last| last.saturating_mul(stride));
            let all = last.map_or(0, |last| last.saturating_add(reach).saturating_add(more + 1));
            let lost = self.padding[axis].saturating_mul(2);
            match all.checked_sub(lost).filter(|left| *left > 0) {
                Some(left) if all < usize::MAX => output[axis] = left,
                _ => {
                    let got = format!("{lost} of {all}");
                    return Err(Error::mismatch("padding of an output", "less than all", got));
                }
            }
        }
        Ok(output)
    }

    /// The number of values of a kernel on one channel.
    pub(crate) fn taps(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Whether each output reads one position of the input: its own.
    pub(crate) fn is_pointwise(&self) -> bool {
        (self.size, self.stride, self.padding) == ([1; 2], [1; 2], [0; 2])
    }

    /// The shape `[b, c, ..]` for planes of these sizes.
    ///
    /// # Errors
    /// `OutOfRange` if the number of values overflows.
    pub(crate) fn shape(
        &self,
        batch: usize,
        channels: usize,
        plane: [usize; 2],
    ) -> Result<Vec<usize>> {
        shape(self.rank, [batch, channels], plane)
    }
}

/// One or two numbers as two, the first of which is `first` if missing.
fn pair(list: &[usize], first: usize) -> [usize; 2] {
    match *list {
        [a, b] => [a, b],
        [b] => [first, b],
        _ => [first; 2],
    }
}

/// `[b, c, ..]` with `rank` spatial axes.
///
/// # Errors
/// `OutOfRange` if the number of values overflows.
pub(crate) fn shape(rank: usize, [b, c]: [usize; 2], [h, w]: [usize; 2]) -> Result<Vec<usize>> {
    let shape = if rank == 1 { vec![b, c, w] } else { vec![b, c, h, w] };
    let count = shape.iter().try_fold(size_of::<f32>(), |all, n| all.checked_mul(*n));
    match count.filter(|bytes| isize::try_from(*bytes).is_ok()) {
        Some(_) => Ok(shape),
        None => {
            let values = shape.iter().map(|n| *n as f64).product();
            Err(Error::out_of_range("values of a layer", values, 0.0, isize::MAX as f64 / 4.0))
        }
    }
}

/// Batch, channels and `[h, w]` of `x` with `rank` spatial axes.
///
/// # Errors
/// `Mismatch` for another number of axes; `Unavailable` for tensors that are not f32 on a CPU.
pub(crate) fn planes(what: &str, x: &Tensor, rank: usize) -> Result<([usize; 2], [usize; 2])> {
    only_on_cpus(what, x)?;
    match (rank, x.dims()) {
        (1, &[b, c, t]) => Ok(([b, c], [1, t])),
        (2, &[b, c, h, w]) => Ok(([b, c], [h, w])),
        (_, dims) => {
            let expected = if rank == 1 { "[b, c, t]" } else { "[b, c, h, w]" };
            Err(Error::mismatch(format!("input of {what}"), expected, format!("{dims:?}")))
        }
    }
}

/// Refuses tensors that are not f32 on a CPU.
pub(crate) fn only_on_cpus(what: &str, x: &Tensor) -> Result<()> {
    match Form::of(x) {
        Form::Cpu => Ok(()),
        Form::Card | Form::Composed => Err(Error::Unavailable {
            what: what.into(),
            reason: "it runs on CPUs in f32 only".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_do_not_fit_are_named() {
        let text = |kernel: Result<Kernel>| kernel.unwrap_err().to_string();
        assert_eq!(text(Kernel::plain(&[1, 2, 3])), "axes of a kernel: expected 1 or 2, got 3");
        assert_eq!(
            text(Kernel::new(&[3], &[1, 1], &[0], &[1])),
            "axes of the stride: expected 1, got 2"
        );
        assert!(text(Kernel::new(&[3], &[0], &[0], &[1])).starts_with("stride: 0 is outside"));
        assert!(text(Kernel::plain(&[0])).starts_with("kernel: 0 is outside"));
        let kernel = Kernel::new(&[3], &[1], &[1], &[2]).unwrap();
        assert_eq!(kernel.output([1, 3]).unwrap(), [1, 1]);
        let error = kernel.output([1, 2]).unwrap_err().to_string();
        assert_eq!(error, "kernel on its padded input: expected at most 4, got a kernel of 5");
        let huge = Kernel::new(&[3], &[1], &[usize::MAX / 2], &[1]).unwrap();
        assert!(huge.output([1, 4]).is_err());
        assert!(shape(1, [usize::MAX / 8, 2], [1, 3]).is_err());
    }
}
