// Runs kernels on a CPU, one thread at a time, so that tests see each index that they access. The kernels are the same
// source, compiled as C++ after this header.
//
// The threads of a block are coroutines. A thread runs until it ends or waits, at `__syncthreads` for its block or in a
// shuffle for its warp, and resumes when all others wait there too. If a thread waits for one that has ended or that
// waits elsewhere, the process ends with a message, where a card would hang or return undefined results.
//
// A block may wait for others of its grid, in a cooperative launch: then the next block runs meanwhile.
//
// Between two waits threads run in any order, as on a card: forwards, backwards or shuffled. SCONCE_EMULATED_ORDER sets
// the order (`backwards`, or the seed of a shuffle). The results of a kernel do not depend on it unless a wait is
// missing.
#pragma once
#include "cuda_runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace emulate {

constexpr unsigned WARP = 32;
constexpr size_t PAGE = 4096, STACK = 64 << 10;

// A stack for a thread. Threads that end without waiting leave it to the next one.
struct Fiber {
  void *top;
};

enum class State { Ready, AtBlock, AtWarp, AtGrid, Ended };

struct Thread {
  State state;
  dim3 index;
  Fiber *fiber;
  // The lanes of the warp that it waits for, the value that it shows them, and the value shown when all had arrived.
  unsigned lanes;
  uint64_t shown, seen;
  // Its parts of the operands of a product of the warp, those of even and of odd products.
  unsigned parts[2][6];
  bool odd;
  // What it waits for at its grid.
  const unsigned *count;
  unsigned least;
};

struct Block {
  const char *kernel = "";
  std::vector<Thread> threads;
  // The order of the threads, warp by warp. Threads from `begun` on have not begun, and threads from `end` on may not
  // begin yet.
  std::vector<size_t> turns;
  size_t current = 0, begun = 0, end = 0;
  Fiber *running = nullptr;
  Fiber scheduler;
  std::vector<Fiber *> idle;
  void (*call)(const void *) = nullptr;
  const void *arguments = nullptr;
};

// Whether the blocks of the launch may wait for each other. The emulated card sets it for each launch.
HIDDEN inline bool cooperative = true;

// The running block. Launches run one at a time, because there is one copy of shared memory. Never destroyed: threads
// may still run when the process ends.
HIDDEN inline Block &block = *new Block;
HIDDEN inline std::mutex one_at_a_time;

#ifdef __x86_64__
// Switches to the stack `to`. A waiting stack has the callee-saved registers on top. It resumes by a jump, because a
// processor would mispredict a return.
[[gnu::naked, gnu::noinline]] inline void swap_stacks(void **, void *) {
  asm("push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
      "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
      "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n pop %rdx\n jmp *%rdx");
}
#else
#error "kernels are emulated on x86-64"
#endif

inline void switch_to(Fiber &from, Fiber &to) { swap_stacks(&from.top, to.top); }

// Runs threads that have not begun, one after the other.
inline void run_threads() {
  for (;;) {
    while (block.begun < block.end) {
      block.current = block.turns[block.begun++];
      threadIdx = block.threads[block.current].index;
      block.call(block.arguments);
      block.threads[block.current].state = State::Ended;
    }
    block.idle.push_back(block.running);
    switch_to(*block.running, block.scheduler);
  }
}

// A new stack, preceded by an inaccessible page. The offset of its top within a page varies, so that stacks do not
// compete for the same cache lines.
inline Fiber *new_fiber() {
  static size_t count = 0;
  constexpr int HOW = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *memory = mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE, HOW, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0) {
    perror("a stack for a thread of a kernel");
    abort();
  }
  char *end = static_cast<char *>(memory) + PAGE + STACK - count++ * 320 % PAGE / 16 * 16;
  // The initial stack has no caller, and zeros for the six callee-saved registers.
  void **top = reinterpret_cast<void **>(end) - 8;
  top[6] = reinterpret_cast<void *>(run_threads);
  return new Fiber{top};
}

inline void wait(State state, unsigned lanes = 0) {
  Thread &thread = block.threads[block.current];
  thread.state = state;
  thread.lanes = lanes;
  thread.fiber = block.running;
  switch_to(*block.running, block.scheduler);
}

inline void run_on(Fiber *fiber) {
  block.running = fiber;
  switch_to(block.scheduler, *fiber);
}

// The lanes that `lane` waits for, or 0 if one of them does not wait for the same lanes.
inline unsigned together(const Thread *warp, unsigned count, unsigned lane) {
  const unsigned lanes = warp[lane].lanes;
  for (unsigned i = 0; i < count; i++)
    if (lanes >> i & 1 && (warp[i].state != State::AtWarp || warp[i].lanes != lanes)) return 0;
  return lanes;
}

