// Loss, entropy and gradient of bounded numbers: a Gaussian squashed by tanh.
#pragma once
#include "head.cuh"

namespace {

// Bounds of logarithmic deviations.
constexpr double LEAST_LOG_STD = -5.0, MOST_LOG_STD = 2.0;
// Assumed distance of a number at a bound from that bound, as a share of the range.
constexpr double MARGIN = 1.0 / (1 << 25);
constexpr double HALF_LOG_TAU = 0.9189385332046727;

// Beyond the bounds only gradients that lead back remain.
__device__ inline double held(double slope, float log_std) {
  if (log_std < LEAST_LOG_STD) return fmin(slope, 0.0);
  return log_std > MOST_LOG_STD ? fmax(slope, 0.0) : slope;
}

// count / 2 means, then count / 2 logarithmic deviations. A label outside the bounds gives NaN.
template <typename T> __device__ Pair gaussian(const Row<T> &row, const Terms &terms, Pair pull) {
  double loss = 0.0, entropy = 0.0;
  const int numbers = row.count / 2;
  for (int i = threadIdx.x % WARP; i < numbers; i += WARP) {
    const float label = row.labels[i], raw = read(row.x + numbers + i);
    const bool is_label = terms.low <= label && label <= terms.high;
    // At a bound u would be infinite.
    const double width = double(terms.high) - terms.low;
    const double above = label > terms.low ? double(label) - terms.low : MARGIN * width;
    const double below = label < terms.high ? double(terms.high) - label : MARGIN * width;
    const double u = 0.5 * (log(above) - log(below)), slope = log(2.0 * above * below / width);
    const bool finite = fabsf(raw) < INFINITY;
    const double log_std = finite ? fmin(fmax(double(raw), LEAST_LOG_STD), MOST_LOG_STD) : NAN, std = exp(log_std);
    const double z = is_label ? (u - read(row.x + i)) / std : NAN;
    loss += 0.5 * z * z + log_std + HALF_LOG_TAU + slope;
    entropy += log_std + HALF_LOG_TAU + 0.5;
    if (!row.gradient) continue;
    write(row.gradient + i, float(-pull.loss * z / std));
    const double by_log_std = held(pull.loss * (1.0 - z * z) - pull.entropy, raw);
    write(row.gradient + numbers + i, finite ? float(by_log_std) : NAN);
  }
  return {sum_of_lanes(loss), sum_of_lanes(entropy)};
}

} // namespace
