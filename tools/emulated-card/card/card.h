// Shared code of the emulated card's libraries: memory, and streams of work.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace card {

// The largest number of cards. SCONCE_EMULATED_CARDS sets the number; the default is 1.
constexpr int MOST_CARDS = 8;

// Values of CUresult.
enum Status {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  COOPERATIVE_TOO_LARGE = 720,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNJOINED = 904,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  CAPTURE_WRONG_THREAD = 908,
};

// A value that is never destroyed: threads may still make calls when the process ends.
template <typename T> T &lasting() { return *new T; }

// Serialises the driver's calls.
extern std::recursive_mutex lock;

// Runs a call under the lock, and returns the status that it throws.
template <typename Call> int answer(Call call) {
  std::lock_guard guard(lock);
  try {
    call();
    return SUCCESS;
  } catch (Status status) {
    return status;
  }
}

inline void check(bool holds, Status otherwise) {
  if (!holds) throw otherwise;
}

// Prints the fault and ends the process, where a card would continue with undefined results.
[[noreturn, gnu::format(printf, 1, 2), gnu::visibility("default")]] void die(const char *format, ...);

#define ABSENT(function)                                                                                              \
  extern "C" __attribute__((visibility("default"))) void function() { card::die("there is no " #function); }

// Values of CUgraphNodeType.
enum class Kind { Kernel = 0, Copy = 1, Fill = 2, Call = 3, Allocation = 10, Free = 11 };

// Values of CUmemorytype.
enum class Memory { Host = 1, Card = 2, Either = 4 };

// What a graph tells of its work.
struct Node {
  struct Place {
    uintptr_t address;
    Memory memory;
  };
  Kind kind = Kind::Kernel;
  // Those of a copy.
  Place to = {}, from = {};
  size_t bytes = 0;
};

// A piece of work in a queue, or in a graph.
struct Work {
  const char *name;
  std::function<void()> run;
  Node node = {};
};

struct Pool;

// The card of the thread's context, or -1 without a context, which most calls need.
__attribute__((visibility("default"))) int current_card();
// Synchronises a card, as libraries do when they are created and destroyed. An error while any stream of the card is
// being captured.
__attribute__((visibility("default"))) int wait_for_card();
// Allocates and frees memory of the card for a library's own use.
__attribute__((visibility("default"))) uintptr_t lend(size_t bytes);
__attribute__((visibility("default"))) void take_back(uintptr_t address);
// Whether kernels of a card may access the memory at an address.
__attribute__((visibility("default"))) bool reaches(int card, const void *address);

namespace memory {

constexpr size_t ALIGNMENT = 256;

// The bytes lie at the end of whole pages, followed by an inaccessible page.
struct Allocation {
  uintptr_t pages;
  size_t page_count, bytes;
  uintptr_t address;
  // Whether the memory exists, and whether its release was requested.
  bool there = false, freed = false;
  // The card that allocated it, and its pool, if any.
  int card = 0;
  Pool *pool = nullptr;
  // Whether it belongs to a graph, which has it at this address in each launch, in memory that the graph's streams
  // keep.
  bool of_graph = false;
  // Whether it counts as in use.
  bool counted = false;
};

// A size rounded up to the alignment.
size_t rounded(size_t bytes);

// Bytes of the card.
size_t total();
// Bytes in use or kept by a pool.
size_t used();
// A new address without memory.
uintptr_t address_of(size_t bytes);
// Attach memory to an address, detach it, and end the use of the address.
void give(uintptr_t address);
void take(uintptr_t address);
void forget(uintptr_t address);
// The allocation that contains all of these bytes, if there is one that was not freed.
Allocation *around(uintptr_t address, size_t bytes);
// The allocation that begins at an address.
Allocation &at(uintptr_t address);

// Pinned memory of the host, which the card may access at any time.
void *pin(size_t bytes);
void unpin(void *pointer);
bool pinned(const void *pointer, size_t bytes);

// Installs signal handlers that report invalid accesses.
void watch();

} // namespace memory

struct Capture;

// A stream: a queue of work. Nothing in it runs until a call waits for it, so that a missing wait has a visible effect,
// or until the queue is as long as a card's. `of_graphs` counts the memory that its graphs took, which it keeps for the
// next graph.
struct Stream {
  bool waits_for_legacy;
  int card;
  size_t of_graphs = 0;
  std::deque<Work> queue = {};
  uint64_t added = 0, done = 0;
  std::shared_ptr<Capture> capture = {};
};

Stream &stream(void *handle);
// Adds work of a library.
__attribute__((visibility("default"))) void add(void *stream, const char *name, std::function<void()> run);
// The number of the stream's capture, or 0.
__attribute__((visibility("default"))) uint64_t capture_of(void *stream);
// Adds work to several streams that runs once, as soon as one stream reaches it, after the earlier work of all of them.
__attribute__((visibility("default"))) void together(const std::vector<void *> &streams, const char *name,
                                                     std::function<void()> run);
void add(Stream &stream, const char *name, std::function<void()> run, Node node = {});
void run_until(Stream &stream, uint64_t position);
void wait_for(Stream &stream);
void wait_for_all();
const char *running();

} // namespace card
