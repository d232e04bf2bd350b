// The imitation loss of a policy's heads, and its gradient at the logits: binary and softmax cross-entropy with label
// smoothing (Szegedy et al. 2016, section 7), the focal factor (Lin et al. 2017, equation 4), weights of rare bits, of
// sticks near their edge and of frames, and an entropy bonus.
//
//   loss            sums of every part of the rows and, where it is wanted, the gradient
//   loss_totals     the sums of the parts
//
// logits and their gradient [rows, num_logits] are of type T, labels [rows, num_labels] f32, weights of rows [rows] f32.
// Of a row of weight 0 neither logits nor label is looked at. Exponentials and their sums are f32; what is made of them
// is f64, one row of one head at a time, because 1 - p must not cancel. A logit that is not finite, or a label that is
// no class, makes a NaN of its head's loss and gradient.
//
// A sum has an order that its sizes alone decide: the lanes of a warp, the rows of a part, the parts.

#include "numbers.cuh"

// Where a head's logits and labels begin, and how many logits it has.
struct Place {
  int categorical, logits, count, labels;
};

// What multiplies a bit, and of a categorical head smoothing and the weight of a class at the edge: 1 for no other than
// the centre's.
struct Terms {
  float scale, smoothing, gamma, edge;
};

// What a sum is multiplied by for a mean over the weights of rows, and over rows; a number for each head follows, which
// multiplies its loss.
struct Denominators {
  double inverse_weight, inverse_rows;
};

namespace {

constexpr int WARP = 32;
constexpr int WARPS = 8;
// Rows of a part.
constexpr int ROWS = 32;
// Loss, loss times the row's weight, entropy.
constexpr int SUMS = 3;
constexpr unsigned ALL_LANES = 0xffffffffu;

// The same in every lane.
template <typename N> __device__ N sum_of_lanes(N v) {
  for (int apart = WARP / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  return v;
}

__device__ inline float clip(float x, float clamp) {
  return fabsf(x) < INFINITY ? fminf(fmaxf(x, -clamp), clamp) : NAN;
}

// Beyond the clamp nothing changes with a logit.
__device__ inline float within(float x, float clamp, float slope) {
  return fabsf(x) > clamp && fabsf(x) < INFINITY ? 0.0f : slope;
}

// Whole exponents, the usual ones, are a few multiplications.
__device__ inline double power(double base, float gamma) {
  if (gamma != floorf(gamma)) return pow(base, double(gamma));
  double result = 1.0;
  for (int exponent = int(gamma); exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

// Of one head in one row: loss and entropy, or the factors of their gradients.
struct Pair {
  double loss, entropy;
};

// One row of one head: logits, labels, weights of pressed bits; gradient if it is wanted.
template <typename T> struct Row {
  const T *x;
  const float *labels;
  const float *pos_weights;
  T *gradient;
  int count;
  float clamp;
};

// With z = x for a released and -x for a pressed bit, the loss is softplus(z) and 1 - p = sigmoid(z).
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

// The loss is S (1 - p)^gamma, S the smoothed cross-entropy; with q = e / (sum of the others) for other classes and 0 for
// the true one, its gradient is (1 - p)^gamma (p_j - target_j + gamma S (q_j - p_j)).
template <typename T> __device__ Pair categorical(const Row<T> &row, const Terms &terms, Pair pull) {
  const int lane = threadIdx.x % WARP, target = int(row.labels[0]);
  // Summed without the true class, because 1 - p must not cancel.
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

template <typename T>
__device__ void loss(const T *logits, const float *labels, const float *weights, const Place *places,
                     const Terms *all_terms, const float *pos_weights, const Denominators *denominators, T *gradient,
                     double *parts, long long rows, int num_logits, int num_labels, float entropy_weight, float clamp) {
  __shared__ double sums[WARPS][SUMS];
  const int head = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const Place place = places[head];
  const Terms terms = all_terms[head];
  const double scale = ((const double *)(denominators + 1))[head];
  double sum = 0.0, weighted = 0.0, entropy = 0.0;
  for (int i = warp; i < ROWS; i += WARPS) {
    const long long at = blockIdx.x * (long long)ROWS + i;
    if (at >= rows) break;
    Row<T> row;
    row.x = logits + at * num_logits + place.logits;
    row.labels = labels + at * num_labels + place.labels;
    row.pos_weights = pos_weights + place.logits;
    row.gradient = gradient ? gradient + at * num_logits + place.logits : nullptr;
    row.count = place.count;
    row.clamp = clamp;
    const double weight = weights[at];
    if (weight == 0.0) {
      for (int j = lane; row.gradient && j < row.count; j += WARP) write(row.gradient + j, 0.0f);
      continue;
    }
    const Pair pull = {weight * scale * denominators->inverse_weight, entropy_weight * denominators->inverse_rows};
    const Pair value = place.categorical ? categorical(row, terms, pull) : bernoulli(row, terms, pull);
    sum += value.loss;
    weighted += weight * value.loss;
    entropy += value.entropy;
  }
  if (lane == 0) {
    sums[warp][0] = sum;
    sums[warp][1] = weighted;
    sums[warp][2] = entropy;
  }
  __syncthreads();
  if (threadIdx.x >= SUMS) return;
  double total = 0.0;
  for (int w = 0; w < WARPS; w++) total += sums[w][threadIdx.x];
  parts[(blockIdx.x * (long long)gridDim.y + head) * SUMS + threadIdx.x] = total;
}

} // namespace

// parts [gridDim.x, heads, SUMS]. A block of WARPS warps for each part of ROWS rows, blockIdx.y is the head.
#define LOSS(name, T)                                                                                                  \
  extern "C" __global__ void name(                                                                                     \
      const T *__restrict__ logits, const float *__restrict__ labels, const float *__restrict__ weights,               \
      const Place *__restrict__ places, const Terms *__restrict__ terms, const float *__restrict__ pos_weights,        \
      const Denominators *__restrict__ denominators, T *__restrict__ gradient, double *__restrict__ parts,             \
      long long rows, int num_logits, int num_labels, float entropy_weight, float clamp) {                             \
    loss<T>(logits, labels, weights, places, terms, pos_weights, denominators, gradient, parts, rows, num_logits,      \
            num_labels, entropy_weight, clamp);                                                                        \
  }

LOSS(loss_f32, float)
LOSS(loss_bf16, __nv_bfloat16)

// totals [n], of parts [count, n], to be added to what is there or not. A warp for each of the n.
extern "C" __global__ void loss_totals(const double *__restrict__ parts, double *__restrict__ totals, int count, int n,
                                       int accumulate) {
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
  if (column >= n) return;
  double sum = 0.0;
  for (int part = lane; part < count; part += WARP) sum += parts[part * (long long)n + column];
  sum = sum_of_lanes(sum);
  if (lane == 0) totals[column] = accumulate ? totals[column] + sum : sum;
}
