// The loss of proximal policy optimisation and its gradient at the logits, as `objective.rs` defines them, for frames of a
// segment that stays on a card.
//
// Row i of a batch is frame order[i] of the segment. logits and their gradient are [rows, num_logits]; labels
// [frames, num_labels] and the other columns [frames] are those of the whole segment. A warp computes a row. The order of
// a sum depends on its sizes alone.

#include "heads.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
// Rows of a part.
constexpr int ROWS = 32;
// Policy, value, entropy, divergence, clipped ratios.
constexpr int SUMS = 5;
// The largest f32: no logit is clamped.
constexpr float UNCLAMPED = 3.40282347e38f;

// Weights and bounds of the loss. `value_clip` is negative if values are free.
struct Weights {
  double clip, value_clip, value, entropy;
};

// Mean and inverse deviation of the advantages of a batch.
struct Moments {
  double mean, inverse;
};

struct Columns {
  const float *labels, *log_likelihoods, *values, *advantages, *targets;
};

struct Loss {
  double loss, slope;
};

// The loss of an action, and its derivative by the negative log-likelihood.
__device__ inline Loss policy_loss(double ratio, double advantage, double clip) {
  const double free = ratio * advantage, held = fmin(fmax(ratio, 1.0 - clip), 1.0 + clip) * advantage;
  return free <= held ? Loss{-free, free} : Loss{-held, 0.0};
}

// The loss of a value, and its derivative.
__device__ inline Loss value_loss(double value, double before, double target, double clip) {
  const double error = value - target, free = 0.5 * error * error;
  if (clip < 0.0) return {free, error};
  const double change = fmin(fmax(value - before, -clip), clip);
  const double held_error = before + change - target, held = 0.5 * held_error * held_error;
  if (!(held > free)) return {free, error};
  return {held, change == value - before ? held_error : 0.0};
}

template <int N> __device__ double sum_of_block(double *sums, double own) {
  __syncthreads();
  sums[threadIdx.x] = own;
  for (int half = N / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  return sums[0];
}

} // namespace

// `freedom` is what a deviation's count of rows is less by: 1 for a sample, 0 for a population. Negative: advantages are
// taken as they are. One block.
extern "C" __global__ void ppo_moments(
    const float *__restrict__ advantages, const unsigned *__restrict__ order, double *__restrict__ moments,
    long long rows, int freedom) {
  __shared__ double sums[THREADS];
  double own = 0.0;
  for (long long i = threadIdx.x; i < rows; i += THREADS) own += advantages[order[i]];
  const double mean = sum_of_block<THREADS>(sums, own) / rows;
  own = 0.0;
  for (long long i = threadIdx.x; i < rows; i += THREADS) {
    const double apart = advantages[order[i]] - mean;
    own += apart * apart;
  }
  const double squares = sum_of_block<THREADS>(sums, own);
  if (threadIdx.x > 0) return;
  // A single row has no deviation.
  const double deviation = rows > freedom ? sqrt(squares / (rows - freedom)) : 0.0;
  moments[0] = freedom < 0 ? 0.0 : mean;
  moments[1] = freedom < 0 ? 1.0 : 1.0 / (deviation + 1e-8);
}

// parts [gridDim.x, SUMS]. A block of WARPS warps for each part of ROWS rows. `places` and `terms` of the heads are the
// structs of head.cuh, `weights` and `moments` those above.
extern "C" __global__ void ppo_loss(
    const float *__restrict__ logits, const float *__restrict__ labels,
    const float *__restrict__ log_likelihoods, const float *__restrict__ values,
    const float *__restrict__ advantages, const float *__restrict__ targets,
    const unsigned *__restrict__ order, const Place *__restrict__ places, const Terms *__restrict__ terms,
    const float *__restrict__ pos_weights, const Weights *__restrict__ weights,
    const Moments *__restrict__ moments, float *__restrict__ gradient, double *__restrict__ parts,
    long long rows, int heads, int num_logits, int num_labels, int value_at) {
  __shared__ double sums[WARPS][SUMS];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const Columns of = {labels, log_likelihoods, values, advantages, targets};
  const double scale = 1.0 / rows, clip = weights->clip;
  double policy = 0.0, value = 0.0, entropies = 0.0, divergence = 0.0, clipped = 0.0;
  for (int i = warp; i < ROWS; i += WARPS) {
    const long long at = blockIdx.x * (long long)ROWS + i;
    if (at >= rows) break;
    const long long frame = order[at];
    const float *own = logits + at * num_logits;
    float *slopes = gradient + at * num_logits;
    // The likelihood of the whole action comes first: the gradient of each head depends on it.
    double nll = 0.0;
    Pair pull = {0.0, 0.0};
    for (int pass = 0; pass < 2; pass++) {
      for (int h = 0; h < heads; h++) {
        const Place place = places[h];
        Row<float> row;
        row.x = own + place.logits;
        row.labels = of.labels + frame * num_labels + place.labels;
        row.pos_weights = pos_weights + place.logits;
        row.gradient = pass == 0 ? nullptr : slopes + place.logits;
        row.count = place.count;
        row.clamp = UNCLAMPED;
        const Pair pair = loss_of(place.kind, row, terms[h], pull);
        if (pass == 0) nll += pair.loss;
        else entropies += pair.entropy;
      }
      if (pass > 0) break;
      const double log_ratio = -nll - of.log_likelihoods[frame], ratio = exp(log_ratio);
      const double advantage = (of.advantages[frame] - moments->mean) * moments->inverse;
      const Loss loss = policy_loss(ratio, advantage, clip);
      pull = {scale * loss.slope, scale * weights->entropy};
      policy += loss.loss;
      divergence += ratio - 1.0 - log_ratio;
      clipped += fabs(ratio - 1.0) > clip ? 1.0 : 0.0;
    }
    const Loss loss = value_loss(own[value_at], of.values[frame], of.targets[frame], weights->value_clip);
    value += loss.loss;
    __syncwarp();
    if (lane == 0) slopes[value_at] = float(scale * weights->value * loss.slope);
  }
  if (lane == 0) {
    sums[warp][0] = policy;
    sums[warp][1] = value;
    sums[warp][2] = entropies;
    sums[warp][3] = divergence;
    sums[warp][4] = clipped;
  }
  __syncthreads();
  if (threadIdx.x >= SUMS) return;
  double total = 0.0;
  for (int w = 0; w < WARPS; w++) total += sums[w][threadIdx.x];
  parts[blockIdx.x * (long long)SUMS + threadIdx.x] = total;
}
