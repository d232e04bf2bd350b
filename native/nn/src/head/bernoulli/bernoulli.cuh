// Loss, entropy and gradient of independent bits.
#pragma once
#include "head.cuh"

namespace {

// With z = x for a released and z = -x for a pressed bit, the loss is softplus(z) and 1 - p = sigmoid(z).
template <typename T> __device__ Pair bernoulli(const Row<T> &row, const Terms &terms, Pair pull) {
  double loss = 0.0, entropy = 0.0;
  const double share = 1.0 / row.count;
  const float pull_loss = float(pull.loss), pull_entropy = float(pull.entropy * share);
  for (int i = threadIdx.x % WARP; i < row.count; i += WARP) {
    const float bit = row.labels[i];
    const float x = read(row.x + i), side = bit == 0.0f ? 1.0f : bit == 1.0f ? -1.0f : NAN;
    const float z = side * clip(x, row.clamp);
    const float e = expf(z), miss = e / (1.0f + e), hit = 1.0f / (1.0f + e), nll = log1pf(e);
    const float weight = bit == 0.0f ? terms.scale : terms.scale * row.pos_weights[i];
    const float factor = weight * float(power(miss, terms.gamma));
    loss += double(factor * nll);
    entropy += double(nll - z * miss);
    const float slope = pull_loss * factor * (miss + terms.gamma * nll * hit) + pull_entropy * z * miss * hit;
    if (row.gradient) write(row.gradient + i, within(x, row.clamp, side * slope));
  }
  return {sum_of_lanes(loss), sum_of_lanes(entropy) * share};
}

} // namespace
