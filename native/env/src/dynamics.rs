//! The interface of a world: its rules as functions of numbers.

/// The rules of a world, as functions of numbers. `S` numbers are the state, `I` the input of all seats, `O` the
/// observation of a seat, and `T` the reward terms of seat 0. The terms of seat 1 are their negatives.
///
/// `step` and `observe` have no branches, so that a loop over environments compiles to vector code.
pub(crate) trait Dynamics<const S: usize, const I: usize, const O: usize, const T: usize>:
    'static
{
    /// Number of players.
    const SEATS: usize = 1;

    /// The state at the start of an episode. `words` are random.
    fn start(words: [u32; 4]) -> [f32; S];

    /// The state after a step, the reward terms of the step, and whether the episode has terminated. `limit` is the
    /// time limit in steps.
    fn step<const FMA: bool>(
        state: [f32; S],
        input: [f32; I],
        limit: f32,
    ) -> ([f32; S], [f32; T], bool);

    /// The observation of a seat.
    fn observe<const FMA: bool>(state: [f32; S], seat: usize) -> [f32; O];
}

/// A scripted player: reads the observation of its seat (not stacked) and four random words, and writes its input.
pub type Player = fn(observation: &[f32], words: [u32; 4], input: &mut [f32]);
