//! Smaller policies: quantisation, pruning, fewer units and means of whole policies, and quantisation, pruning, low rank and
//! distillation of single matrices.
//!
//! A weight is `[outputs, inputs]`, as in PyTorch. The number of threads changes no bit of a result.

#![warn(unreachable_pub)]

mod average;
mod calibration;
mod dense;
mod distillation;
mod fake;
mod gptq;
mod grid;
mod hessian;
mod low_rank;
mod matrix;
mod policy;
mod prune;
mod quantised;
mod shrink;
mod smooth;

use std::sync::atomic::{AtomicBool, Ordering};

pub use average::averaged;
pub use calibration::{Hessians, hessians};
pub use distillation::{Distillation, Distilled, Kind, Target};
pub use fake::{Fake, FakeOptions, Faked};
pub use gptq::{Calibrated, Gptq, Order};
pub use grid::{Grid, Per, Scale};
pub use hessian::Hessian;
pub use low_rank::{FactoredReport, Factoring, LowRank, Method, Rank, Truncation, factored};
pub use matrix::Matrix;
pub use policy::{Coding, MatrixReport, Names, coded, mixed};
pub use prune::{
    Axis, Keep, Pruned, PrunedReport, Pruning, SecondOrder, Share, Shrunk, TwoFour, magnitude,
    pruned, sparsity_at, structured, two_four,
};
pub use quantised::Quantised;
use sconce_tensor::{Error, Result};
pub use shrink::{Shrinking, UnitsReport, shrunk};
pub use smooth::{Smoothed, smooth};

/// Returns `Cancelled` if the flag is set.
fn stopped(cancelled: &AtomicBool) -> Result<()> {
    if cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}
