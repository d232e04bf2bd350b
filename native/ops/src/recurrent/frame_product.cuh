// Products of a frame with a recurrent weight [gates * width, width], inside the kernel of the cell: each block has
// ROWS rows of the batch and UNITS numbers of the state. For so small a product cuBLAS would need a launch of its own,
// with so few blocks that most of a card would idle; for a large product cuBLAS is faster.
//
// width is a multiple of UNITS, and all inputs are aligned to 16 bytes. Operands are of type O, sums are f32: first
// within a thread's share of the numbers, then over the shares.
#pragma once
#include "numbers.cuh"

constexpr int WHOLE_THREADS = 256, ROWS = 32, UNITS = 16;

// Four contiguous numbers.
template <typename N> struct alignas(4 * sizeof(N)) Four {
  N v[4];
};

template <typename O> __device__ inline Four<float> four(const O *from, bool there) {
  Four<float> to = {};
  if (!there) return to;
  const Four<O> read_at_once = *reinterpret_cast<const Four<O> *>(from);
  for (int e = 0; e < 4; e++) to.v[e] = read(read_at_once.v + e);
  return to;
}

__device__ inline Four<float> shared_four(const float *from) { return *reinterpret_cast<const Four<float> *>(from); }
__device__ inline void keep_four(float *to, Four<float> v) { *reinterpret_cast<Four<float> *>(to) = v; }

// sum over k of h[row][k] * weight[n * width + unit][k], n < GATES, for the numbers of a thread.
template <int GATES> struct GatesOfTile {
  static constexpr int NUMBERS = 2;
  // Numbers of k in shared memory; each half of a block sums one half of them.
  static constexpr int DEEP = 64, HALF = DEEP / 2, APART = DEEP + 4;
  static constexpr int LINES = WHOLE_THREADS / (DEEP / 4), READS = ROWS / LINES + GATES;

  int half, x, y;
  float own[NUMBERS][GATES];

  __device__ GatesOfTile() {
    half = threadIdx.x / (WHOLE_THREADS / 2);
    x = threadIdx.x % UNITS;
    y = threadIdx.x % (WHOLE_THREADS / 2) / UNITS;
  }

  __device__ int unit() const { return blockIdx.x * UNITS + x; }
  __device__ int row(int i) const { return blockIdx.y * ROWS + y + 8 * (NUMBERS * half + i); }

  template <typename O> __device__ void multiply(const O *h, const O *weight, int batch, int width) {
    static_assert(LINES == UNITS, "a line of reads has the units of a gate");
    alignas(16) __shared__ float of_h[ROWS][APART];
    alignas(16) __shared__ float of_weight[GATES * UNITS][APART];
    const int line = threadIdx.x / LINES, column = threadIdx.x % LINES * 4;
    Four<float> next[READS];
    const auto read_next = [&](int k) {
      const bool within = k + column < width;
#pragma unroll
      for (int i = 0; i < ROWS / LINES; i++) {
        const int row = blockIdx.y * ROWS + line + LINES * i;
        next[i] = four(h + row * (long long)width + k + column, within && row < batch);
      }
#pragma unroll
      for (int n = 0; n < GATES; n++) {
        const long long row = n * (long long)width + blockIdx.x * UNITS + line;
        next[ROWS / LINES + n] = four(weight + row * width + k + column, within);
      }
    };
    read_next(0);
    // The sums of four rows, before the share of the other half is added.
    float sums[2 * NUMBERS][GATES] = {};
    for (int k = 0; k < width; k += DEEP) {
#pragma unroll
      for (int i = 0; i < ROWS / LINES; i++) keep_four(of_h[line + LINES * i] + column, next[i]);
#pragma unroll
      for (int n = 0; n < GATES; n++) keep_four(of_weight[line + LINES * n] + column, next[ROWS / LINES + n]);
      __syncthreads();
      // These loads overlap the product of the previous numbers.
      if (k + DEEP < width) read_next(k + DEEP);
#pragma unroll 2
      for (int at = half * HALF; at < (half + 1) * HALF; at += 4) {
        Four<float> a[2 * NUMBERS], b[GATES];
#pragma unroll
        for (int i = 0; i < 2 * NUMBERS; i++) a[i] = shared_four(of_h[y + 8 * i] + at);
#pragma unroll
        for (int n = 0; n < GATES; n++) b[n] = shared_four(of_weight[n * UNITS + x] + at);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int i = 0; i < 2 * NUMBERS; i++)
#pragma unroll
            for (int n = 0; n < GATES; n++) sums[i][n] += a[i].v[e] * b[n].v[e];
      }
      __syncthreads();
    }

    // Each half keeps two of the rows and passes the other two on.
    float *given = of_weight[0];
    const int other = threadIdx.x ^ (WHOLE_THREADS / 2);
#pragma unroll
    for (int i = 0; i < NUMBERS; i++)
#pragma unroll
      for (int n = 0; n < GATES; n++)
        given[(i * GATES + n) * WHOLE_THREADS + threadIdx.x] = half ? sums[i][n] : sums[i + NUMBERS][n];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NUMBERS; i++)
