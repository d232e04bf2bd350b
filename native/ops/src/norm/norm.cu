// Norms of rows, followed by an activation: LayerNorm (Ba et al. 2016, eq. 3 and 4) and RMSNorm (Zhang & Sennrich 2019,
// eq. 4) over the last dimension, or over each of its groups, which are then the rows.
//
// x, y, dy, dx [rows, d] are of type T. Weight, bias and their gradients [groups, d], the saved statistics of each row
// [rows, 2] = (mean, 1 / sqrt(variance + eps)), and all arithmetic are f32. Rows are read in place.
//
// Sums have an order that depends on sizes alone: within a row that of the 32 lanes of a warp, over rows that of parts
// of `rows_per_part`. Launches on a card are reproducible bit by bit, whatever the shape of the grid.

#include "activations.cuh"
#include "numbers.cuh"

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// The sum over a warp, in every lane.
__device__ inline float sum_of_lanes(float v) {
  for (int apart = WARP / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  return v;
}

// The row of this warp. A warp has one row, or none past the last: its lanes return together.
__device__ inline long long row_of_warp() {
  return (blockIdx.x * (long long)blockDim.x + threadIdx.x) / WARP;
}

// Numbers of a row that a lane keeps in registers if there are few rows, so that all its loads are under way at once. With
// many rows other warps have loads under way, and more of them have room without these registers.
constexpr int KEPT = 16;
// The most threads of a block then.
constexpr int MOST_OF_FEW = 256;

// y = f((x - mean) * scale * weight + bias). The bias is optional; if `kept` is null, no statistics are saved. The grid
// has blocks of whole warps, a warp for each row. With IN_REGISTERS, d <= WARP * KEPT.
template <typename T, bool CENTER, bool IN_REGISTERS>
__device__ void forward_row(const T *x, const float *weight, const float *bias, T *y, float *kept, long long row, int d,
                            float eps, int activation) {
  const int lane = threadIdx.x % WARP;
  float own[KEPT], weights[KEPT], biases[KEPT];
  if (IN_REGISTERS) {
#pragma unroll
    for (int e = 0; e < KEPT; e++) {
      const int i = lane + e * WARP;
      own[e] = i < d ? read(x + i) : 0.0f;
      weights[e] = i < d ? weight[i] : 0.0f;
      biases[e] = CENTER && bias && i < d ? bias[i] : 0.0f;
    }
  }
  // Calls `use` with each number of this lane, in order, and its index.
  const auto each = [&](auto use) {
    if (IN_REGISTERS) {
#pragma unroll
      for (int e = 0; e < KEPT; e++)
        if (lane + e * WARP < d) use(lane + e * WARP, e, own[e]);
    } else {
      for (int i = lane; i < d; i += WARP) use(i, 0, read(x + i));
    }
  };

  float mean = 0.0f;
  if (CENTER) {
    float sum = 0.0f;
    each([&](int, int, float v) { sum += v; });
    mean = sum_of_lanes(sum) / d;
  }
  // The mean is subtracted first: the difference of two large sums would lose the variance.
  float squares = 0.0f;
  each([&](int, int, float v) {
    v -= mean;
    squares += v * v;
  });
  const float scale = rsqrtf(sum_of_lanes(squares) / d + eps);

  each([&](int i, int e, float v) {
    const float scaled = (v - mean) * scale * (IN_REGISTERS ? weights[e] : weight[i]);
    const float shift = IN_REGISTERS ? biases[e] : bias ? bias[i] : 0.0f;
    write(y + i, value(activation, CENTER && bias ? scaled + shift : scaled));
  });
  if (kept && lane == 0) {
    kept[2 * row] = mean;
    kept[2 * row + 1] = scale;
  }
}

template <typename T, bool CENTER, bool IN_REGISTERS>
__device__ void forward(const T *x, const float *weight, const float *bias, T *y, float *kept,
                        long long rows, int d, int groups, float eps, int activation) {
  const long long row = row_of_warp();
  if (row >= rows) return;
  const long long of_group = row % groups * d;
  forward_row<T, CENTER, IN_REGISTERS>(x + row * d, weight + of_group, bias ? bias + of_group : nullptr, y + row * d,
                                       kept, row, d, eps, activation);
}

// dx = (g - mean(g) - n * mean(g * n)) * scale with n = (x - mean) * scale and g = dy * weight; an RMSNorm has no
// mean(g). The grid has blocks of whole warps, a warp for each row.
//
// Both loops round g. Otherwise the difference of g and the mean of rounded g would have an error, which a small variance
// scales by up to 1 / sqrt(eps).
template <typename T, bool CENTER>
__device__ void backward(const T *x, const float *weight, const float *kept, const T *dy, T *dx, long long rows,
                         int d, int groups) {
  const long long row = row_of_warp();
  if (row >= rows) return;
  const int lane = threadIdx.x % WARP;
  x += row * d;
  dy += row * d;
  dx += row * d;
  weight += row % groups * d;
  const float mean = kept[2 * row], scale = kept[2 * row + 1];

  float sum_g = 0.0f, sum_gn = 0.0f;
  for (int i = lane; i < d; i += WARP) {
    const float g = __fmul_rn(read(dy + i), weight[i]);
    sum_g += g;
    sum_gn += g * (read(x + i) - mean) * scale;
  }
  const float mean_g = CENTER ? sum_of_lanes(sum_g) / d : 0.0f;
  const float mean_gn = sum_of_lanes(sum_gn) / d;

  for (int i = lane; i < d; i += WARP) {
    const float g = __fmul_rn(read(dy + i), weight[i]), n = (read(x + i) - mean) * scale;
    write(dx + i, (g - mean_g - n * mean_gn) * scale);
  }
}

// dweight and dbias over the `rows` of all groups in part blockIdx.y, in order: parts [gridDim.y, 2, groups * d], or
// [gridDim.y, 1, groups * d] for an RMSNorm. The grid has a thread for each column.
template <typename T, bool CENTER>
__device__ void weight_parts(const T *x, const float *kept, const T *dy, float *parts, long long rows, int d,
                             int groups, int rows_per_part) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, width = groups * d;
  if (column >= width) return;
  kept += 2 * (column / d);
  const long long first = blockIdx.y * (long long)rows_per_part;
  const long long last = min(rows, first + rows_per_part);

  float dweight = 0.0f, dbias = 0.0f;
  for (long long row = first; row < last; row++) {
    const float g = read(dy + row * width + column);
    const float *of_row = kept + 2 * row * groups;
    dweight += g * (read(x + row * width + column) - of_row[0]) * of_row[1];
    dbias += g;
  }
  parts += blockIdx.y * (CENTER ? 2LL : 1LL) * width + column;
  parts[0] = dweight;
  if (CENTER) parts[width] = dbias;
}

} // namespace