inline bool release_warp(Thread *warp, unsigned count) {
  bool any = false;
  for (unsigned lane = 0; lane < count; lane++) {
    if (warp[lane].state != State::AtWarp) continue;
    const unsigned lanes = together(warp, count, lane);
    for (unsigned i = 0; i < count; i++)
      if (lanes >> i & 1) {
        warp[i].seen = warp[i].shown;
        warp[i].state = State::Ready;
        any = true;
      }
  }
  return any;
}

// Sets the order of a block's threads: the order of its warps, and of the threads in each warp.
inline void take_turns(size_t count) {
  static const char *given = getenv("SCONCE_EMULATED_ORDER");
  static const std::string order = given ? given : "";
  static const bool backwards = order == "backwards", shuffled = !order.empty() && !backwards;
  static std::minstd_rand draws(shuffled ? unsigned(std::stoul(order)) : 0);
  if (block.turns.size() == count && !shuffled) return;
  std::vector<size_t> warps((count + WARP - 1) / WARP), &turns = block.turns;
  std::iota(warps.begin(), warps.end(), 0);
  if (shuffled) std::shuffle(warps.begin(), warps.end(), draws);
  if (backwards) std::reverse(warps.begin(), warps.end());
  turns.clear();
  for (size_t warp : warps) {
    const size_t first = turns.size();
    for (size_t i = warp * WARP; i < std::min((warp + 1) * WARP, count); i++) turns.push_back(i);
    if (shuffled) std::shuffle(turns.begin() + ptrdiff_t(first), turns.end(), draws);
    if (backwards) std::reverse(turns.begin() + ptrdiff_t(first), turns.end());
  }
}

// Runs the threads of the warp whose turns begin at `turn` until none of them can continue within the warp. Returns the
// number of its threads.
inline size_t run_warp(size_t turn) {
  const size_t first = block.turns[turn] / WARP * WARP, count = std::min(size_t(WARP), block.threads.size() - first);
  const size_t end = block.end = turn + count;
  do {
    while (block.begun < end) {
      if (block.idle.empty()) block.idle.push_back(new_fiber());
      Fiber *fiber = block.idle.back();
      block.idle.pop_back();
      run_on(fiber);
    }
    for (size_t i = turn; i < end; i++) {
      Thread &thread = block.threads[block.turns[i]];
      if (thread.state != State::Ready) continue;
      block.current = block.turns[i];
      threadIdx = thread.index;
      run_on(thread.fiber);
    }
  } while (release_warp(&block.threads[first], unsigned(count)));
  return count;
}

// Resumes all threads if all of them wait for the block.
inline bool release_block() {
  auto &threads = block.threads;
  auto at_block = [](const Thread &thread) { return thread.state == State::AtBlock; };
  if (!std::all_of(threads.begin(), threads.end(), at_block)) return false;
  for (Thread &thread : threads) thread.state = State::Ready;
  return true;
}

inline void begin_block() {
  size_t i = 0;
  for (unsigned z = 0; z < blockDim.z; z++)
    for (unsigned y = 0; y < blockDim.y; y++)
      for (unsigned x = 0; x < blockDim.x; x++) {
        block.threads[i] = {};
        block.threads[i++].index = {x, y, z};
      }
  block.begun = 0;
  take_turns(block.threads.size());
}

// Runs the block until it ends, or until a thread of it waits for other blocks. Returns whether it ended.
inline bool run_block() {
  do
    for (size_t turn = 0; turn < block.threads.size();) turn += run_warp(turn);
  while (release_block());
  bool waits = false;
  for (const Thread &thread : block.threads) waits |= thread.state == State::AtGrid;
  if (waits) return false;
  for (Thread &thread : block.threads)
    if (thread.state != State::Ended) {
      fprintf(stderr,
              "%s, block %u,%u,%u, thread %u,%u,%u: threads wait for others that have ended or wait elsewhere\n",
              block.kernel, blockIdx.x, blockIdx.y, blockIdx.z, thread.index.x, thread.index.y, thread.index.z);
      abort();
    }
  return true;
}

// Resumes threads of the block whose count of other blocks is there. Returns whether there was one.
inline bool release_grid() {
  bool any = false;
  for (Thread &thread : block.threads)
    if (thread.state == State::AtGrid && *thread.count >= thread.least) {
      thread.state = State::Ready;
      any = true;
    }
  return any;
}

