// One frame of a few games through a Mamba layer (Gu & Dao 2023, section 3); its products are those of few_rows.cu. A
// frame is so short that launches take most of its time, so all ops between two products are one kernel.
//
//   inward   n = x / sqrt(mean(x^2) + eps) * norm, [u, z] = W_in n, u = silu(conv(u)), and the state of
//            the convolution after the frame
//   scan     dt = softplus(W_dt low + bias), h' = exp(dt A) h + dt B u, y = (C h' + D u) silu(z), A = -exp(a_log);
//            low, B, C [rows, rank + 2 n] lie side by side
//
// All values are f32; the sums of lanes are reduced as a tree. States are [rows, c, taps - 1] and [rows, c, n].

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// The most rows of a block.
constexpr int ROWS = 8;
// Values of W that a lane loads at once.
constexpr int EACH = 8;
// The most values of a channel's state in a lane.
constexpr int STATES = 2;

// Sums over a warp; every lane gets the sum.
__device__ inline float sum_of_lanes(float v) {
  for (int apart = WARP / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  return v;
}

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__device__ inline long long warp() { return (blockIdx.x * (long long)blockDim.x + threadIdx.x) / WARP; }

// A convolution of at most WARP taps; the bias is optional.
struct Conv {
  const float *weight, *bias, *state;
  float *next;
  int taps, channels;

  // The weight of tap `lane` of a channel; `input` is the tap's input before the frame, 0 for the newest tap.
  __device__ float tap(int channel) const {
    const int lane = threadIdx.x % WARP;
    return lane < taps ? weight[channel * taps + lane] : 0.0f;
  }
  __device__ float input(int row, int channel) const {
    const int lane = threadIdx.x % WARP;
    return lane + 1 < taps ? state[(row * (long long)channels + channel) * (taps - 1) + lane] : 0.0f;
  }

  // Every lane gets the result.
  __device__ float convolved(int row, int channel, float tap, float input, float newest) const {
    const int lane = threadIdx.x % WARP;
    const float seen = lane + 1 == taps ? newest : input;
    const float moved = __shfl_down_sync(ALL_LANES, seen, 1);
    if (lane + 1 < taps) next[(row * (long long)channels + channel) * (taps - 1) + lane] = moved;
    return silu(sum_of_lanes(tap * seen) + (bias ? bias[channel] : 0.0f));
  }
};

// Computes R rows, at least `rows`: rows past the last one repeat it and are not written.
template <int R>
__device__ void inward(const float *x, const float *norm, const float *w, Conv conv, float *u, float *z, int rows, int k,
                       float eps) {
  const int column = int(warp()), lane = threadIdx.x % WARP, c = conv.channels;
  if (column >= 2 * c) return;
  const bool convolves = column < c;
  w += column * (long long)k;
  // These loads overlap the product.
  float tap = 0.0f, inputs[R] = {};
  if (convolves) {
    tap = conv.tap(column);
#pragma unroll
    for (int row = 0; row < R; row++) inputs[row] = conv.input(row < rows ? row : rows - 1, column);
  }
  float sums[R] = {}, squares[R] = {};
  for (int first = lane; first < k; first += WARP * EACH) {
    float weights[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int i = first + e * WARP;
      weights[e] = i < k ? w[i] * norm[i] : 0.0f;
    }
#pragma unroll
    for (int row = 0; row < R; row++) {
      const float *numbers = x + (row < rows ? row : rows - 1) * (long long)k;
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int i = first + e * WARP;
        const float v = i < k ? numbers[i] : 0.0f;
        sums[row] += weights[e] * v;
        squares[row] += v * v;
      }
    }
  }
#pragma unroll
  for (int row = 0; row < R; row++) {
    const float y = sum_of_lanes(sums[row]) * rsqrtf(sum_of_lanes(squares[row]) / k + eps);
    if (row >= rows) continue;
    if (convolves) {
      const float convolved = conv.convolved(row, column, tap, inputs[row], y);
      if (lane == 0) u[row * (long long)c + column] = convolved;
    } else if (lane == 0) {
      z[row * (long long)c + column - c] = y;
    }
  }
}

} // namespace

// The grid has blocks of whole warps, a warp for each of the 2 c columns (x), and a block for every eight rows (y).
extern "C" __global__ void mamba_step_inward(const float *__restrict__ x, const float *__restrict__ norm,
                                             const float *__restrict__ w, const float *__restrict__ taps_of,
                                             const float *__restrict__ bias, const float *__restrict__ state,
                                             float *__restrict__ u, float *__restrict__ z, float *__restrict__ next,
                                             int rows, int k, int c, int taps, float eps) {
  const long long before = blockIdx.y * (long long)ROWS, states = before * c * (taps - 1);
  const Conv conv{taps_of, bias, state + states, next + states, taps, c};
  x += before * k;
  u += before * c;
  z += before * c;
  rows = min(ROWS, rows - int(before));
  if (rows == 1) inward<1>(x, norm, w, conv, u, z, rows, k, eps);
  else if (rows == 2) inward<2>(x, norm, w, conv, u, z, rows, k, eps);
  else if (rows <= 4) inward<4>(x, norm, w, conv, u, z, rows, k, eps);
  else inward<ROWS>(x, norm, w, conv, u, z, rows, k, eps);
}

// The grid has blocks of whole warps, a warp for each channel of each row; a state has at most WARP * STATES values.
extern "C" __global__ void mamba_step_scan(const float *__restrict__ low, const float *__restrict__ w_dt,
                                           const float *__restrict__ bias, const float *__restrict__ a_log,
                                           const float *__restrict__ d, const float *__restrict__ u,
                                           const float *__restrict__ z, const float *__restrict__ h,
                                           float *__restrict__ y, float *__restrict__ next, int rows, int c, int rank,
                                           int n) {
  const long long at = warp(), row = at / c;
  const int channel = int(at % c), lane = threadIdx.x % WARP;
  if (row >= rows) return;
  low += row * (rank + 2LL * n);
  const float own_u = u[at], own_z = z[at];
  float raw = 0.0f;
  for (int i = lane; i < rank; i += WARP) raw += w_dt[channel * (long long)rank + i] * low[i];
  // These loads overlap the sum; values past the state are 0.
  float rate[STATES] = {}, before[STATES] = {}, in[STATES] = {}, read[STATES] = {};
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    const int i = lane + WARP * s;
    if (i >= n) continue;
    rate[s] = a_log[channel * (long long)n + i];
    before[s] = h[at * n + i];
    in[s] = low[rank + i];
    read[s] = low[rank + n + i];
  }
  const float dt = softplus(sum_of_lanes(raw) + bias[channel]);
  float out = 0.0f;
#pragma unroll
  for (int s = 0; s < STATES; s++) {
    const float now = expf(dt * -expf(rate[s])) * before[s] + dt * own_u * in[s];
    if (lane + WARP * s < n) next[at * n + lane + WARP * s] = now;
    out += now * read[s];
  }
  out = sum_of_lanes(out) + d[channel] * own_u;
  if (lane == 0) y[at] = out * silu(own_z);
}
