// Elementwise functions, and products of one branch with a gate (Dauphin et al. 2017; Shazeer 2020).
//
// y = f(x + bias) + rest; bias [d] and rest are optional
//   gated        y = x f(gate)
//   glu          y = f(x[.., ..n]) x[.., n..]
//   skip         y = x + d z, d [d]
//
// Values are of type T, arithmetic is f32. Sums over rows have an order that depends on sizes alone.

#include "activations.cuh"
#include "numbers.cuh"

namespace {

// Values of a thread, a block's width apart, so that their loads overlap.
constexpr int EACH = 2;
// Columns and rows of a block that sums columns, and the least rows of a part.
constexpr int COLUMNS = 32;
constexpr int LINES = 8;
constexpr int ROWS = 256;

// Calls put(i, get(i)) for the values of this thread.
template <typename Get, typename Put> __device__ void each(long long n, Get get, Put put) {
  const long long first = blockIdx.x * (long long)blockDim.x * EACH + threadIdx.x;
  decltype(get(first)) got[EACH];
  for (int k = 0; k < EACH; k++)
    if (first + k * (long long)blockDim.x < n) got[k] = get(first + k * (long long)blockDim.x);
  for (int k = 0; k < EACH; k++)
    if (first + k * (long long)blockDim.x < n) put(first + k * (long long)blockDim.x, got[k]);
}

// A value with its gate, its gradient, or an addend.
struct Two {
  float x, g;
};

// A value with its gate and a gradient, or three operands.
struct Three {
  float x, g, dy;
};

// Computes i / n; faster for values that fit 32 bits.
__device__ inline long long quotient(long long i, int n) {
  return i <= 0xffffffffll ? (long long)(unsigned(i) / unsigned(n)) : i / n;
}

template <typename T>
__device__ void forward(const T *x, const T *bias, const T *rest, T *y, long long n, int d, int activation) {
  const auto get = [=](long long i) {
    const float sum = read(x + i) + (bias ? read(bias + (i - quotient(i, d) * d)) : 0.0f);
    return Two{sum, rest ? read(rest + i) : 0.0f};
  };
  each(n, get, [=](long long i, Two v) { write(y + i, value(activation, v.x) + v.g); });
}

template <typename T> __device__ void backward(const T *x, const T *dy, T *dx, long long n, int activation) {
  const auto get = [=](long long i) { return Two{read(x + i), read(dy + i)}; };
  each(n, get, [=](long long i, Two v) { write(dx + i, v.g * slope(activation, v.x)); });
}

// Sums of(i, weight) over a part of the rows, for each column with the weight of the column.
template <typename T, typename Of>
__device__ void sum_columns(const T *weights, float *parts, long long rows, int d, Of of) {
  __shared__ float sums[LINES][COLUMNS];
  const int column = blockIdx.x * COLUMNS + threadIdx.x, line = threadIdx.y;
  // A grid has at most 65,535 parts.
  const long long per_part = max((long long)ROWS, (rows + gridDim.y - 1) / gridDim.y);
  const long long first = blockIdx.y * per_part, last = min(rows, first + per_part);
  const float weight = column < d ? read(weights + column) : 0.0f;
  float sum = 0.0f;
  for (long long row = first + line; column < d && row < last; row += LINES) sum += of(row * d + column, weight);
  sums[line][threadIdx.x] = sum;
  __syncthreads();
  if (line > 0 || column >= d) return;
  float all = 0.0f;
  for (int other = 0; other < LINES; other++) all += sums[other][threadIdx.x];
  parts[blockIdx.y * (long long)d + column] = all;
}

// The gradients of a part of the rows of x, and their column sums.
template <typename T>
__device__ void bias_parts(const T *x, const T *bias, const T *dy, T *dx, float *parts, long long rows, int d,
                           int activation) {
  sum_columns(bias, parts, rows, d, [=](long long i, float b) {
    float g = read(dy + i);
    if (dx) {
      g *= slope(activation, read(x + i) + b);
      write(dx + i, g);
    }
    return g;
  });
}

// Backward of skip: dz = dy d, and the sums of dy z.
template <typename T>
__device__ void skip_parts(const T *z, const T *weights, const T *dy, T *dz, float *parts, long long rows, int d) {
  sum_columns(weights, parts, rows, d, [=](long long i, float weight) {
    const float g = read(dy + i);
    write(dz + i, g * weight);
    return g * read(z + i);
  });
}

template <typename T> __device__ void skip(const T *x, const T *z, const T *weights, T *y, long long n, int d) {
  const auto get = [=](long long i) { return Three{read(x + i), read(weights + (i - quotient(i, d) * d)), read(z + i)}; };
  each(n, get, [=](long long i, Three v) { write(y + i, v.x + v.g * v.dy); });
}

// Indices in x and in the gate of value i of a product.
struct Same {
  __device__ long long x(long long i) const { return i; }
  __device__ long long gate(long long i) const { return i; }
};

struct Halves {
  int n;
  __device__ long long x(long long i) const { return i + (quotient(i, n) + 1) * n; }
  __device__ long long gate(long long i) const { return i + quotient(i, n) * n; }
};

template <typename T, typename At>
__device__ void gated(const T *x, const T *gate, T *y, At at, long long n, int activation) {
  const auto get = [=](long long i) { return Two{read(x + at.x(i)), read(gate + at.gate(i))}; };
  each(n, get, [=](long long i, Two v) { write(y + i, v.x * value(activation, v.g)); });
}

template <typename T, typename At>
__device__ void gated_backward(const T *x, const T *gate, const T *dy, T *dx, T *dgate, At at, long long n,
                               int activation) {
  const auto get = [=](long long i) { return Three{read(x + at.x(i)), read(gate + at.gate(i)), read(dy + i)}; };
  each(n, get, [=](long long i, Three v) {
    write(dx + at.x(i), v.dy * value(activation, v.g));
    write(dgate + at.gate(i), v.dy * v.x * slope(activation, v.g));
  });
}

} // namespace

