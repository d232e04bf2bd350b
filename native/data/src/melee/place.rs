//! Counts and indices of the columns of a Melee shard.

/// Player columns, in the order of the embedding's raw frame.
pub(crate) const NUM_PLAYER: usize = 25;
/// Controller columns: one button mask, four axes and the shoulder.
pub(crate) const NUM_CONTROLLER: usize = 6;
pub(crate) const NUM_ITEM: usize = 6;
pub(crate) const ITEM_SLOTS: usize = 5;

/// Offsets of the percent and of the action id in a player's columns.
pub(crate) const PERCENT: usize = 0;
pub(crate) const ACTION: usize = 4;

pub(crate) const FRAME: usize = 0;
pub(crate) const ITEM_COUNT: usize = 1;

/// Index of the first column of player `p` (0 or 1).
pub(crate) const fn player(p: usize) -> usize {
    2 + p * (NUM_PLAYER + NUM_CONTROLLER)
}

pub(crate) const fn controller(p: usize) -> usize {
    player(p) + NUM_PLAYER
}

pub(crate) const fn item(slot: usize) -> usize {
    player(2) + slot * NUM_ITEM
}
