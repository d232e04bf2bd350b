//! A duel of two players with hidden information.
//!
//! Two players face each other on a line from -1 to 1. In each frame a player moves, by up to 0.05, and chooses an act:
//! wait, strike, guard or throw. An act commits the player: a strike and a throw wind up before they land, a guard is
//! held. Committed players move at half speed. The opponent sees that a player is committed, but sees the act only when
//! it lands or ends, and never sees the player's stamina. Each act costs stamina, which recovers with time.
//!
//! An act that lands within reach scores a touch:
//!
//! | lands | against | result |
//! |---|---|---|
//! | strike | guard | touch for the guard |
//! | strike | anything else | touch, unless both strikes land in this frame |
//! | throw | strike | nothing; the strike goes on |
//! | throw | anything else | touch, unless both throws land in this frame |
//!
//! A strike winds up faster than a throw, so strike beats throw, throw beats guard, and guard beats strike. After a
//! touch both players return to their places. Three touches win. At the time limit the player with more touches wins.
//! A player that stands still and waits never scores, and so never wins.
//!
//! Reward terms: `touch`, 1 for a touch and -1 for one received, and `win`, 1 for a win and -1 for a loss. The time limit
//! is a rule of the game: the last frame is a termination as well as a truncation.
//!
//! The start is the same for both players but for the distance between them, and no rule knows the seat. So the game is
//! fair, and swapping the players mirrors it exactly.

use sconce_game::InputPart;

use super::{Dynamics, Player, World, choice, continuous, uniform};
use crate::vectorised::Kernel;

const WAIT: f32 = 0.0;
const STRIKE: f32 = 1.0;
const GUARD: f32 = 2.0;
const THROW: f32 = 3.0;

/// Largest move per frame.
const SPEED: f32 = 0.05;
/// Factor of the speed of a committed player.
const COMMITTED: f32 = 0.5;
/// Smallest distance of the players.
const BODY: f32 = 0.1;
/// Distance within which acts land.
const REACH: f32 = 0.3;
/// Distance from the middle at the start and after a touch.
const PLACE: f32 = 0.3;
/// Largest change of that distance at the start.
const OFFSET: f32 = 0.05;
const TOUCHES: f32 = 3.0;
/// Stamina per frame. The maximum is 1.
const RECOVERY: f32 = 0.012;
/// Frames after a strike or a throw in which a player is committed.
const AFTER_ATTACK: f32 = 8.0;
/// Frames after a guard in which a player is committed.
const AFTER_GUARD: f32 = 3.0;

/// The duel.
pub(crate) const WORLD: World = World {
    name: "duel",
    inputs: parts,
    time_limit: 300,
    terms: &["touch", "win"],
    players: &PLAYERS,
    solved: None,
    image: None,
    kernel: Kernel::new::<Duel, 16, 4, 19, 2>(),
};

/// `striker` beats `thrower`, `thrower` beats `guarder`, and `guarder` beats `striker`. `mixer` changes between the three.
const PLAYERS: [(&str, Player); 5] = [
    ("striker", striker),
    ("guarder", guarder),
    ("thrower", thrower),
    ("mixer", mixer),
    ("idle", idle),
];

fn parts() -> Vec<InputPart> {
    vec![
        continuous("move", "speed towards the opponent, as a share of the largest speed", 1.0),
        choice("act", "0 waits, 1 strikes, 2 guards, 3 throws", 4),
    ]
}

/// A player in its own view: the opponent is in front of it, in the direction of positive numbers.
#[derive(Clone, Copy)]
struct Seat {
    position: f32,
    velocity: f32,
    stamina: f32,
    /// The act in progress.
    act: f32,
    /// Frames until the act lands or ends, or until the player is free again.
    remaining: f32,
    /// The last act that the opponent has seen.
    shown: f32,
    touches: f32,
}

impl Seat {
    #[inline(always)]
    fn read(s: &[f32; 16], at: usize) -> Self {
        let [position, velocity, stamina, act] = [s[at], s[at + 1], s[at + 2], s[at + 3]];
        let [remaining, shown, touches] = [s[at + 4], s[at + 5], s[at + 6]];
        Seat { position, velocity, stamina, act, remaining, shown, touches }
    }

    #[inline(always)]
    fn write(self, s: &mut [f32; 16], at: usize) {
        (s[at], s[at + 1], s[at + 2], s[at + 3]) =
            (self.position, self.velocity, self.stamina, self.act);
        (s[at + 4], s[at + 5], s[at + 6]) = (self.remaining, self.shown, self.touches);
    }

