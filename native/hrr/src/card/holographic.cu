// Holographic vectors on a card, in the domains of `vectors.rs`: the time, and the half spectrum divided by sqrt(d),
// whose bins 1..d/2 are multiplied by sqrt(2). A row has `d` numbers. Tensors are [rows, d] f32 unless stated.

#include "trig.cuh"

namespace {

constexpr int WARP = 32, THREADS = 256, WARPS = THREADS / WARP;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Complex numbers of a transform in shared memory.
constexpr int MOST_HALF = 4096;
// Queries that a warp compares with an item, so that each number of the item is read once for all of them.
constexpr int QUERIES = 4;
// The largest code.
constexpr float TOP = 127.0f;

struct Complex {
  float re, im;
};

__device__ inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }

__device__ inline Complex times(Complex a, Complex b) {
  return {fmaf(a.re, b.re, -(a.im * b.im)), fmaf(a.re, b.im, a.im * b.re)};
}

// Cosine and sine of a share of a full turn.
__device__ inline SinCos turned(int numerator, int denominator) {
  return sin_cos(TAU * (float(numerator) / float(denominator)));
}

// The place of a number before a transform in place: the reverse of the `bits` bits of its index.
__device__ inline int place(int at, int bits) { return int(__brev(unsigned(at)) >> (32 - bits)); }

// Transforms `half` numbers in place, which lie in the order of `place` (Cooley & Tukey 1965). The inverse is not
// divided by the count.
__device__ void transform(Complex *z, int half, float direction) {
  for (int length = 2; length <= half; length *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < half / 2; i += THREADS) {
      const int within = i % (length / 2), first = i / (length / 2) * length + within;
      const SinCos of = turned(within, length);
      const Complex a = z[first], b = times(z[first + length / 2], {of.cos, direction * of.sin});
      z[first] = a + b;
      z[first + length / 2] = a - b;
    }
  }
  __syncthreads();
}

__device__ inline float inverse(float norm) { return norm > 0.0f ? 1.0f / norm : 0.0f; }

template <typename T> __device__ T sum_of_warp(T sum) {
  for (int apart = WARP / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
  return sum;
}

// The sum of the threads of a block, in all of them.
__device__ inline float sum_of_block(float sum, float *shared) {
  sum = sum_of_warp(sum);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = sum;
  __syncthreads();
  float all = 0.0f;
  for (int i = 0; i < WARPS; i++) all += shared[i];
  __syncthreads();
  return all;
}

// Writes the cosines of the queries from `query` on and an item, whose products are in the lanes of a warp.
template <typename T>
__device__ void write_cosines(const T *sums, const float *query_norms, const float *item_norms, float *out,
                              long long query, long long queries, long long item, long long items) {
#pragma unroll
  for (int q = 0; q < QUERIES; q++) {
    const T sum = sum_of_warp(sums[q]);
    if (threadIdx.x % WARP > 0 || query + q >= queries) continue;
    const float cosine = float(sum) * inverse(query_norms[query + q]) * inverse(item_norms[item]);
    out[(query + q) * items + item] = clamped(cosine, -1.0f, 1.0f);
  }
}

} // namespace

// The spectra of rows. `d` is 2^(bits + 1), at most 2 MOST_HALF. `ends` and `bins` are the factors of bins 0 and d/2
// and of the others. A block for each row, also where `rows` is not an argument.
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_spectrum(const float *__restrict__ x, float *__restrict__ out, int d, int bits, float ends, float bins) {
  __shared__ Complex z[MOST_HALF];
  const int half = d / 2;
  x += blockIdx.x * (long long)d;
  out += blockIdx.x * (long long)d;
  for (int i = threadIdx.x; i < half; i += THREADS) z[place(i, bits)] = {x[2 * i], x[2 * i + 1]};
  transform(z, half, -1.0f);
  // Joins the spectrum of the pairs to that of the numbers (Sorensen et al. 1987).
  for (int k = threadIdx.x; k <= half / 2; k += THREADS) {
    const int m = half - k;
    if (k == 0) {
      out[0] = (z[0].re + z[0].im) * ends;
      out[half] = (z[0].re - z[0].im) * ends;
      continue;
    }
    const Complex a = z[k], b = z[m];
    const SinCos of = turned(k, d);
    const Complex even = {a.re + b.re, a.im - b.im};
    const Complex odd = times({a.im + b.im, b.re - a.re}, {of.cos, -of.sin});
    out[m] = (even.re - odd.re) * 0.5f * bins;
    out[half + m] = (odd.im - even.im) * 0.5f * bins;
    out[k] = (even.re + odd.re) * 0.5f * bins;
    out[half + k] = (even.im + odd.im) * 0.5f * bins;
  }
}

// The rows of spectra, with the arguments of `hrr_spectrum`.
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_time(const float *__restrict__ x, float *__restrict__ out, int d, int bits, float ends, float bins) {
  __shared__ Complex z[MOST_HALF];
  const int half = d / 2;
  x += blockIdx.x * (long long)d;
  out += blockIdx.x * (long long)d;
  for (int k = threadIdx.x; k <= half / 2; k += THREADS) {
    const int m = half - k;
    if (k == 0) {
      z[0] = {(x[0] + x[half]) * ends, (x[0] - x[half]) * ends};
      continue;
    }
    const Complex a = {x[k], x[half + k]}, b = {x[m], x[half + m]};
    const SinCos of = turned(k, d);
    const Complex even = {a.re + b.re, a.im - b.im};
    const Complex odd = times({a.re - b.re, a.im + b.im}, {of.cos, of.sin});
    z[place(m, bits)] = {(even.re + odd.im) * 0.5f * bins, (odd.re - even.im) * 0.5f * bins};
    z[place(k, bits)] = {(even.re - odd.im) * 0.5f * bins, (even.im + odd.re) * 0.5f * bins};
  }
  transform(z, half, 1.0f);
  for (int i = threadIdx.x; i < half; i += THREADS) {
    out[2 * i] = z[i].re;
    out[2 * i + 1] = z[i].im;
  }
}

