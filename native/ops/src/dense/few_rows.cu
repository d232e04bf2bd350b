// A linear layer of few rows: y = f(x W^T + bias) + rest, with x [rows, k], W [n, k], and optional bias [n] and rest
// [rows, n]. Reading W takes nearly all of the time, so each warp takes one row of W for up to eight rows of x, and each
// of its lanes every 32nd value of that row. Further rows of x are further blocks, which find W in the cache.
//
// Nine rows and more whose rows are aligned to 16 bytes are tiles for the matrix units (matrix_units.cuh): a block has eight rows of W and up to TILE_ROWS of
// x, and each of its warps every eighth line of them.
//
// Values are of type T, arithmetic is f32. The sums of lanes are reduced as a tree, those of warps one by one.

#include "activations.cuh"
#include "matrix_units.cuh"
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

constexpr int TILE_ROWS = 32, COLUMNS = 8, WARPS = 8;
// Lines whose loads are under way at once.
constexpr int TOGETHER = 4;

template <typename Way>
__device__ void tile_of_rows(const typename Way::Number *x, const typename Way::Number *w,
                             const typename Way::Number *bias, const typename Way::Number *rest,
                             typename Way::Number *y, int rows, int n, int k, int activation) {
  using T = typename Way::Number;
  constexpr int IN = sizeof(Piece) / sizeof(T), IN_LINE = LINE / sizeof(Piece);
  __shared__ float shares[WARPS][TILE_ROWS][COLUMNS + 1];
  const int warp = threadIdx.x / WARP, lines = (k + IN * IN_LINE - 1) / (IN * IN_LINE);
  const long long first_row = blockIdx.y * (long long)TILE_ROWS, column = blockIdx.x * (long long)COLUMNS + of_row();

  float sums[2][Way::SUMS][4] = {};
  for (int first = warp; first < lines; first += WARPS * TOGETHER) {
    Piece of_x[TOGETHER][4], of_w[TOGETHER];
#pragma unroll
    for (int l = 0; l < TOGETHER; l++) {
      const int at = ((first + WARPS * l) * IN_LINE + of_line()) * IN;
      of_w[l] = {};
      if (at < k && column < n) of_w[l] = *reinterpret_cast<const Piece *>(w + column * k + at);
#pragma unroll
      for (int m = 0; m < 4; m++) {
        const long long row = first_row + 8 * m + of_row();
        of_x[l][m] = {};
        if (at < k && row < rows) of_x[l][m] = *reinterpret_cast<const Piece *>(x + row * k + at);
      }
    }
#pragma unroll
    for (int l = 0; l < TOGETHER; l++)
#pragma unroll
      for (int m = 0; m < 2; m++) Way::multiply(sums[m], of_x[l][2 * m], of_x[l][2 * m + 1], of_w[l]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
    shares[warp][i / 4 * 16 + i % 4 / 2 * 8 + of_row()][2 * of_line() + i % 2] = whole(sums[i / 4], i % 4);
  __syncthreads();

  const int row = threadIdx.x / COLUMNS, own = threadIdx.x % COLUMNS;
  const long long to = blockIdx.x * (long long)COLUMNS + own;
  if (first_row + row >= rows || to >= n) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < WARPS; i++) sum += shares[i][row][own];
  const long long i = (first_row + row) * n + to;
  write(y + i, value(activation, sum + (bias ? read(bias + to) : 0.0f)) + (rest ? read(rest + i) : 0.0f));
}

} // namespace

// The grid has blocks of WARPS warps, one for each COLUMNS columns (x) and each TILE_ROWS rows (y).
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    tile_of_rows_f32(const float *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
                     const float *__restrict__ rest, float *__restrict__ y, int rows, int n, int k, int activation) {
  tile_of_rows<InF32>(x, w, bias, rest, y, rows, n, k, activation);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    tile_of_rows_bf16(const __nv_bfloat16 *__restrict__ x, const __nv_bfloat16 *__restrict__ w,
                      const __nv_bfloat16 *__restrict__ bias, const __nv_bfloat16 *__restrict__ rest,
                      __nv_bfloat16 *__restrict__ y, int rows, int n, int k, int activation) {
  tile_of_rows<InBf16>(x, w, bias, rest, y, rows, n, k, activation);
}

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
