// Sums of the columns of x [rows, n] over parts of `rows_per_part` rows each: sums [gridDim.y, n], f32. A second launch
// on these sums, as one part, gives the sums over all rows.
//
// A block has 32 columns and LANES rows: each lane adds up every LANES-th row of a part, then the lanes are added in
// order.

#include "numbers.cuh"

namespace {

constexpr int COLUMNS = 32, LANES = 8;

template <typename T> __device__ void column_sums(const T *x, float *sums, long long rows, int n, int rows_per_part) {
  __shared__ float of_lanes[LANES][COLUMNS];
  const int column = blockIdx.x * COLUMNS + threadIdx.x;
  const long long first = blockIdx.y * (long long)rows_per_part;
  const long long last = min(rows, first + rows_per_part);

  float sum = 0.0f;
  if (column < n)
    for (long long row = first + threadIdx.y; row < last; row += LANES) sum += read(x + row * n + column);
  of_lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= n) return;
  for (int lane = 1; lane < LANES; lane++) sum += of_lanes[lane][threadIdx.x];
  sums[blockIdx.y * (long long)n + column] = sum;
}

} // namespace

#define COLUMN_SUMS(T, name)                                                                                          \
  extern "C" __global__ void column_sums_##name(const T *__restrict__ x, float *__restrict__ sums, long long rows,    \
                                                int n, int rows_per_part) {                                           \
    column_sums(x, sums, rows, n, rows_per_part);                                                                     \
  }

COLUMN_SUMS(float, f32)
COLUMN_SUMS(__nv_bfloat16, bf16)
