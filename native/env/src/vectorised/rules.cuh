// The options of environments as kernels read them, and the input of a scripted player, by the rules of `kernel.rs`.
#pragma once
#include "philox.cuh"

namespace {

struct Rules {
  float weights[4];
  unsigned limit, repeat;
  // Keys of the start states and of the scripted player; their index is that of the environment, counted from `first`.
  unsigned starts[2], moves[2];
  unsigned long long first;
  int opponent, stack;
};

__device__ inline Words words_of(const unsigned *key, unsigned long long index, unsigned long long step) {
  return philox({{unsigned(index), unsigned(index >> 32), unsigned(step), unsigned(step >> 32)}}, key[0], key[1]);
}

// Writes the input of the scripted player at seat 1, if the world has that seat.
template <typename W>
__device__ void play(int player, const float *state, const Rules &rules, unsigned long long index,
                     unsigned long long time, float *input) {
  if constexpr (W::SEATS > 1) {
    float seen[W::SHOWN];
    W::observe(state, 1, seen);
    W::play(player, seen, words_of(rules.moves, index, time), input);
  }
}

} // namespace
