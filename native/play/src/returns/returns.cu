// Advantages and targets of steps on a card, by generalised advantage estimation as in `returns.rs`, and the values after
// steps that a limit has cut.
//
// All columns are [time, rows]; `values` has one more step, after the last one. `ends` are 1 for a termination plus 2 for
// a limit.

namespace {

constexpr int THREADS = 256, SUMS = 4;

__device__ inline bool is_finite(float x) { return fabsf(x) < INFINITY; }

} // namespace

// `after` has the value after each step that a limit cut. A reward or a value after a step that is not finite is written
// to `faults` [2]. The grid has a thread for each row.
extern "C" __global__ void advantages(const float *__restrict__ rewards, const float *__restrict__ values,
                                      const float *__restrict__ after, const unsigned *__restrict__ ends,
                                      float *__restrict__ advantages, float *__restrict__ targets,
                                      float *__restrict__ faults, int time, long long rows, float gamma, float lambda) {
  const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float later = 0.0f;
  for (int t = time - 1; t >= 0; t--) {
    const long long at = t * rows + row;
    const unsigned end = ends[at];
    const float next = end == 0 ? values[at + rows] : end == 2 ? after[at] : 0.0f;
    const float difference = rewards[at] + gamma * next - values[at];
    later = difference + (end == 0 ? gamma * lambda * later : 0.0f);
    advantages[at] = later;
    targets[at] = later + values[at];
    if (!is_finite(rewards[at])) faults[0] = rewards[at];
    if (!is_finite(next)) faults[1] = next;
  }
}

// Writes the values of `count` frames, which stand at `value` in logits [count, num_logits], to their places. The grid has
// a thread for each frame.
extern "C" __global__ void place_values(const float *__restrict__ logits, const unsigned *__restrict__ places,
                                        float *__restrict__ values, long long count, int num_logits, int value) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) values[places[i]] = logits[i * num_logits + value];
}

// Sums over n frames: of targets, their squares, targets less values, and the squares of these. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
    explained(const float *__restrict__ targets, const float *__restrict__ values, double *__restrict__ out, long long n) {
  __shared__ double sums[SUMS][THREADS];
  double own[SUMS] = {};
  for (long long i = threadIdx.x; i < n; i += THREADS) {
    const double target = targets[i], rest = target - values[i];
    own[0] += target;
    own[1] += target * target;
    own[2] += rest;
    own[3] += rest * rest;
  }
  for (int k = 0; k < SUMS; k++) sums[k][threadIdx.x] = own[k];
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half)
      for (int k = 0; k < SUMS; k++) sums[k][threadIdx.x] += sums[k][threadIdx.x + half];
  }
  if (threadIdx.x == 0)
    for (int k = 0; k < SUMS; k++) out[k] = sums[k][0];
}
