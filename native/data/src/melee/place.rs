//! How many columns there are of each kind, and where they stand.

/// Player columns, in the order of the embedding's raw frame.
pub(crate) const NUM_PLAYER: usize = 25;
/// Controller columns: the buttons as one mask, then four axes and the shoulder.
pub(crate) const NUM_CONTROLLER: usize = 6;
pub(crate) const NUM_ITEM: usize = 6;
pub(crate) const ITEM_SLOTS: usize = 5;

pub(crate) const FRAME: usize = 0;
pub(crate) const ITEM_COUNT: usize = 1;

/// First of a player's columns (`p` is 0 or 1).
pub(crate) const fn player(p: usize) -> usize {
    2 + p * (NUM_PLAYER + NUM_CONTROLLER)
}

pub(crate) const fn controller(p: usize) -> usize {
    player(p) + NUM_PLAYER
}

pub(crate) const fn item(slot: usize) -> usize {
    player(2) + slot * NUM_ITEM
}