// Products of spectra, with `conjugate` of the conjugate of `b`. A step of 0 takes the first row for all rows, and 1
// the row of its own. A thread for each bin of [rows, d / 2].
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_multiply(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ out, long long rows,
                 int d, int a_step, int b_step, int conjugate, float ends, float bins) {
  const int half = d / 2;
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x, row = at / half, k = at % half;
  if (row >= rows) return;
  a += row * a_step * d + k;
  b += row * b_step * d + k;
  out += row * d + k;
  if (k == 0) {
    out[0] = a[0] * b[0] / ends;
    out[half] = a[half] * b[half] / ends;
    return;
  }
  const float scale = 1.0f / bins;
  const Complex product = times({a[0] * scale, a[half] * scale}, {b[0], conjugate ? -b[half] : b[half]});
  out[0] = product.re;
  out[half] = product.im;
}

// Sums of `group` consecutive rows, with a factor of each row of a group; `weights` may be null. A thread for each
// number of [sums, d].
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_superpose(const float *__restrict__ x, const float *__restrict__ weights, float *__restrict__ out,
                  long long sums, long long group, int d) {
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (at >= sums * d) return;
  const float *own = x + at / d * group * d + at % d;
  float sum = 0.0f;
  for (long long i = 0; i < group; i++) sum = fmaf(weights ? weights[i] : 1.0f, own[i * d], sum);
  out[at] = sum;
}

// The lengths [rows].
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_norms(const float *__restrict__ x, float *__restrict__ norms, int d) {
  __shared__ float shared[WARPS];
  x += blockIdx.x * (long long)d;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < d; i += THREADS) sum = fmaf(x[i], x[i], sum);
  sum = sum_of_block(sum, shared);
  if (threadIdx.x == 0) norms[blockIdx.x] = sqrtf(sum);
}

// Divides rows by their lengths, in place. A row of zeros stays one.
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_normalise(float *__restrict__ x, const float *__restrict__ norms, int d) {
  const float scale = inverse(norms[blockIdx.x]);
  x += blockIdx.x * (long long)d;
  for (int i = threadIdx.x; i < d; i += THREADS) x[i] *= scale;
}

// Codes [rows, d] int8, and the lengths [rows] of the codes of each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_encode(const float *__restrict__ x, signed char *__restrict__ codes, float *__restrict__ norms, int d) {
  __shared__ float largest[WARPS];
  __shared__ unsigned long long squares[WARPS];
  x += blockIdx.x * (long long)d;
  codes += blockIdx.x * (long long)d;
  float most = 0.0f;
  for (int i = threadIdx.x; i < d; i += THREADS) most = fmaxf(most, fabsf(x[i]));
  for (int apart = WARP / 2; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, apart));
  if (threadIdx.x % WARP == 0) largest[threadIdx.x / WARP] = most;
  __syncthreads();
  for (int i = 0; i < WARPS; i++) most = fmaxf(most, largest[i]);
  // The reciprocal of a subnormal number is infinite.
  const float scale = most >= 1.17549435e-38f ? TOP / most : 0.0f;
  unsigned long long square = 0;
  for (int i = threadIdx.x; i < d; i += THREADS) {
    const int code = int(rintf(x[i] * scale));
    codes[i] = static_cast<signed char>(code);
    square += unsigned(code * code);
  }
  square = sum_of_warp(square);
  if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = square;
  __syncthreads();
  if (threadIdx.x > 0) return;
  unsigned long long all = 0;
  for (int i = 0; i < WARPS; i++) all += squares[i];
  norms[blockIdx.x] = float(sqrt(double(all)));
}

// The cosines [queries, items] of rows, by their lengths. A warp for each item and QUERIES queries: the grid is
// [items / WARPS, queries / QUERIES].
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_similarity(const float *__restrict__ x, const float *__restrict__ of, const float *__restrict__ query_norms,
                   const float *__restrict__ item_norms, float *__restrict__ out, long long queries, long long items,
                   int d) {
  const long long item = blockIdx.x * (long long)WARPS + threadIdx.x / WARP, query = blockIdx.y * (long long)QUERIES;
  if (item >= items) return;
  float sums[QUERIES] = {};
  for (int i = threadIdx.x % WARP; i < d; i += WARP) {
    const float v = of[item * d + i];
#pragma unroll
    for (int q = 0; q < QUERIES; q++)
      if (query + q < queries) sums[q] = fmaf(x[(query + q) * d + i], v, sums[q]);
  }
  write_cosines(sums, query_norms, item_norms, out, query, queries, item, items);
}

// `hrr_similarity` of codes.
extern "C" __global__ void __launch_bounds__(THREADS)
    hrr_similarity_codes(const signed char *__restrict__ x, const signed char *__restrict__ of,
                         const float *__restrict__ query_norms, const float *__restrict__ item_norms,
                         float *__restrict__ out, long long queries, long long items, int d) {
  const long long item = blockIdx.x * (long long)WARPS + threadIdx.x / WARP, query = blockIdx.y * (long long)QUERIES;
  if (item >= items) return;
  long long sums[QUERIES] = {};
  for (int i = threadIdx.x % WARP; i < d; i += WARP) {
    const int v = of[item * d + i];
#pragma unroll
    for (int q = 0; q < QUERIES; q++)
      if (query + q < queries) sums[q] += int(x[(query + q) * d + i]) * v;
  }
  write_cosines(sums, query_norms, item_norms, out, query, queries, item, items);
}
