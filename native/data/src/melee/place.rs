//! How many columns there are of each kind, and where they stand.

/// Player columns, in the order of the embedding's raw frame.
pub const NUM_PLAYER: usize = 25;
/// Controller columns: the buttons as one mask, then four axes and the shoulder.
pub const NUM_CONTROLLER: usize = 6;
pub const NUM_ITEM: usize = 6;
pub const ITEM_SLOTS: usize = 5;

pub const FRAME: usize = 0;
pub const ITEM_COUNT: usize = 1;

/// First of a player's columns (`p` is 0 or 1).
pub const fn player(p: usize) -> usize {
    2 + p * (NUM_PLAYER + NUM_CONTROLLER)
}

pub const fn controller(p: usize) -> usize {
    player(p) + NUM_PLAYER
}

pub const fn item(slot: usize) -> usize {
    player(2) + slot * NUM_ITEM
}
