//! Advantages and targets of steps on a card, by `returns.cu`.

use sconce_cuda::kernels::RETURNS;
use sconce_tensor::device::launch::Launch;
use sconce_tensor::{Result, Tensor};

use super::Discounts;

/// Threads of a block.
const THREADS: usize = 128;
/// Threads of the only block of a sum.
const SUMMING: usize = 256;

/// The steps of a segment on a card, each column `[time, rows]`.
#[derive(Debug)]
pub(crate) struct CardSteps<'a> {
    pub(crate) rewards: &'a Tensor,
    /// Values before each step, and one more: after the last one, `[time + 1, rows]`.
    pub(crate) values: &'a Tensor,
    /// Values after the steps that a limit cut.
    pub(crate) after: &'a Tensor,
    /// u32: 1 for a termination, plus 2 for a limit.
    pub(crate) ends: &'a Tensor,
    /// Are written.
    pub(crate) advantages: &'a Tensor,
    /// Are written.
    pub(crate) targets: &'a Tensor,
    /// `[2]`: a reward and a value that are not finite are written to it.
    pub(crate) faults: &'a Tensor,
}

/// Launches [`advantages`](super::advantages).
pub(crate) fn advantages(steps: &CardSteps<'_>, discounts: Discounts) -> Result<()> {
    let (time, rows) = steps.rewards.dims2()?;
    let launch = Launch::of(RETURNS, "advantages", steps.rewards)?.tensor(steps.rewards)?;
    let launch = launch.tensor(steps.values)?.tensor(steps.after)?.tensor(steps.ends)?;
    let launch = launch.tensor(steps.advantages)?.tensor(steps.targets)?.tensor(steps.faults)?;
    let launch = launch.int(time).long(rows).float(discounts.gamma).float(discounts.lambda);
    // SAFETY: a thread for each row, and columns of these sizes, as returns.cu requires.
    Ok(unsafe { launch.run([rows.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?)
}

/// Writes the values in the logits `[n, num_logits]` of some frames, at `value`, to the `places` `[n]` of these frames in
/// `values`.
pub(crate) fn place_values(
    logits: &Tensor,
    value: usize,
    places: &Tensor,
    values: &Tensor,
) -> Result<()> {
    let (n, num_logits) = logits.dims2()?;
    let launch = Launch::of(RETURNS, "place_values", logits)?.tensor(logits)?.tensor(places)?;
    let launch = launch.tensor(values)?.long(n).int(num_logits).int(value);
    // SAFETY: a thread for each frame, and places within the values, as returns.cu requires.
    Ok(unsafe { launch.run([n.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?)
}

/// Share of the variance of the targets that the values explain. Waits for the card.
pub(crate) fn explained(targets: &Tensor, values: &Tensor, sums: &Tensor) -> Result<f64> {
    let n = targets.elem_count();
    let launch = Launch::of(RETURNS, "explained", targets)?.tensor(targets)?.tensor(values)?;
    let launch = launch.tensor(sums)?.long(n);
    // SAFETY: one block, and columns of n numbers, as returns.cu requires.
    unsafe { launch.run([1; 3], [SUMMING, 1, 1], 0) }?;
    let variance = |sum: f64, squares: f64| (squares - sum * sum / n as f64).max(0.0);
    Ok(match sums.to_vec1::<f64>()?[..] {
        [sum, squares, rest, rest_squares] if variance(sum, squares) > 0.0 => {
            1.0 - variance(rest, rest_squares) / variance(sum, squares)
        }
        _ => 0.0,
    })
}
