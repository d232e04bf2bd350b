//! Windows of convolutions and pools.

use super::{axes, shown};
use crate::bounds::{MAX_SIZE, MAX_VALUES, product, within};
use crate::{Error, Result};

/// Checks lists with a number for each axis of `x: [c, ..]` behind the channels: their name, their numbers and the least one.
pub(super) fn check_lists(at: &str, x: &[usize], lists: &[(&str, &[usize], usize)]) -> Result<()> {
    let rank = x.len() - 1;
    for (field, list, min) in lists {
        if list.len() != rank {
            let got = format!("{field} of {} numbers for {}", list.len(), shown(x));
            return Err(Error::mismatch(at, format!("{field} of {rank} numbers"), got));
        }
        for n in *list {
            within(&format!("{at}.{field}"), *n, *min, MAX_SIZE)?;
        }
    }
    Ok(())
}

/// The number of windows along each axis.
pub(super) struct Windows(Vec<usize>);

impl Windows {
    /// Windows of a convolution over `x: [c, ..]`, with kernel, stride and padding.
    pub(super) fn new(
        at: &str,
        x: &[usize],
        [kernel, stride, padding]: [&[usize]; 3],
        dilation: &[usize],
    ) -> Result<Self> {
        axes(at, x, 2..=3)?;
        let rank = x.len() - 1;
        let lists = [
            ("kernel", kernel, 1),
            ("stride", stride, 1),
            ("padding", padding, 0),
            ("dilation", dilation, 1),
        ];
        check_lists(at, x, &lists)?;
        let reach = |i: usize| dilation[i] * (kernel[i] - 1) + 1;
        let padded: Vec<usize> = (0..rank).map(|i| x[i + 1] + 2 * padding[i]).collect();
        if (0..rank).any(|i| reach(i) > padded[i]) {
            let reaches: Vec<usize> = (0..rank).map(reach).collect();
            let expected = format!("a padded input of at least {}", shown(&reaches));
            let got = format!("{}, padded {}", shown(&x[1..]), shown(&padded));
            return Err(Error::mismatch(at, expected, got));
        }
        let all: Vec<usize> = padded.iter().copied().chain([x[0]]).collect();
        product(&format!("{at} (padded values)"), &all, MAX_VALUES)?;
        Ok(Windows((0..rank).map(|i| (padded[i] - reach(i)) / stride[i] + 1).collect()))
    }

    /// Windows of a pool.
    pub(super) fn pool(at: &str, x: &[usize], lists: [&[usize]; 3]) -> Result<Self> {
        let [kernel, _, padding] = lists;
        let windows = Windows::new(at, x, lists, &vec![1; kernel.len().min(3)])?;
        for (kernel, padding) in kernel.iter().zip(padding) {
            // Otherwise a window holds nothing but padding.
            within(&format!("{at}.padding"), *padding, 0, kernel / 2)?;
        }
        Ok(windows)
    }

    /// The shape of the output.
    pub(super) fn output(&self, channels: usize) -> Vec<usize> {
        [channels].iter().chain(&self.0).copied().collect()
    }
}
