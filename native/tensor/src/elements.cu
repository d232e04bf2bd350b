// Sums, conversions and copies of numbers, one thread for each number: what candle's kernels do too, whose modules the
// driver compiles for seconds.

#include "numbers.cuh"

namespace {

__device__ inline long long index() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }

template <typename T> __device__ void add(const T *x, const T *y, T *z, long long n) {
  const long long i = index();
  if (i < n) write(z + i, read(x + i) + read(y + i));
}

// Sizes but the first, and distances between neighbours along each dimension.
struct Layout {
  int d1, d2, d3;
  long long s0, s1, s2, s3;
};

template <typename Word> __device__ void copy(const Word *from, Word *to, long long n, Layout of) {
  const long long i = index();
  if (i >= n) return;
  const long long i2 = i / of.d3, i1 = i2 / of.d2, i0 = i1 / of.d1;
  to[i] = from[i0 * of.s0 + (i1 - i0 * of.d1) * of.s1 + (i2 - i1 * of.d2) * of.s2 + (i - i2 * of.d3) * of.s3];
}

} // namespace

// z [n] = x + y.
extern "C" __global__ void add_f32(const float *__restrict__ x, const float *__restrict__ y, float *__restrict__ z,
                                   long long n) {
  add(x, y, z, n);
}

extern "C" __global__ void add_bf16(const __nv_bfloat16 *__restrict__ x, const __nv_bfloat16 *__restrict__ y,
                                    __nv_bfloat16 *__restrict__ z, long long n) {
  add(x, y, z, n);
}

// to [n] = from, rounded to the nearest bf16.
extern "C" __global__ void f32_to_bf16(const float *__restrict__ from, __nv_bfloat16 *__restrict__ to, long long n) {
  const long long i = index();
  if (i < n) write(to + i, from[i]);
}

// to [d0, d1, d2, d3] = from, whose neighbours along the dimensions are s0, s1, s2 and s3 numbers apart; n = d0 d1 d2
// d3.
extern "C" __global__ void copy_strided_32(const unsigned *__restrict__ from, unsigned *__restrict__ to, long long n,
                                           int d1, int d2, int d3, long long s0, long long s1, long long s2,
                                           long long s3) {
  copy(from, to, n, {d1, d2, d3, s0, s1, s2, s3});
}

extern "C" __global__ void copy_strided_16(const unsigned short *__restrict__ from, unsigned short *__restrict__ to,
                                           long long n, int d1, int d2, int d3, long long s0, long long s1,
                                           long long s2, long long s3) {
  copy(from, to, n, {d1, d2, d3, s0, s1, s2, s3});
}