#pragma unroll
      for (int n = 0; n < GATES; n++) {
        const float theirs = given[(i * GATES + n) * WHOLE_THREADS + other];
        own[i][n] = half ? theirs + sums[i + NUMBERS][n] : sums[i][n] + theirs;
      }
  }
};

// sum over n of d[row * apart + n] * weight[n][unit], n < depth, for the numbers of a thread.
struct StatesOfTile {
  static constexpr int NUMBERS = 2;
  // Numbers of n in shared memory; each warp has its share.
  static constexpr int DEEP = 128, WARPS = WHOLE_THREADS / 32, SHARE = DEEP / WARPS, APART = DEEP + 4;
  static constexpr int OF_D = ROWS / WARPS, OF_WEIGHT = DEEP * UNITS / 4 / WHOLE_THREADS;

  float own[NUMBERS] = {};

  __device__ int unit() const { return blockIdx.x * UNITS + threadIdx.x % UNITS; }
  __device__ int row(int i) const { return blockIdx.y * ROWS + threadIdx.x / UNITS + ROWS / NUMBERS * i; }

  template <typename O>
  __device__ void multiply(const O *d, long long apart, const O *weight, int batch, int width, int depth) {
    alignas(16) __shared__ float of_d[ROWS][APART];
    alignas(16) __shared__ float of_weight[DEEP][UNITS + 4];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, x = lane % 4 * 4, y = lane / 4;
    const int line = threadIdx.x / 4;
    Four<float> next[OF_D + OF_WEIGHT];
    const auto read_next = [&](int n) {
#pragma unroll
      for (int i = 0; i < OF_D; i++) {
        const int row = blockIdx.y * ROWS + warp + WARPS * i;
        next[i] = four(d + row * apart + n + 4 * lane, n + 4 * lane < depth && row < batch);
      }
#pragma unroll
      for (int i = 0; i < OF_WEIGHT; i++) {
        const int row = n + line + WHOLE_THREADS / 4 * i;
        const long long at = row * (long long)width + blockIdx.x * UNITS + threadIdx.x % 4 * 4;
        next[OF_D + i] = four(weight + at, row < depth);
      }
    };
    read_next(0);
    float sums[4][4] = {};
    for (int n = 0; n < depth; n += DEEP) {
#pragma unroll
      for (int i = 0; i < OF_D; i++) keep_four(of_d[warp + WARPS * i] + 4 * lane, next[i]);
#pragma unroll
      for (int i = 0; i < OF_WEIGHT; i++)
        keep_four(of_weight[line + WHOLE_THREADS / 4 * i] + threadIdx.x % 4 * 4, next[OF_D + i]);
      __syncthreads();
      if (n + DEEP < depth) read_next(n + DEEP);
#pragma unroll 2
      for (int at = warp * SHARE; at < (warp + 1) * SHARE; at += 4) {
        Four<float> a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = shared_four(of_d[y + 8 * i] + at);
#pragma unroll
        for (int e = 0; e < 4; e++) b[e] = shared_four(of_weight[at + e] + x);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) sums[i][c] += a[i].v[e] * b[e].v[c];
      }
      __syncthreads();
    }

    float *shares = of_d[0];
    static_assert(WARPS * ROWS * UNITS <= ROWS * APART, "shares lie where d was");
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const Four<float> of_row = {{sums[i][0], sums[i][1], sums[i][2], sums[i][3]}};
      keep_four(shares + (warp * ROWS + y + 8 * i) * UNITS + x, of_row);
    }
    __syncthreads();
    for (int i = 0; i < NUMBERS; i++)
      for (int w = 0; w < WARPS; w++) own[i] += shares[w * ROWS * UNITS + i * WHOLE_THREADS + threadIdx.x];
  }
};
