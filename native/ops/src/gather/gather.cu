// Rows of a table by id, and their gradient summed by row; labels as one-hot rows.
//
// table and its gradient [rows, w], y and dy [n, w] are of type T; ids [n] are u32 and below `rows`; sums are f32.
//
// The gradient of a row follows the order of its ids within a part, and then the order of the parts. Parts depend on
// sizes alone, so launches are reproducible bit by bit. The smallest and the largest id of each run of ids come first,
// so that a row skips the runs that cannot contain it.

#include "numbers.cuh"

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Ids of a run.
constexpr int RUN = 256;
// Columns of each lane; they are WARP apart.
constexpr int COLUMNS = 4;
// Rows of dy that a warp loads at once.
constexpr int AT_ONCE = 4;

__device__ inline long long warp() { return (blockIdx.x * (long long)blockDim.x + threadIdx.x) / WARP; }

// The grid has a thread for each value of y.
template <typename T>
__device__ void forward(const T *table, const unsigned *ids, T *y, long long n, int w) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n * w) y[i] = table[ids[i / w] * (long long)w + i % w];
}

// Writes parts [count, rows, w] of `runs_per_part` runs each. The grid has a warp for each row, for each WARP * COLUMNS
// columns of the row, in each part.
template <typename T>
__device__ void backward(const unsigned *ids, const unsigned *runs, const T *dy, float *parts, long long n, int rows,
                         int w, int count, int runs_per_part) {
  const int chunks = (w + WARP * COLUMNS - 1) / (WARP * COLUMNS), lane = threadIdx.x % WARP;
  const long long at = warp() / rows;
  const unsigned row = unsigned(warp() % rows);
  const int part = int(at / chunks), first = int(at % chunks) * WARP * COLUMNS + lane;
  if (part >= count) return;
  const int all = int((n + RUN - 1) / RUN), begin = part * runs_per_part, end = min(all, begin + runs_per_part);

  float sums[COLUMNS] = {};
  for (int r = begin; r < end; r += WARP) {
    const bool near = r + lane < end && runs[2 * (r + lane)] <= row && row <= runs[2 * (r + lane) + 1];
    for (unsigned near_runs = __ballot_sync(ALL_LANES, near); near_runs; near_runs &= near_runs - 1) {
      const long long run = (r + __ffs(near_runs) - 1) * (long long)RUN;
      for (long long i = run; i < run + RUN && i < n; i += WARP) {
        unsigned own = __ballot_sync(ALL_LANES, i + lane < n && ids[i + lane] == row);
        while (own) {
          float more[AT_ONCE][COLUMNS];
          for (int k = 0; k < AT_ONCE; k++) {
            const long long id = i + __ffs(own) - 1;
            for (int c = 0; c < COLUMNS; c++)
              more[k][c] = own && first + WARP * c < w ? read(dy + id * w + first + WARP * c) : 0.0f;
            own &= own - 1;
          }
          for (int k = 0; k < AT_ONCE; k++)
            for (int c = 0; c < COLUMNS; c++) sums[c] += more[k][c];
        }
      }
    }
  }
  for (int c = 0; c < COLUMNS; c++)
    if (first + WARP * c < w) parts[(part * (long long)rows + row) * w + first + WARP * c] = sums[c];
}

// Sums the parts [count, n] in order. The grid has a thread for each value.
template <typename T> __device__ void sum(const float *parts, T *sums, int count, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  for (int part = 0; part < count; part++) sum += parts[part * n + i];
  write(sums + i, sum);
}

} // namespace

// The smallest and the largest id of each run, [n / RUN, 2]. The grid has a warp for each run.
extern "C" __global__ void gather_runs(const unsigned *__restrict__ ids, unsigned *__restrict__ runs, long long n) {
  const long long first = warp() * RUN;
  if (first >= n) return;
  const int lane = threadIdx.x % WARP;
  unsigned least = 0xffffffffu, most = 0;
  for (long long i = first + lane; i < first + RUN && i < n; i += WARP) {
    least = min(least, ids[i]);
    most = max(most, ids[i]);
  }
  for (int apart = WARP / 2; apart > 0; apart /= 2) {
    least = min(least, __shfl_xor_sync(ALL_LANES, least, apart));
    most = max(most, __shfl_xor_sync(ALL_LANES, most, apart));
  }
  if (lane > 0) return;
  runs[2 * warp()] = least;
  runs[2 * warp() + 1] = most;
}

// The chosen actions of a head in the form that later heads take: y [n, w] from labels f32 [n, all]; the head's labels
// begin at `first`. A class becomes one-hot, each bit becomes 0 or 1; a label that is not a class gives zeros. The grid
// has a thread for each value.
extern "C" __global__ void one_hot(const float *__restrict__ labels, float *__restrict__ y, long long n, int w, int all,
                                   int first, int classes) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n * w) return;
  const int column = int(i % w);
  const float *own = labels + i / w * all + first;
  y[i] = classes ? (own[0] == column ? 1.0f : 0.0f) : (own[column] == 1.0f ? 1.0f : 0.0f);
}

#define GATHER(name, T)                                                                                               \
  extern "C" __global__ void gather_##name##_forward(const T *__restrict__ table, const unsigned *__restrict__ ids,   \
                                                     T *__restrict__ y, long long n, int w) {                         \
    forward(table, ids, y, n, w);                                                                                     \
  }                                                                                                                   \
  extern "C" __global__ void gather_##name##_backward(                                                                \
      const unsigned *__restrict__ ids, const unsigned *__restrict__ runs, const T *__restrict__ dy,                  \
      float *__restrict__ parts, long long n, int rows, int w, int count, int runs_per_part) {                        \
    backward(ids, runs, dy, parts, n, rows, w, count, runs_per_part);                                                 \
  }                                                                                                                   \
  extern "C" __global__ void gather_##name##_sum(const float *__restrict__ parts, T *__restrict__ sums, int count,    \
                                                 long long n) {                                                       \
    sum(parts, sums, count, n);                                                                                       \
  }

GATHER(f32, float)
GATHER(bf16, __nv_bfloat16)
