//! The interface of a world: its rules as functions of numbers.

use sconce_tensor::simd::LANES;

/// The rules of a world, as functions of numbers. `S` numbers are the state, `I` the input of all seats, `O` the
/// observation of a seat, and `T` the reward terms of seat 0. The terms of seat 1 are their negatives.
///
/// `step` and `observe` have no branches, so that a loop over environments compiles to vector code.
pub(crate) trait Dynamics<const S: usize, const I: usize, const O: usize, const T: usize>:
    'static
{
    /// Number of players.
    const SEATS: usize = 1;

    /// Whether [`step_block`](Self::step_block) has a form of its own, for rules whose loops depend on the state.
    const WHOLE_BLOCKS: bool = false;

    /// Environments from which on threads share a step. A step of fewer costs less than the waking of a thread.
    const PARALLEL: usize = 8192;

    /// The state at the start of an episode. `words` are random.
    fn start(words: [u32; 4]) -> [f32; S];

    /// The state after a step, the reward terms of the step, and whether the episode has terminated. `limit` is the
    /// time limit in steps.
    fn step<const FMA: bool>(
        state: [f32; S],
        input: [f32; I],
        limit: f32,
    ) -> ([f32; S], [f32; T], bool);

    /// `step` in a block of environments, of which some run. The others keep their state. Called instead of `step` if
    /// [`WHOLE_BLOCKS`](Self::WHOLE_BLOCKS) is true.
    #[inline(always)]
    fn step_block<const FMA: bool>(
        state: &[[f32; LANES]; S],
        _input: &[[f32; LANES]; I],
        _runs: [bool; LANES],
        _limit: f32,
    ) -> ([[f32; LANES]; S], [[f32; LANES]; T], [bool; LANES]) {
        (*state, [[0.0; LANES]; T], [false; LANES])
    }

    /// The observation of a seat.
    fn observe<const FMA: bool>(state: [f32; S], seat: usize) -> [f32; O];
}

/// A scripted player: reads the observation of its seat (not stacked) and four random words, and writes its input.
pub type Player = fn(observation: &[f32], words: [u32; 4], input: &mut [f32]);
