// AdamW (Loshchilov & Hutter 2019, algorithm 2) and Adam (Kingma & Ba 2015, algorithm 1) of all parameters of a policy
// at once, with the clip of their gradients' norm (Pascanu et al. 2013, algorithm 1) and the average of the weights.
//
//   adamw_squares   sums of squares of the gradients, one for each chunk
//   adamw_begin     norm of the gradients, and the constants of this update from norm and settings
//   adamw_update    parameters, moments, averages and bf16 copies of parameters
//
// All that changes between updates is stored on the card: three launches, recorded once, run one update each time they
// are replayed. Gradients whose norm is not finite change nothing and count as refused.
//
// A parameter is cut into chunks, one for each block. All values are f32, except gradients, which may be bf16, and sums
// and constants, which are f64. The order of a sum depends only on sizes.

#include "numbers.cuh"

// `count` elements of a parameter, starting at `index * CHUNK`.
struct Chunk {
  int parameter, index, count, flags;
};

// Settings from the host. Gradients are sums: the mean gradient is the sum divided by `learned`.
struct Settings {
  double learning_rate, learned, max_norm, beta1, beta2, eps, decoupled_decay, coupled_decay, ema_decay;
};

// State that is kept between updates. The norm is that of the mean gradient before the clip.
struct State {
  double updates, norm, refused;
};

// Constants of one update, the same for every element.
struct Constants {
  float factor, keep, coupled, blend, beta1, fresh1, beta2, fresh2, rate, root, eps, go;
};

namespace {

constexpr int THREADS = 256;
constexpr int WARP = 32;
constexpr int CHUNK = 4096;
// Elements that a thread loads at the same time, to overlap their latency.
constexpr int EACH = 4;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Flags of a chunk.
constexpr int DECAYS = 1;
constexpr int BF16_GRADIENT = 2;

// The sum over a block; every thread gets the same result. A kernel may call this function once.
__device__ inline double sum_of_block(double v) {
  __shared__ double sums[THREADS / WARP];
  for (int apart = WARP / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = v;
  __syncthreads();
  double sum = 0.0;
  for (int warp = 0; warp < THREADS / WARP; warp++) sum += sums[warp];
  return sum;
}

// Sum of squares of this thread's elements of a chunk, in f64: squares of f32 overflow f32.
template <typename G> __device__ double squares(const G *g, int count) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const double v = read(g + i);
    sum += v * v;
  }
  return sum;
}

// A power by the same multiplications as on the CPU.
__device__ inline double power(double base, int exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

// Constants of update `t`, counted from 1.
__device__ inline Constants constants_of(const Settings &s, int t, double norm) {
  const double kept = norm > s.max_norm ? s.max_norm / norm : 1.0;
  Constants c;
  c.factor = float(kept / s.learned);
  c.keep = float(1.0 - s.learning_rate * s.decoupled_decay);
  c.coupled = float(s.coupled_decay);
  c.blend = float((1.0 - s.ema_decay) / (1.0 - power(s.ema_decay, t)));
  c.beta1 = float(s.beta1);
  c.fresh1 = float(1.0 - s.beta1);
  c.beta2 = float(s.beta2);
  c.fresh2 = float(1.0 - s.beta2);
  c.rate = float(s.learning_rate / (1.0 - power(s.beta1, t)));
  c.root = float(1.0 / sqrt(1.0 - power(s.beta2, t)));
  c.eps = float(s.eps);
  c.go = 1.0f;
  return c;
}

// Pointers to the first element of a chunk; `average` and `copy` are null if they are not kept.
template <typename G> struct Span {
  float *p;
  const G *g;
  float *m, *v, *average;
  __nv_bfloat16 *copy;
};

template <typename G> __device__ void update(Span<G> of, int count, float keep, float coupled, const Constants &c) {
  for (int first = threadIdx.x; first < count; first += EACH * THREADS) {
    float p[EACH], g[EACH], m[EACH], v[EACH], average[EACH];
    for (int k = 0; k < EACH; k++) {
      const int i = first + k * THREADS;
      if (i >= count) continue;
      p[k] = of.p[i];
      g[k] = read(of.g + i);
      m[k] = of.m[i];
      v[k] = of.v[i];
      if (of.average) average[k] = of.average[i];
    }
    for (int k = 0; k < EACH; k++) {
      const int i = first + k * THREADS;
      if (i >= count) continue;
      g[k] = g[k] * c.factor + coupled * p[k];
      m[k] = c.beta1 * m[k] + c.fresh1 * g[k];
      v[k] = c.beta2 * v[k] + c.fresh2 * (g[k] * g[k]);
      p[k] = p[k] * keep - c.rate * m[k] / (sqrtf(v[k]) * c.root + c.eps);
      of.p[i] = p[k];
      of.m[i] = m[k];
      of.v[i] = v[k];
      if (of.average) of.average[i] = average[k] + c.blend * (p[k] - average[k]);
      if (of.copy) write(of.copy + i, p[k]);
    }
  }
}

} // namespace

