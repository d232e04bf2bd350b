// Pools of memory that streams take theirs from, which has a limit and is kept when it is free.
#pragma once
#include "card.h"

namespace card {

struct Pool {
  int card;
  // Bytes that it may have; 0 is no limit. How many it keeps when somebody waits.
  size_t most, threshold = 0;
  // Bytes in use, and those that it has of the card.
  size_t used = 0, reserved = 0, used_high = 0, reserved_high = 0;
  // Other cards that may touch what is of it.
  std::set<int> others = {};
};

namespace pools {

// That of a card's allocations that name none.
Pool &current(int card);
// Makes room for so many bytes that are no pool's.
void make_room(size_t bytes);
// Of all pools.
size_t reserved();
// Takes and gives back memory of a pool, or of the card where there is none.
void take(Pool *pool, size_t bytes);
void put(Pool *pool, size_t bytes);
// Somebody has waited.
void settle();

// Bytes that streams keep for graphs.
size_t kept_for_graphs();

} // namespace pools
} // namespace card