// The dynamic shared memory of a block, followed by an inaccessible page. It is NaN when a block begins.
class Dynamic {
public:
  explicit Dynamic(size_t bytes) : bytes(bytes), pages((bytes + PAGE - 1) / PAGE) {
    if (pages == 0) return;
    memory = static_cast<char *>(
        mmap(nullptr, (pages + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED || mprotect(memory + pages * PAGE, PAGE, PROT_NONE) != 0) abort();
    begin = dynamic_shared = memory + pages * PAGE - (bytes + 15) / 16 * 16;
  }
  Dynamic(Dynamic &&other) : Dynamic(0) { *this = std::move(other); }
  Dynamic &operator=(Dynamic &&other) {
    std::swap(bytes, other.bytes);
    std::swap(pages, other.pages);
    std::swap(memory, other.memory);
    std::swap(begin, other.begin);
    return *this;
  }
  ~Dynamic() {
    if (pages != 0) munmap(memory, (pages + 1) * PAGE);
  }
  void forget() const { memset(begin, 0xff, bytes); }

  char *begin = nullptr;

private:
  size_t bytes, pages;
  char *memory = nullptr;
};

// A block that waits for others.
struct Waiting {
  dim3 index;
  Block block;
  Dynamic dynamic;
};

// Calls `call` with the arguments in each thread of a grid.
inline void run(const char *kernel, void (*call)(const void *), const void *arguments, dim3 grid, dim3 shape,
                size_t shared) {
  std::lock_guard lock(one_at_a_time);
  block.kernel = kernel;
  block.threads.resize(size_t(shape.x) * shape.y * shape.z);
  block.call = call;
  block.arguments = arguments;
  gridDim = grid;
  blockDim = shape;
  Dynamic dynamic(shared);
  std::vector<Waiting> waiting;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = {x, y, z};
        if (shared > 0) dynamic.forget();
        begin_block();
        if (run_block()) continue;
        // The block keeps its threads and its memory; the next one gets others, and the stacks that nobody uses.
        waiting.push_back({blockIdx, std::exchange(block, {}), std::exchange(dynamic, Dynamic(shared))});
        block.idle.swap(waiting.back().block.idle);
        block.kernel = kernel;
        block.threads.resize(waiting.back().block.threads.size());
        block.call = call;
        block.arguments = arguments;
      }
  Block last = std::exchange(block, {});
  while (!waiting.empty()) {
    bool any = false;
    for (size_t i = 0; i < waiting.size();) {
      Waiting &one = waiting[i];
      std::swap(block, one.block);
      blockIdx = one.index;
      dynamic_shared = one.dynamic.begin;
      const bool released = release_grid(), ended = released && run_block();
      std::swap(block, one.block);
      any |= released;
      if (!ended) {
        i++;
        continue;
      }
      last.idle.insert(last.idle.end(), one.block.idle.begin(), one.block.idle.end());
      waiting.erase(waiting.begin() + ptrdiff_t(i));
    }
    if (any) continue;
    fprintf(stderr, "%s: %zu blocks wait for others, which have ended or wait too\n", kernel, waiting.size());
    abort();
  }
  block = std::move(last);
  block.kernel = "";
}

// Launches a kernel as cuLaunchKernel does: `arguments` are pointers to its arguments.
template <typename... A>
void launch(const char *name, void (*kernel)(A...), dim3 grid, dim3 shape, size_t shared, void **arguments) {
  auto call = [&]<size_t... I>(std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A> *>(arguments[I])...);
  };
  auto whole = [&] { call(std::index_sequence_for<A...>{}); };
  run(name, [](const void *whole_) { (*static_cast<const decltype(whole) *>(whole_))(); }, &whole, grid, shape, shared);
}

struct Parameter {
  size_t bytes;
  bool pointer;
};

struct Kernel {
  void (*launch)(const unsigned *grid, const unsigned *block, size_t shared, void **arguments);
  std::vector<Parameter> parameters;
};

HIDDEN inline std::map<std::string, Kernel> &kernels() {
  static auto &all = *new std::map<std::string, Kernel>;
  return all;
}

template <typename... A> bool know(const char *name, void (*)(A...), decltype(Kernel::launch) launch) {
  return kernels().emplace(name, Kernel{launch, {Parameter{sizeof(A), std::is_pointer_v<A>}...}}).second;
}

// An exchange within a warp: each thread shows its value, and reads the value of lane `from` when all have arrived. A
// missing lane shows NaN.
template <typename T> T exchange(unsigned lanes, T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  const size_t own = block.current, first = own / WARP * WARP;
  memcpy(&block.threads[own].shown, &value, sizeof value);
  wait(State::AtWarp, lanes);
  const bool there = lanes >> from & 1 && first + from < block.threads.size();
  const uint64_t seen = there ? block.threads[first + from].seen : ~uint64_t(0);
  memcpy(static_cast<void *>(&value), &seen, sizeof value);
  return value;
}

inline unsigned lane() { return unsigned(block.current % WARP); }

