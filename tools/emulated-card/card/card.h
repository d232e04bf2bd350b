// What the libraries of the emulated card share: memory, and streams of work.
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

// Cards, which are as many as SCONCE_EMULATED_CARDS says: one by default.
constexpr int MOST_CARDS = 8;

// As CUresult.
enum Status {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNJOINED = 904,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  CAPTURE_WRONG_THREAD = 908,
};

// Until the process is gone: threads may still call when it ends.
template <typename T> T &lasting() { return *new T; }

// One call at a time. What a call throws it returns.
extern std::recursive_mutex lock;

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

// Says what went wrong where a card would go on with anything, and ends the process.
[[noreturn, gnu::format(printf, 1, 2), gnu::visibility("default")]] void die(const char *format, ...);

#define ABSENT(function)                                                                                              \
  extern "C" __attribute__((visibility("default"))) void function() { card::die("there is no " #function); }

// What is waited for, in order.
struct Work {
  const char *name;
  std::function<void()> run;
};

struct Pool;

// Of the thread's context, which most calls need.
__attribute__((visibility("default"))) int current_card();
// Waits for all of a card, which is an error while any of its streams is captured: what libraries do when they begin and
// end.
__attribute__((visibility("default"))) int wait_for_card();
// Memory of the card for a library's own use.
__attribute__((visibility("default"))) uintptr_t lend(size_t bytes);
__attribute__((visibility("default"))) void take_back(uintptr_t address);
// Whether kernels of another card may touch what lies there.
__attribute__((visibility("default"))) bool reaches(int card, const void *address);

namespace memory {

constexpr size_t ALIGNMENT = 256;

// Where its bytes lie, at the end of whole pages, behind which is one that none may touch.
struct Allocation {
  uintptr_t pages;
  size_t page_count, bytes;
  uintptr_t address;
  // Whether there is memory, and whether somebody has asked to free it.
  bool there = false, freed = false;
  // That it is of, if of any.
  Pool *pool = nullptr;
  // It is a graph's, which has it at this address in each launch, of memory that its streams have.
  bool of_graph = false;
  // It counts as in use.
  bool counted = false;
};

size_t rounded(size_t bytes);

size_t total();
// Bytes that are in use, or kept by a pool.
size_t used();
uintptr_t address_of(size_t bytes);
// Gives and takes the memory of an address, and ends its use.
void give(uintptr_t address);
void take(uintptr_t address);
void forget(uintptr_t address);
// The allocation in which all of these lie, if they lie in one that is there.
Allocation *around(uintptr_t address, size_t bytes);
// The allocation that begins there.
Allocation &at(uintptr_t address);

// Memory of the host that the card may read whenever it likes.
void *pin(size_t bytes);
void unpin(void *pointer);
bool pinned(const void *pointer, size_t bytes);

// Tells what was touched that is not there.
void watch();

} // namespace memory

struct Capture;

// A queue. Nothing in it runs until somebody waits for it, so that who forgets to wait sees it, or until it is as
// long as a card's. What the graphs take that it plays it keeps for the next one.
struct Stream {
  bool waits_for_legacy;
  int card;
  size_t of_graphs = 0;
  std::deque<Work> queue = {};
  uint64_t added = 0, done = 0;
  std::shared_ptr<Capture> capture = {};
};

Stream &stream(void *handle);
// For libraries beside the driver: work of theirs.
__attribute__((visibility("default"))) void add(void *stream, const char *name, std::function<void()> run);
// The number of what is captured of it, or 0.
__attribute__((visibility("default"))) uint64_t capture_of(void *stream);
// Work that begins in some streams together: once, when one of them comes to it and all others have done what is
// before it.
__attribute__((visibility("default"))) void together(const std::vector<void *> &streams, const char *name,
                                                     std::function<void()> run);
void add(Stream &stream, const char *name, std::function<void()> run);
void run_until(Stream &stream, uint64_t position);
void wait_for(Stream &stream);
void wait_for_all();
const char *running();

} // namespace card