// parts [chunks]. A block of THREADS for each chunk.
extern "C" __global__ void adamw_squares(const void *const *__restrict__ gradients, const Chunk *__restrict__ chunks,
                                         double *__restrict__ parts) {
  const Chunk chunk = chunks[blockIdx.x];
  const void *g = gradients[chunk.parameter];
  const long long first = chunk.index * (long long)CHUNK;
  const double sum = chunk.flags & BF16_GRADIENT ? squares((const __nv_bfloat16 *)g + first, chunk.count)
                                                 : squares((const float *)g + first, chunk.count);
  const double all = sum_of_block(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

// One block of THREADS.
extern "C" __global__ void adamw_begin(const double *__restrict__ parts, int count,
                                       const Settings *__restrict__ settings, State *__restrict__ state,
                                       Constants *__restrict__ constants) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < count; i += THREADS) sum += parts[i];
  const double all = sum_of_block(sum);
  if (threadIdx.x > 0) return;

  const double norm = sqrt(all) / settings->learned;
  state->norm = norm;
  // The negated comparison also catches NaN.
  if (!(norm < INFINITY)) {
    state->refused += 1.0;
    constants->go = 0.0f;
    return;
  }
  state->updates += 1.0;
  *constants = constants_of(*settings, int(min(state->updates, 2147483647.0)), norm);
}

// A block of THREADS for each chunk. Arrays have a pointer for each parameter; pointers to averages and copies may be
// null.
extern "C" __global__ void adamw_update(float *const *__restrict__ parameters, const void *const *__restrict__ gradients,
                                        float *const *__restrict__ means, float *const *__restrict__ squares,
                                        float *const *__restrict__ averages, __nv_bfloat16 *const *__restrict__ copies,
                                        const Chunk *__restrict__ chunks, const Constants *__restrict__ constants) {
  const Constants c = *constants;
  if (c.go == 0.0f) return;
  const Chunk chunk = chunks[blockIdx.x];
  const int of = chunk.parameter;
  const long long first = chunk.index * (long long)CHUNK;
  const bool decays = chunk.flags & DECAYS;
  const float keep = decays ? c.keep : 1.0f, coupled = decays ? c.coupled : 0.0f;
  float *average = averages[of] ? averages[of] + first : nullptr;
  __nv_bfloat16 *copy = copies[of] ? copies[of] + first : nullptr;
  float *p = parameters[of] + first, *m = means[of] + first, *v = squares[of] + first;

  if (chunk.flags & BF16_GRADIENT) {
    const __nv_bfloat16 *g = (const __nv_bfloat16 *)gradients[of] + first;
    update(Span<__nv_bfloat16>{p, g, m, v, average, copy}, chunk.count, keep, coupled, c);
  } else {
    const float *g = (const float *)gradients[of] + first;
    update(Span<float>{p, g, m, v, average, copy}, chunk.count, keep, coupled, c);
  }
}
