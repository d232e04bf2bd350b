// A linear layer of few rows: y = f(x W^T + bias) + rest, with x [rows, k], W [n, k], and optional bias [n] and rest
// [rows, n]. Reading W takes nearly all of the time, so each warp takes one row of W for up to eight rows of x, and each
// of its lanes every 32nd value of that row. Further rows of x are further blocks, which find W in the cache.
//
// Values are of type T, arithmetic is f32; the sums of lanes are reduced as a tree.

#include "activations.cuh"
#include "numbers.cuh"

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// The most rows of a block.
constexpr int ROWS = 8;
// Values of W that a lane loads at once.
constexpr int EACH = 8;

// Computes R rows, at least `rows`: rows past the last one repeat it and are not written.
template <typename T, int R>
__device__ void few_rows(const T *x, const T *w, const T *bias, const T *rest, T *y, int rows, int n, int k,
                         int activation) {
  const int column = int((blockIdx.x * (long long)blockDim.x + threadIdx.x) / WARP), lane = threadIdx.x % WARP;
  if (column >= n) return;
  w += column * (long long)k;
  float sums[R] = {};
  for (int first = lane; first < k; first += WARP * EACH) {
    float weights[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) weights[e] = first + e * WARP < k ? read(w + first + e * WARP) : 0.0f;
#pragma unroll
    for (int row = 0; row < R; row++) {
      const T *numbers = x + (row < rows ? row : rows - 1) * (long long)k;
#pragma unroll
      for (int e = 0; e < EACH; e++)
        if (first + e * WARP < k) sums[row] += weights[e] * read(numbers + first + e * WARP);
    }
  }
  const float b = bias ? read(bias + column) : 0.0f;
#pragma unroll
  for (int row = 0; row < R; row++) {
    float sum = sums[row];
    for (int apart = WARP / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
    if (lane > 0 || row >= rows) continue;
    const long long i = row * (long long)n + column;
    write(y + i, value(activation, sum + b) + (rest ? read(rest + i) : 0.0f));
  }
}

template <typename T>
__device__ void of_rows(const T *x, const T *w, const T *bias, const T *rest, T *y, int rows, int n, int k,
                        int activation) {
  const long long before = blockIdx.y * (long long)ROWS;
  x += before * k;
  y += before * n;
  if (rest) rest += before * n;
  rows = min(ROWS, rows - int(before));
  if (rows == 1) few_rows<T, 1>(x, w, bias, rest, y, rows, n, k, activation);
  else if (rows == 2) few_rows<T, 2>(x, w, bias, rest, y, rows, n, k, activation);
  else if (rows <= 4) few_rows<T, 4>(x, w, bias, rest, y, rows, n, k, activation);
  else few_rows<T, ROWS>(x, w, bias, rest, y, rows, n, k, activation);
}

} // namespace

// The grid has blocks of whole warps, a warp for each column (x), and a block for every eight rows (y).
extern "C" __global__ void few_rows_f32(const float *__restrict__ x, const float *__restrict__ w,
                                        const float *__restrict__ bias, const float *__restrict__ rest,
                                        float *__restrict__ y, int rows, int n, int k, int activation) {
  of_rows(x, w, bias, rest, y, rows, n, k, activation);
}

extern "C" __global__ void few_rows_bf16(const __nv_bfloat16 *__restrict__ x, const __nv_bfloat16 *__restrict__ w,
                                         const __nv_bfloat16 *__restrict__ bias,
                                         const __nv_bfloat16 *__restrict__ rest, __nv_bfloat16 *__restrict__ y,
                                         int rows, int n, int k, int activation) {
  of_rows(x, w, bias, rest, y, rows, n, k, activation);
}
