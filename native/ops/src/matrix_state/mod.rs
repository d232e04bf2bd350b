//! Recurrences whose state is a matrix: Mamba-2, RetNet, GLA, mLSTM, by chunks.
//!
//! | file | content |
//! |---|---|
//! | `options` | columns of queries, keys and values, and the kind of decay |
//! | [`decay`] | from a layer's projections to gates |
//! | `readout` | from the values read from the state to outputs |
//! | `sizes`, `chunk` | the shapes of a run, the frames of one chunk |
//! | `kernel` | one chunk: `head` for one decay per head, `key` for one per key channel |
//! | `pass` | both passes over a batch |

mod card;
mod chunk;
mod composed;
pub mod decay;
pub mod head;
mod kernel;
pub mod key;
pub(crate) mod options;
mod pass;
pub(crate) mod readout;
mod sizes;

use candle_core::{Shape, Tensor};
pub use decay::{log_sigmoid, mlstm_gates, ssd_gates};
pub use options::{Decay, MlstmGates, Options};
pub use readout::Readout;

use self::pass::MatrixState;
use self::readout::Reading;
use self::sizes::Sizes;
use super::tensor;
use crate::form::Form;
use crate::lengths::{Lengths, check_lengths};
use crate::{Error, Result, op};

/// `(y [b, t, heads * value], state after the last frame)` of the recurrence of each head:
///
/// ```text
/// S_t = S_{t-1} diag(e^decay_t) + input_t v_t k_t^T        y_t = S_t q_t
/// ```
///
/// Here S is `[value, key]` (Mamba-2's `ssm_state`, the transpose of the state in the RetNet and GLA papers). `streams
/// [b, t, ..]` holds q, k and v (see [`Options`]), `gates` the decays and input factors (see [`Decay`]), `state [b,
/// heads, value, key]` the first state.
///
/// With a [`Rotary`](super::rotary::Rotary) the recurrence is `S_t = e^decay_t S_{t-1} R + input_t v_t k_t^T`, where R
/// rotates keys by one frame, and states are returned as `S R`, in the rotation of the next query. The outputs equal
/// those for queries and keys rotated by absolute positions (Sun et al. 2023, eq. 5 and 6), without a counter.
///
/// Computed by chunks (Dao & Gu 2024, section 6; Yang et al. 2023, section 4): within a chunk, the products of q and k,
/// weighted by the decay between the two frames, times the values; between chunks, the state. A weight is the
/// exponential of a difference of summed logarithms (f64), or a running product of factors where each key channel has
/// its own decay. Weights are at most 1 and never a divisor, so they are exact at any decay and length. The gradient of
/// a decay is a sum over the pairs of frames on either side of it, not a difference of larger sums.
pub fn matrix_state(
    streams: &Tensor,
    gates: Option<&Tensor>,
    state: &Tensor,
    readout: Readout,
    options: &Options,
) -> Result<(Tensor, Tensor)> {
    let (batch, time, width) = streams.dims3()?;
    options.check(width, time)?;
    check_lengths(&options.lengths, batch, time)?;
    let wide = options.value + usize::from(readout.is_normalised());
    tensor::check_shape(
        "first matrix state",
        &[batch, options.heads, wide, options.key],
        state.dims(),
    )?;
    match (options.gates(), gates) {
        (Some(expected), Some(gates)) => {
            tensor::check_shape("gates of a matrix state", &[batch, time, expected], gates.dims())?;
        }
        (Some(expected), None) => {
            return Err(Error::mismatch("gates of a matrix state", expected, "none"));
        }
        (None, _) => {}
    }
    readout.check([batch, time, options.heads])?;
    match Form::of(streams) {
        Form::Cpu => {}
        Form::Card if card::has_states_of(options) => {
            let (read, state) = card::matrix_state(streams, gates, state, options)?;
            let y = composed::results(&read, streams, &readout, options)?;
            return Ok((y, state));
        }
        Form::Card | Form::Composed => {
            return composed::matrix_state(streams, gates, state, readout, options);
        }
    }
    let reading = Reading::new(readout)?;
    let sizes = Sizes { batch, time, width, wide, options: options.clone() };
    let shapes = [Shape::from((batch, time, options.heads * options.value)), state.shape().clone()];
    let mut inputs = vec![streams, state];
    inputs.extend(gates.filter(|_| options.gates().is_some()));
    Ok(op::apply_all(MatrixState::new(sizes, reading), &inputs, shapes)?.into())
}

/// [`matrix_state()`] of separate `q, k [b, t, heads, key]` and `v [b, t, heads, value]`.
pub fn matrix_state_of(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    gates: Option<&Tensor>,
    state: &Tensor,
    decay: Decay,
    lengths: Lengths,
) -> Result<(Tensor, Tensor)> {
    let (_, _, heads, key) = k.dims4()?;
    let (_, _, _, value) = v.dims4()?;
    let flat = |x: &Tensor| x.flatten(2, 3);
    tensor::granted(&[q, k, v]);
    let streams = Tensor::cat(&[flat(q)?, flat(k)?, flat(v)?], 2)?;
    let options = Options { lengths, ..Options::side_by_side(heads, key, value, decay) };
    matrix_state(&streams, gates, state, Readout::Plain, &options)
}
