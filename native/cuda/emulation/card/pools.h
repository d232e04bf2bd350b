// Pools of memory that streams take theirs from, which has a limit and is kept when it is free.
#pragma once
#include "card.h"

namespace card {

struct Pool {
  // Bytes that it may have; 0 is no limit. How many it keeps when somebody waits.
  size_t most, threshold = 0;
  // Bytes in use, and those that it has of the card.
  size_t used = 0, reserved = 0, used_high = 0, reserved_high = 0;
};

namespace pools {

// That of the card's allocations that name none.
Pool &current();
// Of all pools.
size_t reserved();
// Takes and gives back memory of a pool, or of the card where there is none.
void take(Pool *pool, size_t bytes);
void put(Pool *pool, size_t bytes);
// Somebody has waited.
void settle();

} // namespace pools
} // namespace card