// A thread has EACH values. n counts all values of the rows of d; for a glu it counts the outputs. The kernel of bias
// sums, parts [gridDim.y, d], needs blocks of COLUMNS x LINES threads. If dx is not wanted it is the same pointer as
// dy.
#define ACTIVATION(T, suffix)                                                                                          \
  extern "C" __global__ void activation_##suffix##_forward(const T *__restrict__ x, const T *__restrict__ bias,        \
                                                           const T *__restrict__ rest, T *__restrict__ y, long long n, \
                                                           int d, int activation) {                                    \
    forward<T>(x, bias, rest, y, n, d, activation);                                                                    \
  }                                                                                                                    \
  extern "C" __global__ void activation_##suffix##_backward(const T *__restrict__ x, const T *__restrict__ dy,         \
                                                            T *__restrict__ dx, long long n, int activation) {         \
    backward<T>(x, dy, dx, n, activation);                                                                             \
  }                                                                                                                    \
  extern "C" __global__ void activation_##suffix##_bias_parts(                                                         \
      const T *__restrict__ x, const T *__restrict__ bias, const T *__restrict__ dy, T *__restrict__ dx,               \
      float *__restrict__ parts, long long rows, int d, int activation) {                                              \
    bias_parts<T>(x, bias, dy, dx, parts, rows, d, activation);                                                        \
  }                                                                                                                    \
  extern "C" __global__ void gated_##suffix##_forward(const T *__restrict__ x, const T *__restrict__ gate,             \
                                                      T *__restrict__ y, long long n, int activation) {                \
    gated<T>(x, gate, y, Same{}, n, activation);                                                                       \
  }                                                                                                                    \
  extern "C" __global__ void gated_##suffix##_backward(                                                                \
      const T *__restrict__ x, const T *__restrict__ gate, const T *__restrict__ dy, T *__restrict__ dx,               \
      T *__restrict__ dgate, long long n, int activation) {                                                            \
    gated_backward<T>(x, gate, dy, dx, dgate, Same{}, n, activation);                                                  \
  }                                                                                                                    \
  extern "C" __global__ void glu_##suffix##_forward(const T *__restrict__ x, T *__restrict__ y, long long n, int d,    \
                                                    int activation) {                                                  \
    gated<T>(x, x, y, Halves{d}, n, activation);                                                                       \
  }                                                                                                                    \
  extern "C" __global__ void glu_##suffix##_backward(const T *__restrict__ x, const T *__restrict__ dy,                \
                                                     T *__restrict__ dx, long long n, int d, int activation) {         \
    gated_backward<T>(x, x, dy, dx, dx, Halves{d}, n, activation);                                                     \
  }                                                                                                                    \
  extern "C" __global__ void skip_##suffix##_forward(const T *__restrict__ x, const T *__restrict__ z,                 \
                                                     const T *__restrict__ weights, T *__restrict__ y, long long n,    \
                                                     int d) {                                                          \
    skip<T>(x, z, weights, y, n, d);                                                                                   \
  }                                                                                                                    \
  extern "C" __global__ void skip_##suffix##_parts(const T *__restrict__ z, const T *__restrict__ weights,             \
                                                   const T *__restrict__ dy, T *__restrict__ dz,                       \
                                                   float *__restrict__ parts, long long rows, int d) {                 \
    skip_parts<T>(z, weights, dy, dz, parts, rows, d);                                                                 \
  }

ACTIVATION(float, f32)
ACTIVATION(__nv_bfloat16, bf16)