// Waits until other blocks have raised a count. The calling thread is the only one of its block that needs to.
inline void wait_for_blocks(const unsigned *count, unsigned least) {
  if (*count >= least) return;
  if (!cooperative) {
    fprintf(stderr, "%s: a block waits for others, and the launch is not cooperative\n", block.kernel);
    abort();
  }
  Thread &thread = block.threads[block.current];
  thread.count = count;
  thread.least = least;
  wait(State::AtGrid);
}

// The product of a warp on its matrix units. The parts of the operands in a lane are those of mma.sync.m16n8k16 for
// 16 bits and of m16n8k8 for tf32: `each` numbers in one register, of `a` in rows lane / 4 and lane / 4 + 8, of `b` in
// column lane / 4.
template <typename Value>
void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], unsigned each, Value value) {
  const size_t own = block.current, first = own / WARP * WARP;
  Thread &thread = block.threads[own];
  // A lane can be one product ahead of another one, and not two.
  const bool odd = thread.odd = !thread.odd;
  memcpy(thread.parts[odd], a, sizeof a);
  memcpy(thread.parts[odd] + 4, b, sizeof b);
  wait(State::AtWarp, ~0u);
  const unsigned row = lane() / 4, column = lane() % 4 * 2;
  for (unsigned i = 0; i < 4; i++)
    for (unsigned high = 0; high < 2; high++)
      for (unsigned part = 0; part < 4; part++) {
        const unsigned x = block.threads[first + row * 4 + part].parts[odd][2 * high + i / 2];
        const unsigned y = block.threads[first + (column + i % 2) * 4 + part].parts[odd][4 + high];
        for (unsigned e = 0; e < each; e++) d[i] += value(x, e) * value(y, e);
      }
}
inline void multiply_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply(d, a, b, 2, [](unsigned v, unsigned e) { return __uint_as_float(e ? v & 0xffff0000u : v << 16); });
}
inline void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply(d, a, b, 1, [](unsigned v, unsigned) { return __uint_as_float(v & 0xffffe000u); });
}
inline unsigned rounded_to_tf32(unsigned v) { return (v & 0x7fffffffu) < 0x7f800000u ? (v + 0x1000u) & 0xffffe000u : v; }

// The lanes in which a condition holds, as a mask.
inline unsigned vote(unsigned lanes, bool holds) {
  const size_t own = block.current, first = own / WARP * WARP;
  block.threads[own].shown = holds;
  wait(State::AtWarp, lanes);
  unsigned held = 0;
  for (unsigned i = 0; i < WARP && first + i < block.threads.size(); i++)
    if (lanes >> i & 1 && block.threads[first + i].seen) held |= 1u << i;
  return held;
}

} // namespace emulate

inline void __syncthreads() { emulate::wait(emulate::State::AtBlock); }
inline void __syncwarp(unsigned lanes = ~0u) { emulate::wait(emulate::State::AtWarp, lanes); }

// As on a card: within parts of `width` lanes. A thread reads its own value if the source is in another part.
template <typename T> T __shfl_sync(unsigned lanes, T value, int from, int width = 32) {
  const unsigned own = emulate::lane(), part = own & ~unsigned(width - 1);
  return emulate::exchange(lanes, value, part + (unsigned(from) & unsigned(width - 1)));
}

template <typename T> T __shfl_xor_sync(unsigned lanes, T value, int apart, int width = 32) {
  const unsigned own = emulate::lane(), from = own ^ unsigned(apart);
  return emulate::exchange(lanes, value, from / unsigned(width) > own / unsigned(width) ? own : from);
}

template <typename T> T __shfl_up_sync(unsigned lanes, T value, unsigned apart, int width = 32) {
  const unsigned own = emulate::lane();
  return emulate::exchange(lanes, value, own % unsigned(width) < apart ? own : own - apart);
}

template <typename T> T __shfl_down_sync(unsigned lanes, T value, unsigned apart, int width = 32) {
  const unsigned own = emulate::lane();
  return emulate::exchange(lanes, value, own % unsigned(width) + apart >= unsigned(width) ? own : own + apart);
}

inline unsigned __ballot_sync(unsigned lanes, int holds) { return emulate::vote(lanes, holds != 0); }
inline int __any_sync(unsigned lanes, int holds) { return emulate::vote(lanes, holds != 0) != 0; }
inline int __all_sync(unsigned lanes, int holds) { return emulate::vote(lanes, holds == 0) == 0; }

// Exports a kernel: to tests, as a function of the shapes of grid and block (three numbers each), the bytes of dynamic
// shared memory, and pointers to the arguments; to the emulated card, under its name.
#define EMULATED(kernel)                                                                                              \
  extern "C" void emulated_##kernel(const unsigned *grid, const unsigned *block, size_t shared, void **arguments) {   \
    emulate::launch(#kernel, kernel, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, arguments); \
  }                                                                                                                   \
  [[maybe_unused]] static const bool known_##kernel = emulate::know(#kernel, kernel, emulated_##kernel);
