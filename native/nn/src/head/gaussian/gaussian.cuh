// Loss, entropy and gradient of bounded numbers, and the numbers themselves: a Gaussian squashed by tanh.
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

// u of a number in its bounds, and log |da/du|.
struct Inside {
  double u, log_slope;
};

__device__ inline Inside inside(float label, float low, float high) {
  // At a bound u would be infinite.
  const double width = double(high) - low;
  const double above = label > low ? double(label) - low : MARGIN * width;
  const double below = label < high ? double(high) - label : MARGIN * width;
  return {0.5 * (log(above) - log(below)), log(2.0 * above * below / width)};
}

__device__ inline double bounded(float log_std) { return fmin(fmax(double(log_std), LEAST_LOG_STD), MOST_LOG_STD); }

// The number that a standard normal number gives.
__device__ inline float number_of(float mean, float log_std, float normal, const Terms &terms) {
  const double u = mean + exp(bounded(log_std)) * normal;
  const double value = terms.low + (double(terms.high) - terms.low) * 0.5 * (tanh(u) + 1.0);
  return fminf(fmaxf(float(value), terms.low), terms.high);
}

// Negative log-density of a number.
__device__ inline double nll_of_number(float mean, float log_std, float label, const Terms &terms) {
  const Inside at = inside(label, terms.low, terms.high);
  const double z = (at.u - mean) / exp(bounded(log_std));
  return 0.5 * z * z + bounded(log_std) + HALF_LOG_TAU + at.log_slope;
}

// count / 2 means, then count / 2 logarithmic deviations. A label outside the bounds gives NaN.
template <typename T> __device__ Pair gaussian(const Row<T> &row, const Terms &terms, Pair pull) {
  double loss = 0.0, entropy = 0.0;
  const int numbers = row.count / 2;
  for (int i = threadIdx.x % WARP; i < numbers; i += WARP) {
    const float label = row.labels[i], raw = read(row.x + numbers + i);
    const bool is_label = terms.low <= label && label <= terms.high;
    const Inside at = inside(label, terms.low, terms.high);
    const double u = at.u, slope = at.log_slope;
    const bool finite = fabsf(raw) < INFINITY;
    const double log_std = finite ? bounded(raw) : NAN, std = exp(log_std);
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
