//! All frames of an LSTM or a GRU in one launch.

use candle_core::{DType, Result, Tensor};
use sconce_cuda::kernels::RECURRENT_WALK;

use super::{AT_ONCE, Frames, TILE, WHOLE_THREADS};
use crate::Precision;
use crate::device::launch::{Launch, pointer, suffix};

/// The widest state whose recurrent weight the registers of a card's blocks hold.
const WIDEST: usize = 256;
/// A walk of fewer frames gains less than it takes to load its weights.
const FEWEST_FRAMES: usize = 4;
/// Launches one after another, each with as many rows as a card computes at once. More of them would take longer than a
/// product of all rows for each frame.
const MOST_LAUNCHES: usize = 2;
/// Bytes that a product takes of a row at a time.
const LINE: usize = 64;
const PIECE: usize = 16;

/// A direction of a walk.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    Forward,
    Backward,
}

/// A walk that computes this layer.
pub(super) struct Walk<'a> {
    frames: &'a Frames,
    x: &'a Tensor,
    kernel: String,
    /// Tiles of rows of one launch.
    tiles: usize,
    /// Bytes that a block shares.
    shared: usize,
}

impl Frames {
    /// The walk for this layer, whose inputs are like `x` and whose products read `operands` 16 bytes at a time, if there
    /// is one.
    pub(super) fn walk<'a>(
        &'a self,
        (cell, gates): (&str, usize),
        way: Way,
        x: &'a Tensor,
        operands: &[&Tensor],
    ) -> Result<Option<Walk<'a>>> {
        let (width, of) = (self.width, self.operands(x));
        let fits = width.is_multiple_of(TILE[1]) && width <= WIDEST && self.time >= FEWEST_FRAMES;
        let places = operands.iter().map(|x| pointer(x)).collect::<Result<Vec<_>>>()?;
        if !fits || !places.iter().all(|place| place.is_multiple_of(AT_ONCE)) {
            return Ok(None);
        }
        let suffix = match (of != x.dtype(), self.precision) {
            (true, _) => "mixed",
            (_, Precision::Tf32) if of == DType::F32 => "tf32",
            _ => suffix(x),
        };
        let (step, shared) = match way {
            Way::Forward => ("forward", shared_forward(width * of.size_in_bytes(), gates)),
            Way::Backward => ("backward", SHARED_BACKWARD),
        };
        let kernel = format!("{cell}_{suffix}_walk_{step}");
        let together =
            Launch::of(RECURRENT_WALK, &kernel, x)?.most_together(WHOLE_THREADS, shared)?;
        let tiles = together / (width / TILE[1]);
        let fits = tiles > 0 && self.batch.div_ceil(TILE[0]) <= tiles * MOST_LAUNCHES;
        Ok(fits.then_some(Walk { frames: self, x, kernel, tiles, shared }))
    }
}

/// As recurrent_walk.cu has it: a tile of operands, rows of which begin in other banks, and the gates of a tile.
fn shared_forward(bytes: usize, gates: usize) -> usize {
    let row = (bytes.next_multiple_of(LINE)).next_multiple_of(8 * PIECE) + LINE;
    TILE[0] * (row + (gates * TILE[1] + 8) * size_of::<f32>())
}

/// The sums of each warp for a tile of states.
const SHARED_BACKWARD: usize = WHOLE_THREADS / 32 * TILE[0] * (TILE[1] + 8) * size_of::<f32>();

impl Walk<'_> {
    /// Runs the walk over all rows, with the arguments that `arguments` adds.
    pub(super) fn run(&self, arguments: impl Fn(Launch) -> Result<Launch>) -> Result<()> {
        let Frames { batch, time, width, .. } = *self.frames;
        let tiles = batch.div_ceil(TILE[0]);
        for first in (0..tiles).step_by(self.tiles) {
            let here = self.tiles.min(tiles - first);
            let met = Tensor::zeros(here, DType::U32, self.x.device())?;
            let launch = arguments(Launch::of(RECURRENT_WALK, &self.kernel, self.x)?)?;
            let launch = launch.tensor(&met)?.option(self.frames.lengths.as_ref())?.int(time);
            let launch = launch.int(first * TILE[0]).int(batch).int(width);
            // SAFETY: as recurrent_walk.cu requires, a block for each tile of these rows, all at once, of operands whose
            // alignment `walk` has checked.
            unsafe {
                let grid = [width / TILE[1], here, 1];
                launch.run_together(grid, [WHOLE_THREADS, 1, 1], self.shared)?;
            }
        }
        Ok(())
    }
}
