// Every kind of head with a loss on a card, by the numbers in `table.rs` and its folders.
#pragma once
#include "bernoulli.cuh"
#include "categorical.cuh"
#include "gaussian.cuh"

namespace {

template <typename T> __device__ Pair loss_of(int kind, const Row<T> &row, const Terms &terms, Pair pull) {
  switch (kind) {
  case 0: return bernoulli(row, terms, pull);
  case 1: return categorical(row, terms, pull);
  case 2: return gaussian(row, terms, pull);
  }
  // A value head has no label and no loss here.
  for (int i = threadIdx.x % WARP; row.gradient && i < row.count; i += WARP) write(row.gradient + i, 0.0f);
  return {0.0, 0.0};
}

} // namespace
