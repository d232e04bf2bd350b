// One row of one head, as the loss of each kind of head reads it. Counterpart of `native/nn/src/head` on a card.
#pragma once
#include "numbers.cuh"

// The offsets of a head's logits and labels, and the count of its logits.
struct Place {
  int kind, logits, count, labels;
};

// Parameters of a loss: factor of bits, smoothing, focal exponent, weight of a class at the edge (1: all classes
// weigh the same), and the bounds of numbers.
struct Terms {
  float scale, smoothing, gamma, edge, low, high;
};

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Sum over the warp; every lane has the result.
template <typename N> __device__ N sum_of_lanes(N v) {
  for (int apart = WARP / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  return v;
}

__device__ inline float clip(float x, float clamp) {
  return fabsf(x) < INFINITY ? fminf(fmaxf(x, -clamp), clamp) : NAN;
}

// The gradient is 0 beyond the clamp.
__device__ inline float within(float x, float clamp, float slope) {
  return fabsf(x) > clamp && fabsf(x) < INFINITY ? 0.0f : slope;
}

// Whole exponents, the usual ones, take a few multiplications.
__device__ inline double power(double base, float gamma) {
  if (gamma != floorf(gamma)) return pow(base, double(gamma));
  double result = 1.0;
  for (int exponent = int(gamma); exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

// Loss and entropy of one head in one row, or the factors of their gradients.
struct Pair {
  double loss, entropy;
};

// One row of one head: logits, labels and weights of pressed bits. gradient is null if it is not wanted.
template <typename T> struct Row {
  const T *x;
  const float *labels;
  const float *pos_weights;
  T *gradient;
  int count;
  float clamp;
};

} // namespace
