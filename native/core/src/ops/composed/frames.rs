//! Along the frames of a game.