    /// Begins an act if the player is free and has the stamina, or continues the act in progress. Returns the player and
    /// whether its act lands or ends in this frame.
    #[inline(always)]
    fn commit(mut self, chosen: f32) -> (Self, bool) {
        let free = self.remaining <= 0.0;
        let cost = pick(chosen, [0.0, 0.25, 0.2, 0.3]);
        let begins = free & (chosen != WAIT) & (self.stamina >= cost);
        let ends = !free & (self.remaining <= 1.0) & (self.act != WAIT);
        let going = if free { WAIT } else { self.act };
        self.act = if begins { chosen } else { going };
        let left = (self.remaining - 1.0).max(0.0);
        self.remaining = if begins { pick(chosen, [0.0, 5.0, 15.0, 8.0]) } else { left };
        let paid = if begins { cost } else { 0.0 };
        self.stamina = (self.stamina - paid + RECOVERY).min(1.0);
        (self, ends)
    }

    /// The position after the move of this frame, before players push each other apart.
    #[inline(always)]
    fn walk(mut self, share: f32) -> Self {
        let pace = if self.remaining > 0.0 { COMMITTED * SPEED } else { SPEED };
        self.velocity = share.clamp(-1.0, 1.0) * pace;
        self.position = (self.position + self.velocity).clamp(-1.0, 1.0);
        self
    }

    /// Keeps the player at half the smallest distance from the middle of the two players.
    #[inline(always)]
    fn part(mut self, other: Seat) -> Self {
        let most = 1.0 - BODY / 2.0;
        let middle = ((self.position - other.position) / 2.0).clamp(-most, most);
        self.position = self.position.min(middle - BODY / 2.0);
        self
    }

    /// Whether the act that lands scores a touch.
    #[inline(always)]
    fn scores(self, lands: bool, other: Seat, other_lands: bool, reaches: bool) -> bool {
        let guarded = (other.act == GUARD) & !other_lands;
        let strikes = (self.act == STRIKE) & !guarded & !((other.act == STRIKE) & other_lands);
        let throws =
            (self.act == THROW) & (other.act != STRIKE) & !((other.act == THROW) & other_lands);
        lands & reaches & (strikes | throws)
    }

    /// Whether a guard is struck.
    #[inline(always)]
    fn counters(self, lands: bool, other: Seat, other_lands: bool, reaches: bool) -> bool {
        (self.act == GUARD) & !lands & (other.act == STRIKE) & other_lands & reaches
    }

    /// The player after the frame. `touch` says whether somebody scored, `scored` whether this player did.
    #[inline(always)]
    fn settle(mut self, ends: bool, touch: bool, scored: bool) -> Self {
        let shows = (ends | touch) & (self.act != WAIT);
        self.shown = if shows { self.act } else { self.shown };
        let after = if self.act == GUARD { AFTER_GUARD } else { AFTER_ATTACK };
        let remaining = if ends { after } else { self.remaining };
        self.remaining = if touch { 0.0 } else { remaining };
        self.act = if ends | touch { WAIT } else { self.act };
        self.position = if touch { -PLACE } else { self.position };
        self.velocity = if touch { 0.0 } else { self.velocity };
        self.touches += if scored { 1.0 } else { 0.0 };
        self
    }
}

/// Entry `at` of a table, without a branch.
#[inline(always)]
fn pick(at: f32, table: [f32; 4]) -> f32 {
    let upper = if at == THROW { table[3] } else { table[2] };
    let lower = if at == STRIKE { table[1] } else { table[0] };
    if at >= GUARD { upper } else { lower }
}

struct Duel;

/// The first numbers of the two seats in the state; two numbers follow, the frame and the share of time elapsed.
const SEATS_AT: [usize; 2] = [0, 7];
const FRAME: usize = 14;
const TIME: usize = 15;

impl Dynamics<16, 4, 19, 2> for Duel {
    const SEATS: usize = 2;

    fn start(words: [u32; 4]) -> [f32; 16] {
        let mut state = [0.0; 16];
        let position = -PLACE + uniform(words[0], -OFFSET, OFFSET);
        for at in SEATS_AT {
            (state[at], state[at + 2]) = (position, 1.0);
        }
        state
    }

    #[inline(always)]
    fn step<const FMA: bool>(
        mut state: [f32; 16],
        [move_a, act_a, move_b, act_b]: [f32; 4],
        limit: f32,
    ) -> ([f32; 16], [f32; 2], bool) {
        let (a, a_ends) = Seat::read(&state, SEATS_AT[0]).commit(act_a);
        let (b, b_ends) = Seat::read(&state, SEATS_AT[1]).commit(act_b);
        let (a, b) = (a.walk(move_a), b.walk(move_b));
        let (a, b) = (a.part(b), b.part(a));
        let reaches = -(a.position + b.position) <= REACH;
        let scored = |own: Seat, ends, other: Seat, other_ends| {
            own.scores(ends, other, other_ends, reaches)
                | own.counters(ends, other, other_ends, reaches)
        };
        let (a_scored, b_scored) = (scored(a, a_ends, b, b_ends), scored(b, b_ends, a, a_ends));
        let touch = a_scored | b_scored;
        let (a, b) = (a.settle(a_ends, touch, a_scored), b.settle(b_ends, touch, b_scored));
        a.write(&mut state, SEATS_AT[0]);
        b.write(&mut state, SEATS_AT[1]);
        state[FRAME] += 1.0;
        state[TIME] = state[FRAME] / limit;
        let over = (a.touches >= TOUCHES) | (b.touches >= TOUCHES) | (state[FRAME] >= limit);
        let win = sign(a.touches, b.touches);
        let touched = f32::from(u8::from(a_scored)) - f32::from(u8::from(b_scored));
        (state, [touched, if over { win } else { 0.0 }], over)
    }

