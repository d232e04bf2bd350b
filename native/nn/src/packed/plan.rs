//! A whole step, from an embedded frame to an action.

use std::ops::Range;

use sconce_realtime::{Arena, Encoding, Format, Packed, Packer, Record, Scratch};
use sconce_tensor::simd::non_finite;
use sconce_tensor::{Error, Result, memory};

use super::critic::Critic;
use super::embedding::Embedding;
use super::layer::{Game, Step};
use crate::heads::Decision;
use crate::{Policy, heads};

/// A policy packed for the CPU: a second copy of its weights in one arena.
///
/// In f32, logits and states equal those of `Policy::act` to 1e-5 of the largest value. In bf16, logits and states
/// equal those of the policy with rounded matrices to the same tolerance. In int8 the tolerance is 1e-3, because the
/// inputs of a matrix are rounded to 16 bits. A plan draws the same random numbers as `Policy::act`. The decision of a
/// game is bit-identical whichever games are stepped with it.
pub struct Plan {
    format: Format,
    matrices: Vec<Packed>,
    arena: Arena,
    embedding: Embedding,
    backbone: Box<dyn Step>,
    critic: Option<Critic>,
    heads: heads::Packed,
    trunk: usize,
    zero: Vec<f32>,
    /// Number of f32 in each part of a state.
    parts: Vec<usize>,
    widest: usize,
}

/// Maximum number of games stepped together, enough to amortise reading each weight.
const AT_ONCE: usize = 64;

impl Plan {
    /// None for a policy that cannot be packed: its backbone is window-only, or a weight is not finite.
    ///
    /// # Errors
    /// `OutOfRange` for an invalid bound of the format.
    pub fn of(policy: &Policy, format: Format) -> Result<Option<Self>> {
        format.validate()?;
        policy.check_weights()?;
        if policy.spec().is_window_only() {
            return Ok(None);
        }
        // While packing, the weights exist twice: in the order of packing, and aligned to a cache line.
        let bytes = (2 * size_of::<f32>() * policy.num_weights()) as u64;
        memory::room("packed weights", bytes)?;
        memory::caught(|| {
            let mut packer = Packer::new(policy.weights(), format);
            let build = Self::packed(policy, &mut packer)?;
            packer.finish().map(build).transpose()
        })
    }

    /// The plan of an arena that [`Plan::of`] built from a policy of the same Spec. The weights of `policy` are not read.
    ///
    /// # Errors
    /// `Mismatch` and `NotFound` for matrices of another Spec and for an arena of another size.
    pub fn of_arena(
        policy: &Policy,
        format: Format,
        matrices: Vec<Record>,
        arena: Arena,
    ) -> Result<Self> {
        memory::caught(|| {
            let mut packer = Packer::recorded(policy.weights(), format, matrices);
            let build = Self::packed(policy, &mut packer)?;
            let matrices = packer.finish_recorded(&arena)?;
            build((arena, matrices))
        })
    }

    /// Packs all weights. Returns the plan as a function of the arena and its matrices.
    fn packed(
        policy: &Policy,
        packer: &mut Packer,
    ) -> Result<impl FnOnce((Arena, Vec<Packed>)) -> Result<Self> + use<>> {
        let (spec, format) = (policy.spec(), packer.format());
        let mut embedding = Embedding::new(spec, (policy.tables(), policy.eyes()), packer)?;
        let backbone = policy.backbone().pack(packer)?;
        let (at, logits) = (backbone.state_len(), spec.heads.num_logits());
        let critic = policy.critic().map(|of| Critic::pack(of, at, logits, packer));
        let critic = critic.transpose()?;
        let heads = policy.heads().pack(packer)?;
        let state = policy.zero_state(1)?;
        let parts: Vec<usize> = state.0.iter().map(|part| part.elem_count()).collect();
        let packed = at + critic.as_ref().map_or(0, Critic::state_len);
        if parts.iter().sum::<usize>() != packed {
            return Err(Error::mismatch("state of a plan", format!("{parts:?}"), packed));
        }
        let (trunk, mut zero, widest) = (policy.trunk_width(), state.to_vec()?, packer.widest());
        Ok(move |(arena, matrices): (Arena, _)| {
            arena.read(|arena| {
                backbone.start(arena, &mut zero, 0);
                critic.iter().for_each(|critic| critic.start(arena, &mut zero));
                embedding.pack_net(arena)
            })??;
            Ok(Plan {
                format,
                matrices,
                arena,
                embedding,
                backbone,
                critic,
                heads,
                trunk,
                zero,
                parts,
                widest,
            })
        })
    }

    /// The requested format of the matrices.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The encoding in use: the one with the fewest bits that any matrix uses.
    pub fn encoding(&self) -> Encoding {
        let all = self.matrices.iter().map(|matrix| matrix.encoding);
        all.min_by_key(|encoding| encoding.bits()).unwrap_or(Encoding::F32)
    }

    /// The encoding of each matrix.
    pub fn matrices(&self) -> &[Packed] {
        &self.matrices
    }

    /// A decision for [`Plan::step`] to write to.
    pub fn blank(&self) -> Decision {
        self.heads.blank()
    }

