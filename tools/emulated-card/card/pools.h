// Memory pools of streams, with a limit and a cache of freed memory.
#pragma once
#include "card.h"

namespace card {

struct Pool {
  int card;
  // Maximum bytes, 0 for no limit, and the bytes that it keeps when a stream is synchronised.
  size_t most, threshold = 0;
  // Bytes in use, and bytes taken from the card, with their peaks.
  size_t used = 0, reserved = 0, used_high = 0, reserved_high = 0;
  // Other cards that may access its memory.
  std::set<int> others = {};
};

namespace pools {

// The pool of a card's allocations that name no pool.
Pool &current(int card);
// Makes room for bytes outside of pools.
void make_room(size_t bytes);
// Bytes that all pools have taken from the card.
size_t reserved();
// Takes and returns memory of a pool, or of the card for a null pool.
void take(Pool *pool, size_t bytes);
void put(Pool *pool, size_t bytes);
// Trims pools to their thresholds. Called after each synchronisation.
void settle();

// Bytes that streams keep for graphs.
size_t kept_for_graphs();

} // namespace pools
} // namespace card