    /// `[own position, opponent's position, distance, own velocity, opponent's velocity, own stamina, own act (one of
    /// four), frames left / 15, opponent is committed, act that the opponent showed last (one of four), own touches / 3,
    /// opponent's touches / 3, share of time elapsed]`, all in the view of the seat. Velocities are shares of the largest.
    #[inline(always)]
    fn observe<const FMA: bool>(state: [f32; 16], seat: usize) -> [f32; 19] {
        let (a, b) = (Seat::read(&state, SEATS_AT[0]), Seat::read(&state, SEATS_AT[1]));
        let (own, other) = if seat == 0 { (a, b) } else { (b, a) };
        let [own_0, own_1, own_2, own_3] = one_hot(own.act);
        let [shown_0, shown_1, shown_2, shown_3] = one_hot(other.shown);
        [
            own.position,
            // Not `-position`, which would show the middle of the line as -0.
            0.0 - other.position,
            0.0 - (own.position + other.position),
            own.velocity / SPEED,
            0.0 - other.velocity / SPEED,
            own.stamina,
            own_0,
            own_1,
            own_2,
            own_3,
            own.remaining / 15.0,
            if other.remaining > 0.0 { 1.0 } else { 0.0 },
            shown_0,
            shown_1,
            shown_2,
            shown_3,
            own.touches / TOUCHES,
            other.touches / TOUCHES,
            state[TIME],
        ]
    }
}

#[inline(always)]
fn one_hot(act: f32) -> [f32; 4] {
    [WAIT, STRIKE, GUARD, THROW].map(|other| if act == other { 1.0 } else { 0.0 })
}

/// 1, 0 or -1.
#[inline(always)]
fn sign(a: f32, b: f32) -> f32 {
    let ahead = if a > b { 1.0 } else { 0.0 };
    if a < b { -1.0 } else { ahead }
}

/// The part of an observation that scripted players read.
struct View {
    distance: f32,
    committed: bool,
}

impl View {
    fn of(observation: &[f32]) -> Self {
        let number = |at: usize| observation.get(at).copied().unwrap_or_default();
        View { distance: number(2), committed: number(11) > 0.0 }
    }

    /// Whether acts land, with a random margin below the reach.
    fn reaches(&self, word: u32) -> bool {
        self.distance <= REACH - uniform(word, 0.0, 0.05)
    }
}

fn write(input: &mut [f32], share: f32, act: f32) {
    if let [to_share, to_act] = input {
        (*to_share, *to_act) = (share, act);
    }
}

/// Approaches and attacks as soon as the opponent is within reach.
fn attack(observation: &[f32], words: [u32; 4], input: &mut [f32], act: f32) {
    let reaches = View::of(observation).reaches(words[0]);
    write(input, 1.0, if reaches { act } else { WAIT });
}

fn striker(observation: &[f32], words: [u32; 4], input: &mut [f32]) {
    attack(observation, words, input, STRIKE);
}

fn thrower(observation: &[f32], words: [u32; 4], input: &mut [f32]) {
    attack(observation, words, input, THROW);
}

/// Approaches, guards when the opponent commits, and sometimes strikes an opponent that does not.
fn guarder(observation: &[f32], words: [u32; 4], input: &mut [f32]) {
    let view = View::of(observation);
    let bold = uniform(words[1], 0.0, 1.0) < 0.05;
    let act = match (view.distance <= REACH + 0.1, view.committed) {
        (true, true) => GUARD,
        (true, false) if bold && view.reaches(words[0]) => STRIKE,
        _ => WAIT,
    };
    write(input, 1.0, act);
}

/// Plays as one of the others, chosen in each frame.
fn mixer(observation: &[f32], words: [u32; 4], input: &mut [f32]) {
    match words[2] % 3 {
        0 => striker(observation, words, input),
        1 => guarder(observation, words, input),
        _ => thrower(observation, words, input),
    }
}

fn idle(_observation: &[f32], _words: [u32; 4], input: &mut [f32]) {
    write(input, 0.0, WAIT);
}