    /// The initial state of a game: the parts of a `crate::backbone::State`, one after the other.
    pub fn zero_state(&self) -> &[f32] {
        &self.zero
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.arena.bytes() + self.embedding.net_bytes()
    }

    /// The packed weights.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// One decision for one frame of each game. An error becomes the outcome of its game and affects no other game.
    ///
    /// # Errors of a game
    /// `NonFinite` for non-finite logits or a non-finite number in the state. `OutOfRange` and `Mismatch` for inputs
    /// that do not fit the policy. `Corrupt` if the weights are a file that has changed since it was opened.
    pub fn step(&self, games: &mut [Game<'_>], scratch: &mut Scratch) {
        if games.iter().any(|game| game.check_state(self.zero.len()).is_err()) {
            // A game does not fit. Step only those that do, because layers rely on equal state lengths.
            return self.step_those_that_fit(games, scratch);
        }
        for games in games.chunks_mut(AT_ONCE) {
            self.step_read(games, scratch);
        }
    }

    fn step_read(&self, games: &mut [Game<'_>], scratch: &mut Scratch) {
        let read = self.arena.read(|arena| self.step_some(arena, games, scratch));
        let Err(error) = read else { return };
        // Each game gets an error of its own, also if the file has become right again.
        let (text, mut first) = (error.to_string(), Some(error));
        for game in games {
            let other = || Error::corrupt("packed weights", &text);
            game.outcome = Err(first.take().unwrap_or_else(other));
        }
    }

    fn step_those_that_fit(&self, games: &mut [Game<'_>], scratch: &mut Scratch) {
        for game in games {
            game.outcome = game.check_state(self.zero.len());
            if game.outcome.is_ok() {
                self.step_read(std::slice::from_mut(game), scratch);
            }
        }
    }

    fn step_some(&self, arena: &[f32], games: &mut [Game<'_>], scratch: &mut Scratch) {
        scratch.fit(self.widest, games.len());
        let rows = scratch.x.chunks_exact_mut(self.embedding.width());
        for (game, x) in games.iter_mut().zip(rows) {
            (game.outcome, game.suspect) = (self.heads.check(game), false);
            game.then(|game| self.embedding.write(arena, &game.frame, x));
            if game.outcome.is_err() {
                x.fill(0.0);
            }
        }
        if let Some(critic) = &self.critic {
            critic.step(arena, games, self.embedding.width(), scratch);
        }
        self.backbone.step(arena, games, 0, scratch);
        let rows = scratch.x.chunks_exact_mut(self.trunk);
        for (game, x) in games.iter_mut().zip(rows) {
            game.then(|game| game.projection.map_or(Ok(()), |projection| projection.apply_to(x)));
        }
        self.heads.act(arena, games, scratch);
        for game in games {
            game.then(|game| self.check_finite(game));
        }
    }

    fn check_finite(&self, game: &Game<'_>) -> Result<()> {
        if let Some(value) = non_finite(&game.decision.logits) {
            return Err(Error::NonFinite { what: "logits".into(), value: value.into() });
        }
        let mut wrong = None;
        let mut check = |range: Range<usize>| {
            let found = || game.state[range.clone()].iter().position(|v| !v.is_finite());
            if wrong.is_none() && non_finite(&game.state[range.clone()]).is_some() {
                wrong = found().map(|i| range.start + i);
            }
        };
        match game.suspect {
            true => self.changed(game.state, 1, &mut check),
            false => self.kept(game.state, 1, &mut check),
        }
        let Some(at) = wrong else { return Ok(()) };
        let ends = self.parts.iter().scan(0, |end, width| {
            *end += width;
            Some(*end)
        });
        let part = ends.take_while(|end| *end <= at).count();
        let value = game.state[at].into();
        Err(Error::NonFinite { what: format!("state[{part}]"), value })
    }

    /// Reports the ranges of the state of a game that the last `steps` steps may have changed.
    fn changed(&self, state: &[f32], steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        self.backbone.changed(state, 0, steps, each);
        if let Some(critic) = &self.critic {
            critic.changed(state, steps, each);
        }
    }

    /// [`changed`](Self::changed) without the ranges that each step replaces ([`Step::kept`]).
    fn kept(&self, state: &[f32], steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        self.backbone.kept(state, 0, steps, each);
        if let Some(critic) = &self.critic {
            critic.kept(state, steps, each);
        }
    }

    /// Updates `old`, the state of a game `steps` steps before `now`, to `now`, copying only the ranges that changed.
    ///
    /// # Shapes
    /// Both have `[state_len]`. `steps` is at least 1.
    pub fn catch_up(&self, old: &mut [f32], now: &[f32], steps: usize) {
        self.changed(now, steps, &mut |range| {
            old[range.clone()].copy_from_slice(&now[range]);
        });
    }

    /// [`catch_up`](Self::catch_up) for a step from `now` as [`Game::before`] to `old` as its state. It leaves out what the
    /// step replaces.
    pub fn prepare(&self, old: &mut [f32], now: &[f32], steps: usize) {
        self.kept(now, steps, &mut |range| {
            old[range.clone()].copy_from_slice(&now[range]);
        });
    }
}
