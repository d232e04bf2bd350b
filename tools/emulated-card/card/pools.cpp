#include "pools.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>

using namespace card;

using Device = int;
using Handle = void *;

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

// Bytes by which a pool grows. In blocks of SCONCE_EMULATED_BLOCK_MB it also shrinks only by them, and its limit is
// rounded up to them, as those of 32 MiB of a real driver.
const bool in_blocks = getenv("SCONCE_EMULATED_BLOCK_MB") != nullptr;
const size_t CHUNK = in_blocks ? std::max(1l, atol(getenv("SCONCE_EMULATED_BLOCK_MB"))) << 20 : 2 << 20;

size_t to_chunks(size_t bytes) { return (bytes + CHUNK - 1) / CHUNK * CHUNK; }

// The default pools, and the current pool of each card. All cards share one memory.
Pool standard[MOST_CARDS], *chosen[MOST_CARDS];
// A destroyed pool stays until its last allocation is free.
auto &all = lasting<std::set<Pool *>>(), &destroyed = lasting<std::set<Pool *>>();

[[maybe_unused]] const bool begun = [] {
  for (int card = 0; card < MOST_CARDS; card++) {
    standard[card].card = card;
    chosen[card] = &standard[card];
    all.insert(&standard[card]);
  }
  return true;
}();

void check_card(Device card) { check(card >= 0 && card < MOST_CARDS, INVALID_DEVICE); }

Pool &known(Handle handle) {
  Pool *found = static_cast<Pool *>(handle);
  check(all.count(found) && !destroyed.count(found), INVALID_VALUE);
  return *found;
}

void trim(Pool &pool, size_t keep) {
  const size_t kept = std::max(pool.used, keep);
  if (kept >= pool.reserved) return;
  pool.reserved = in_blocks ? std::min(pool.reserved, to_chunks(kept)) : kept;
}

bool fits(size_t bytes) { return memory::used() + bytes <= memory::total(); }

void end(Pool *pool) {
  all.erase(pool), destroyed.erase(pool);
  delete pool;
}

// A property of CUmemPoolProps.
template <typename T> T property(const char *properties, size_t offset) {
  T value;
  memcpy(&value, properties + offset, sizeof value);
  return value;
}

} // namespace

namespace card::pools {

Pool &current(int card) { return *chosen[card]; }

// Takes unused memory of pools if the card is full.
void make_room(size_t bytes) {
  if (fits(bytes)) return;
  for (Pool *pool : all) trim(*pool, 0);
  check(fits(bytes), OUT_OF_MEMORY);
}

size_t reserved() {
  size_t bytes = 0;
  for (const Pool *pool : all) bytes += pool->reserved;
  return bytes;
}

void take(Pool *pool, size_t bytes) {
  if (pool == nullptr) return make_room(bytes);
  const size_t used = pool->used + bytes;
  check(pool->most == 0 || used <= pool->most, OUT_OF_MEMORY);
  if (used > pool->reserved) {
    const size_t chunks = to_chunks(used);
    const size_t wanted = pool->most == 0 ? chunks : std::min(chunks, pool->most);
    if (fits(wanted - pool->reserved)) {
      pool->reserved = wanted;
    } else {
      trim(*pool, 0);
      make_room(used - pool->reserved);
      pool->reserved = used;
    }
  }
  pool->used = used;
  pool->used_high = std::max(pool->used_high, used);
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
}

void put(Pool *pool, size_t bytes) {
  if (pool == nullptr) return;
  pool->used -= bytes;
  if (pool->used == 0 && destroyed.count(pool)) end(pool);
}

void settle() {
  for (Pool *pool : all) trim(*pool, pool->threshold);
}

} // namespace card::pools

DRIVER int cuMemPoolCreate(Handle *handle, const char *properties) {
  return answer([&] {
    constexpr size_t TYPE = 0, PLACE = 8, DEVICE = 12, MOST = 24;
    const bool pinned = property<int>(properties, TYPE) == 1, on_card = property<int>(properties, PLACE) == 1;
    const Device card = property<int>(properties, DEVICE);
    check(pinned && on_card && card >= 0 && card < MOST_CARDS, INVALID_VALUE);
    const size_t most = property<size_t>(properties, MOST);
    Pool *pool = new Pool{card, in_blocks ? to_chunks(most) : most};
    all.insert(pool);
    *handle = pool;
  });
}
DRIVER int cuMemPoolDestroy(Handle handle) {
  return answer([&] {
    Pool &gone = known(handle);
    check(&gone != &standard[gone.card], INVALID_VALUE);
    if (chosen[gone.card] == &gone) chosen[gone.card] = &standard[gone.card];
    gone.threshold = 0;
    destroyed.insert(&gone);
    if (gone.used == 0) end(&gone);
  });
}
DRIVER int cuMemPoolTrimTo(Handle handle, size_t keep) {
  return answer([&] { trim(known(handle), keep); });
}
DRIVER int cuMemPoolGetAttribute(Handle handle, int attribute, uint64_t *value) {
  return answer([&] {
    const Pool &pool = known(handle);
    switch (attribute) {
    case 4: *value = pool.threshold; break;
    case 5: *value = pool.reserved; break;
    case 6: *value = pool.reserved_high; break;
    case 7: *value = pool.used; break;
    case 8: *value = pool.used_high; break;
    default: throw INVALID_VALUE;
    }
  });
}
DRIVER int cuMemPoolSetAttribute(Handle handle, int attribute, uint64_t *value) {
  return answer([&] {
    Pool &pool = known(handle);
    switch (attribute) {
    // Policies for the reuse of freed memory: here it is always reused.
    case 1: case 2: case 3: break;
    case 4: pool.threshold = *value; break;
    case 6: check(*value == 0, INVALID_VALUE), pool.reserved_high = pool.reserved; break;
    case 8: check(*value == 0, INVALID_VALUE), pool.used_high = pool.used; break;
    default: throw INVALID_VALUE;
    }
  });
}
DRIVER int cuDeviceGetDefaultMemPool(Handle *pool, Device device) {
  return answer([&] {
    check_card(device);
    *pool = &standard[device];
  });
}
DRIVER int cuDeviceGetMemPool(Handle *pool, Device device) {
  return answer([&] {
    check_card(device);
    *pool = chosen[device];
  });
}
DRIVER int cuDeviceSetMemPool(Device device, Handle pool) {
  return answer([&] {
    check_card(device);
    check(known(pool).card == device, INVALID_VALUE);
    chosen[device] = &known(pool);
  });
}

// Only the pool's own card may access its memory, unless others are added here.
DRIVER int cuMemPoolSetAccess(Handle handle, const int *descriptions, size_t count) {
  return answer([&] {
    constexpr int DEVICE = 1, READ_AND_WRITE = 3;
    Pool &pool = known(handle);
    for (const int *each = descriptions; count-- > 0; each += 3) {
      check(each[0] == DEVICE && each[1] != pool.card, INVALID_VALUE);
      check_card(each[1]);
      if (each[2] == READ_AND_WRITE) pool.others.insert(each[1]);
      else pool.others.erase(each[1]);
    }
  });
}
DRIVER int cuDeviceCanAccessPeer(int *can, Device card, Device other) {
  return answer([&] {
    check_card(card), check_card(other);
    *can = card != other;
  });
}
