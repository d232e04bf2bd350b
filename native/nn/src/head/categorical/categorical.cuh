// Loss, entropy and gradient of a choice of one class, and the choice itself.
#pragma once
#include "head.cuh"

namespace {

// The loss is S (1 - p)^gamma, where S is the smoothed cross-entropy. Let q = e / (sum of the others) for other
// classes and q = 0 for the true one. The gradient is (1 - p)^gamma (p_j - target_j + gamma S (q_j - p_j)).
template <typename T> __device__ Pair categorical(const Row<T> &row, const Terms &terms, Pair pull) {
  const int lane = threadIdx.x % WARP, target = int(row.labels[0]);
  // The sum leaves out the true class, because 1 - p must not cancel.
  float of_target = unsigned(target) < unsigned(row.count) ? 0.0f : NAN, target_x = 0.0f, of_others = 0.0f, weighted = 0.0f, all = 0.0f;
  for (int i = lane; i < row.count; i += WARP) {
    const float v = clip(read(row.x + i), row.clamp), e = expf(v);
    all += v;
    if (i == target) {
      of_target = e;
      target_x = v;
    } else {
      of_others += e;
      weighted += e * v;
    }
  }
  const double own = sum_of_lanes(of_target), own_x = sum_of_lanes(target_x), others = sum_of_lanes(of_others);
  const double sum = own + others, log_sum = log(sum);
  const double entropy = log_sum - (own * own_x + sum_of_lanes(weighted)) / sum;

  const double smoothing = terms.smoothing, share = smoothing / (row.count > 1 ? row.count - 1 : 1);
  const double extra = 1.0 - smoothing - share;
  const double nll = log_sum - extra * own_x - share * sum_of_lanes(all);
  const double centre = (row.count - 1) / 2.0;
  const double edge = terms.edge == 1.0f ? 1.0 : 1.0 + (terms.edge - 1.0) * fabs(target - centre) / centre;
  const double factor = edge * power(others / sum, terms.gamma);
  if (!row.gradient) return {factor * nll, entropy};

  const double focus = terms.gamma * nll, pull_loss = pull.loss * factor, bonus = pull.entropy / sum;
  const double kept = pull_loss * (1.0 - focus) / sum, moved = pull_loss * focus / others, offset = entropy - log_sum;
  const float own_slope = float(own * (kept + bonus * (own_x + offset)) - pull_loss * (extra + share));
  const float rest = float(kept + moved), small_bonus = float(bonus), small_offset = float(offset);
  const float small_share = float(pull_loss * share);
  for (int i = lane; i < row.count; i += WARP) {
    const float x = read(row.x + i), v = clip(x, row.clamp);
    const float slope = expf(v) * (rest + small_bonus * (v + small_offset)) - small_share;
    write(row.gradient + i, within(x, row.clamp, i == target ? own_slope : slope));
  }
  return {factor * nll, entropy};
}

// The class at which the cumulative probability passes a number in [0, 1), by one thread.
__device__ inline int class_at(const float *x, int count, float uniform) {
  int best = 0;
  for (int i = 1; i < count; i++)
    if (x[i] > x[best]) best = i;
  double total = 0.0;
  for (int i = 0; i < count; i++) total += expf(x[i] - x[best]);
  double left = uniform * total;
  for (int i = 0; i < count; i++) {
    left -= expf(x[i] - x[best]);
    if (left < 0.0) return i;
  }
  return best;
}

// Negative log-likelihood of a class, by one thread.
__device__ inline double nll_of_class(const float *x, int count, int target) {
  float top = x[0];
  for (int i = 1; i < count; i++) top = fmaxf(top, x[i]);
  double sum = 0.0;
  for (int i = 0; i < count; i++) sum += expf(x[i] - top);
  return log(sum) + top - x[target];
}

} // namespace
