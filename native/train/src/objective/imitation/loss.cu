// The imitation loss of a policy's heads, and its gradient at the logits: binary and softmax cross-entropy with label
// smoothing (Szegedy et al. 2016, section 7), the focal factor (Lin et al. 2017, equation 4), weights of rare bits, of
// sticks near their edge and of frames, and an entropy bonus.
//
//   loss            sums of every part of the rows and, if requested, the gradient
//   loss_totals     the sums of the parts
//
// logits and their gradient [rows, num_logits] are of type T, labels [rows, num_labels] f32, weights of rows [rows] f32.
// A row of weight 0 is skipped: neither its logits nor its labels are read. Exponentials and their sums are f32; what
// is computed from them is f64, one row of one head at a time, because 1 - p must not cancel. A logit that is not
// finite, or an invalid label, makes the loss and gradient of its head NaN.
//
// The order of a sum depends on its sizes alone: the lanes of a warp, the rows of a part, the parts.

#include "heads.cuh"

// Factors that make a sum a mean over row weights, and a mean over rows. A factor on the loss of each head follows
// them.
struct Denominators {
  double inverse_weight, inverse_rows;
};

namespace {

constexpr int WARPS = 8;
// Rows of a part.
constexpr int ROWS = 32;
// Loss, loss times the row's weight, entropy.
constexpr int SUMS = 3;

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
    const Pair value = loss_of(place.kind, row, terms, pull);
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

// totals [n] of parts [count, n], added to the earlier totals if accumulate is set. A warp for each of the n.
extern "C" __global__ void loss_totals(const double *__restrict__ parts, double *__restrict__ totals, int count, int n,
                                       int accumulate) {
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
  if (column >= n) return;
  double sum = 0.0;
  for (int part = lane; part < count; part += WARP) sum += parts[part * (long long)n + column];
  sum = sum_of_lanes(sum);
  if (lane == 0) totals[column] = accumulate ? totals[column] + sum : sum;
}
