// Runs kernels on a CPU, one thread at a time, so that tests see each index that they touch: the same source,
// compiled as C++ with this header before it.
//
// A block's threads are coroutines. One runs until it ends or waits, at `__syncthreads` for its block or in a
// shuffle for its warp, and goes on when all others wait there too. Threads that wait for one that has ended, or
// that waits elsewhere, end the process with a sentence, where a card would hang or answer anything.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
// A block's own: blocks run one after another, so one copy is enough. Tests are threads.
#define __shared__ static thread_local

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// The C library has a name for it that leads nowhere.
#define __expf expf
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <typename A, typename B> auto min(A a, B b) -> std::common_type_t<A, B> { return b < a ? b : a; }

namespace emulate {

constexpr int WARP = 32;
constexpr size_t STACK = 64 << 10;

enum class State { Ready, AtBlock, AtWarp, Ended };

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state = State::Ready;
  dim3 index;
  // What it shows the others of its warp.
  uint64_t shown = 0;
};

struct Block {
  std::vector<Thread> threads;
  size_t current = 0;
  ucontext_t scheduler;
  void (*kernel)(const void *) = nullptr;
  const void *arguments = nullptr;
};

inline thread_local Block *block;

inline void wait(State state) {
  Thread &thread = block->threads[block->current];
  thread.state = state;
  swapcontext(&thread.context, &block->scheduler);
}

inline void enter() {
  block->kernel(block->arguments);
  block->threads[block->current].state = State::Ended;
}

// Lets go on all of `count` threads that wait there, if all of them do.
inline bool release(size_t first, size_t count, State state) {
  auto &threads = block->threads;
  for (size_t i = first; i < first + count; i++)
    if (threads[i].state != state) return false;
  for (size_t i = first; i < first + count; i++) threads[i].state = State::Ready;
  return true;
}

inline bool release() {
  const size_t count = block->threads.size();
  bool any = release(0, count, State::AtBlock);
  for (size_t first = 0; first < count; first += WARP)
    any |= release(first, std::min<size_t>(WARP, count - first), State::AtWarp);
  return any;
}

// Runs what can run; whether anything did.
inline bool step() {
  bool any = false;
  for (size_t i = 0; i < block->threads.size(); i++) {
    Thread &thread = block->threads[i];
    if (thread.state != State::Ready) continue;
    any = true;
    block->current = i;
    threadIdx = thread.index;
    swapcontext(&block->scheduler, &thread.context);
  }
  return any;
}

inline void run_block(dim3 shape) {
  size_t i = 0;
  for (unsigned z = 0; z < shape.z; z++)
    for (unsigned y = 0; y < shape.y; y++)
      for (unsigned x = 0; x < shape.x; x++, i++) {
        Thread &thread = block->threads[i];
        thread.index = {x, y, z};
        thread.state = State::Ready;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = STACK;
        thread.context.uc_link = &block->scheduler;
        makecontext(&thread.context, enter, 0);
      }
  while (step() || release()) {
  }
  for (Thread &thread : block->threads)
    if (thread.state != State::Ended) {
      fprintf(stderr, "block %u,%u: threads wait for others that have ended or wait elsewhere\n", blockIdx.x, blockIdx.y);
      abort();
    }
}

// As cuLaunchKernel: `arguments` point to what the kernel takes.
template <typename... A> void launch(void (*kernel)(A...), dim3 grid, dim3 shape, void **arguments) {
  auto call = [&]<size_t... I>(std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A> *>(arguments[I])...);
  };
  auto whole = [&] { call(std::index_sequence_for<A...>{}); };
  Block own;
  own.threads.resize(size_t(shape.x) * shape.y * shape.z);
  for (Thread &thread : own.threads) thread.stack.reset(new char[STACK]);
  own.kernel = [](const void *whole_) { (*static_cast<const decltype(whole) *>(whole_))(); };
  own.arguments = &whole;
  block = &own;
  gridDim = grid;
  blockDim = shape;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = {x, y, z};
        run_block(shape);
      }
}

// Exchanges among the threads of a warp: each shows its value, and reads when all have.
template <typename T> T shuffle(T value, int from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  const size_t own = block->current;
  memcpy(&block->threads[own].shown, &value, sizeof value);
  wait(State::AtWarp);
  memcpy(&value, &block->threads[own / WARP * WARP + from].shown, sizeof value);
  // Nobody shows the next before all have read this one.
  wait(State::AtWarp);
  return value;
}

inline int lane() { return int(block->current % WARP); }

} // namespace emulate

inline void __syncthreads() { emulate::wait(emulate::State::AtBlock); }

// Of whole warps.
template <typename T> T __shfl_xor_sync(unsigned, T value, int apart) {
  return emulate::shuffle(value, emulate::lane() ^ apart);
}

template <typename T> T __shfl_sync(unsigned, T value, int from) { return emulate::shuffle(value, from); }

// Makes a kernel known to tests, as a function that takes the shapes of grid and block, three numbers each, and
// pointers to its arguments.
#define EMULATED(kernel)                                                                                              \
  extern "C" void emulated_##kernel(const unsigned *grid, const unsigned *block, void **arguments) {                  \
    emulate::launch(kernel, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, arguments);                  \
  }