#define NORM(name, T, CENTER)                                                                                         \
  extern "C" __global__ void name##_forward(const T *__restrict__ x, const float *__restrict__ weight,                \
                                            const float *__restrict__ bias, T *__restrict__ y,                        \
                                            float *__restrict__ kept, long long rows, int d, int groups, float eps,   \
                                            int activation) {                                                         \
    forward<T, CENTER, false>(x, weight, bias, y, kept, rows, d, groups, eps, activation);                            \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(MOST_OF_FEW) name##_forward_few(                                       \
      const T *__restrict__ x, const float *__restrict__ weight, const float *__restrict__ bias, T *__restrict__ y,   \
      float *__restrict__ kept, long long rows, int d, int groups, float eps, int activation) {                       \
    forward<T, CENTER, true>(x, weight, bias, y, kept, rows, d, groups, eps, activation);                             \
  }                                                                                                                   \
  extern "C" __global__ void name##_backward(const T *__restrict__ x, const float *__restrict__ weight,               \
                                             const float *__restrict__ kept, const T *__restrict__ dy,                \
                                             T *__restrict__ dx, long long rows, int d, int groups) {                 \
    backward<T, CENTER>(x, weight, kept, dy, dx, rows, d, groups);                                                    \
  }                                                                                                                   \
  extern "C" __global__ void name##_weight_parts(const T *__restrict__ x, const float *__restrict__ kept,             \
                                                 const T *__restrict__ dy, float *__restrict__ parts, long long rows, \
                                                 int d, int groups, int rows_per_part) {                              \
    weight_parts<T, CENTER>(x, kept, dy, parts, rows, d, groups, rows_per_part);                                      \
  }

NORM(layer_norm_f32, float, true)
NORM(layer_norm_bf16, __nv_bfloat16, true)
NORM(rms_norm_f32, float, false)
NORM(rms_norm_bf16, __nv_bfloat16, false)
