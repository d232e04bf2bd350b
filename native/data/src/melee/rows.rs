//! One player's view of a replay, with that player's fields first.

use sconce_game::melee::{
    DISTANCE, FRAME, NAME_ID, OPPONENT, OWN, PROJECTILE_WIDTH, PROJECTILES, STAGE,
};

use super::place::{self, ITEM_SLOTS, NUM_ITEM, NUM_PLAYER};
use crate::rows::Rows;
use crate::shard::Shard;

/// Players have control from frame -39 on, so the state after frame -40 is the first with a label.
const FIRST_STATE: f32 = -40.0;
const NUM_BUTTONS: usize = 8;

/// Rows of a replay. The input of a frame produced the state after it, so the next row's input answers a state.
#[derive(Debug)]
pub(crate) struct Replays;

impl Rows for Replays {
    fn first(&self, shard: &Shard) -> usize {
        let begun = |&row: &usize| shard.get(place::FRAME, row) >= FIRST_STATE;
        (0..shard.frames()).find(begun).unwrap_or(shard.frames())
    }

    fn answers_after(&self) -> usize {
        1
    }

    fn frame_number(&self, shard: &Shard, row: usize) -> i32 {
        shard.get(place::FRAME, row) as i32
    }

    fn state(&self, shard: &Shard, own: usize, row: usize, out: &mut [f32]) {
        for (at, player) in [(OWN, own), (OPPONENT, 1 - own)] {
            for i in 0..NUM_PLAYER {
                out[at + i] = shard.get(place::player(player) + i, row);
            }
        }
        out[STAGE] = shard.game.stage.into();
        out[FRAME] = shard.get(place::FRAME, row);
        // The embedding computes the distance if this value is 0. Names are unknown.
        out[DISTANCE] = 0.0;
        out[NAME_ID] = 0.0;
        out[PROJECTILES] = shard.get(place::ITEM_COUNT, row);
        for slot in 0..ITEM_SLOTS {
            let at = PROJECTILES + 1 + slot * PROJECTILE_WIDTH;
            for i in 0..NUM_ITEM {
                out[at + i] = shard.get(place::item(slot) + i, row);
            }
            out[at] = owner_for(own, out[at]);
        }
    }

    fn input(&self, shard: &Shard, player: usize, row: usize, out: &mut [f32]) {
        let at = place::controller(player);
        let mask = shard.get(at, row) as u8;
        for (i, out) in out.iter_mut().enumerate() {
            *out = match i.checked_sub(NUM_BUTTONS) {
                None => f32::from(mask >> i & 1),
                Some(axis) => shard.get(at + 1 + axis, row),
            };
        }
    }
}

/// Converts an item owner, 1 for p0 and 2 for p1, to 1 for the own player and 2 for the opponent.
fn owner_for(own: usize, owner: f32) -> f32 {
    if own == 1 && owner > 0.0 { 3.0 - owner } else { owner }
}
