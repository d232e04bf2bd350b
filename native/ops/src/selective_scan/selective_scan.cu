// The selective scan S6 (Gu & Dao 2023, eq. 2a and 2b with the selection of alg. 2), channel by channel:
//
//   h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t        y_t = (C_t h_t + D u_t) silu(z_t)
//
// u, dt, z, y [b, t, c] and B, C [b, t, n] are of type T; a [c, n], dt_bias, d [c], states [b, c, n] and all arithmetic
// are f32. dt_bias, d, z and lengths may be null. With `steady` one dt [c], f32, applies to all frames; with `softplus`
// the step is the softplus of dt; with `log` A is -exp(a). Frames of a row from its length on do not exist: y is 0
// there, they have no gradient, and the last state is that after the last frame. If `lengths` is null, all frames
// exist.
//
// A block has THREADS / LANES channels (y of the grid) of a row (x). LANES threads have 8 numbers each of a channel's
// state, in registers, so a kernel has states of up to 8 * LANES numbers. Frames are processed by chunks, whose inputs
// lie in shared memory. The forward pass saves the states before each chunk, in an order of its own, [b, chunks,
// gridDim.y, STATES, THREADS]; the backward pass recomputes those in between. Sums have an order that depends on sizes
// alone.

#include "numbers.cuh"

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int THREADS = 64, WARPS = THREADS / WARP;
// Numbers of a state in a thread.
constexpr int STATES = 8;
// Frames of a chunk.
constexpr int FRAMES = 8;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// 2^x in one instruction. expf and __expf have four more, for results below 2^-126, which are 0 here.
__device__ inline float exp2_of(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

template <typename T> struct Inputs {
  const T *u;
  const void *dt;
  const float *dt_bias, *a;
  const T *b, *c;
  const float *d;
  const T *z;
  const int *lengths;
  int batch, time, channels, n, steady, softplus, log;
};

// The channel whose numbers a thread loads, in every LANESth frame of a chunk from its own on.
template <int LANES> struct Carrier {
  static constexpr int CHANNELS = THREADS / LANES, EACH = FRAMES / LANES;
  static_assert(FRAMES % LANES == 0, "all threads bring as many frames");

  int own, frame, channel;
  bool there;

  __device__ explicit Carrier(int channels) {
    own = threadIdx.x % CHANNELS;
    frame = threadIdx.x / CHANNELS;
    channel = blockIdx.y * CHANNELS + own;
    there = channel < channels;
  }

  // Loads numbers of x [b, t, c] in a chunk of `count` frames; `first` is the index of its first frame among those of
  // all rows. Missing numbers are 0. The loads overlap.
  template <typename T> __device__ void bring(const T *x, int channels, long long first, int count,
                                              float (&to)[EACH]) const {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int k = frame + LANES * i;
      to[i] = x && there && k < count ? read(x + (first + k) * channels + channel) : 0.0f;
    }
  }
};

// The inputs of a chunk that a thread loads, which may overlap the computation of the previous chunk.
template <int LANES> struct Brought {
  static constexpr int WIDE = STATES * LANES, EACH = Carrier<LANES>::EACH, ROWS = FRAMES * WIDE / THREADS;
  float b[ROWS], c[ROWS], u[EACH], dt[EACH];

  template <typename T>
  __device__ void bring(const Inputs<T> &in, const Carrier<LANES> &carrier, long long first, int count) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const int at = threadIdx.x + THREADS * i, k = at / WIDE, j = at % WIDE;
      const bool there = k < count && j < in.n;
      b[i] = there ? read(in.b + (first + k) * in.n + j) : 0.0f;
      c[i] = there ? read(in.c + (first + k) * in.n + j) : 0.0f;
    }
    carrier.bring(in.u, in.channels, first, count, u);
    if (!in.steady) carrier.bring(static_cast<const T *>(in.dt), in.channels, first, count, dt);
  }
};

// The frames of a chunk, for the channels of a block. B and C are 0 past the numbers of the state.
template <int LANES> struct Chunk {
  static constexpr int CHANNELS = THREADS / LANES, WIDE = STATES * LANES;

  alignas(16) float b[FRAMES][WIDE];
  alignas(16) float c[FRAMES][WIDE];
  float u[FRAMES][CHANNELS], dt[FRAMES][CHANNELS];
  // C h of each frame.
  float out[FRAMES][CHANNELS];

  // `bias` is that of the carrier's channel, or its steady dt.
  template <typename T>
  __device__ void lay(const Inputs<T> &in, const Carrier<LANES> &carrier, const Brought<LANES> &brought, float bias) {
#pragma unroll
    for (int i = 0; i < Brought<LANES>::ROWS; i++) {
      const int at = threadIdx.x + THREADS * i;
      b[at / WIDE][at % WIDE] = brought.b[i];
      c[at / WIDE][at % WIDE] = brought.c[i];
    }
#pragma unroll
    for (int i = 0; i < Brought<LANES>::EACH; i++) {
      const int k = carrier.frame + LANES * i;
      u[k][carrier.own] = brought.u[i];
      const float x = in.steady ? bias : brought.dt[i] + bias;
      dt[k][carrier.own] = !carrier.there ? 0.0f : in.softplus ? softplus(x) : x;
    }
  }
};

// The bias of a channel's dt, or dt itself if it is steady.
template <typename T> __device__ float bias_of(const Inputs<T> &in, int channel) {
  if (channel >= in.channels) return 0.0f;
  return (in.steady ? static_cast<const float *>(in.dt)[channel] : 0.0f) + (in.dt_bias ? in.dt_bias[channel] : 0.0f);
}

// The position of a thread.
template <int LANES> struct Place {
  // The channel in the block, the thread's part of its state, the channel in the row, and the first number of the part.
  int own, part, channel, first;

  __device__ Place() {
    own = threadIdx.x / LANES;
    part = threadIdx.x % LANES;
    channel = blockIdx.y * Chunk<LANES>::CHANNELS + own;
    first = part * STATES;
  }

  template <typename T> __device__ bool there(const Inputs<T> &in, int i) const {
    return channel < in.channels && first + i < in.n;
  }

  template <typename T> __device__ long long index(const Inputs<T> &in, int i) const {
    return channel * (long long)in.n + first + i;
  }

  // A times log2(e), so that decays are powers of 2; 0 past the numbers of the state.
  template <typename T> __device__ void rates(const Inputs<T> &in, float (&a)[STATES]) const {
    for (int i = 0; i < STATES; i++) {
      a[i] = there(in, i) ? in.a[index(in, i)] : 0.0f;
      if (in.log && there(in, i)) a[i] = -expf(a[i]);
      a[i] *= LOG2_E;
    }
  }

  // Reads numbers of states [b, c, n] of this row, 0 past the end.
  template <typename T> __device__ void read_states(const Inputs<T> &in, const float *from, float (&h)[STATES]) const {
    const long long row = blockIdx.x * (long long)in.channels * in.n;
    for (int i = 0; i < STATES; i++) h[i] = from && there(in, i) ? from[row + index(in, i)] : 0.0f;
  }

  template <typename T> __device__ void write_states(const Inputs<T> &in, float *to, const float (&h)[STATES]) const {
    const long long row = blockIdx.x * (long long)in.channels * in.n;
    for (int i = 0; i < STATES; i++)
      if (there(in, i)) to[row + index(in, i)] = h[i];
  }
};

// The index of the states saved before a chunk: those of this thread are THREADS numbers apart.
__device__ inline long long kept_at(int time, int chunk) {
  const long long chunks = (time + FRAMES - 1) / FRAMES;
  return ((blockIdx.x * chunks + chunk) * gridDim.y + blockIdx.y) * (STATES * THREADS) + threadIdx.x;
}

// The sum over the parts of a state, in each thread of it.
template <int LANES> __device__ inline float over_parts(float v) {
  for (int apart = LANES / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  return v;
}

// Sums over the channels of a warp. Of its 8 numbers each thread gets the sums of LEFT, from the returned one on.
// Threads whose lanes differ only in SAME get the same sums.
template <int LANES> struct OverChannels {
  static constexpr int LEFT = LANES < 4 ? 1 : STATES * LANES / WARP;
  static constexpr int SAME = 3 & ~(LANES - 1);

  __device__ static int sum(float (&v)[STATES]) {
    int left = STATES, first = 0;
#pragma unroll
    for (int apart = WARP / 2; apart >= LANES; apart /= 2) {
      if (left == 1) {
        v[0] += __shfl_xor_sync(ALL_LANES, v[0], apart);
        continue;
      }
      left /= 2;
      const bool upper = threadIdx.x & apart;
      first += upper ? left : 0;
#pragma unroll
      for (int i = 0; i < STATES / 2; i++) {
        if (i >= left) break;
        const float keep = upper ? v[i + left] : v[i], give = upper ? v[i] : v[i + left];
        v[i] = keep + __shfl_xor_sync(ALL_LANES, give, apart);
      }
    }
    return first;
  }
};

// `kept` is null if no backward pass follows.
template <int LANES, typename T>
__device__ void forward(const Inputs<T> &in, const float *h0, T *y, float *last, float *kept) {
  __shared__ Chunk<LANES> chunk;
  const Place<LANES> place;
  const Carrier<LANES> carrier(in.channels);
  const long long row = blockIdx.x, start = row * in.time;
  const int present = in.lengths ? in.lengths[row] : in.time;
  const float bias = bias_of(in, carrier.channel), skip = in.d && carrier.there ? in.d[carrier.channel] : 0.0f;

  Brought<LANES> next;
  next.bring(in, carrier, start, min(FRAMES, present));
  float a[STATES], h[STATES];
  place.rates(in, a);
  place.read_states(in, h0, h);
#pragma unroll 1
  for (int first = 0; first < present; first += FRAMES) {
    const int count = min(FRAMES, present - first);
    if (kept)
      for (int i = 0; i < STATES; i++) kept[kept_at(in.time, first / FRAMES) + i * THREADS] = h[i];
    __syncthreads();
    chunk.lay(in, carrier, next, bias);
    __syncthreads();
    float z[Carrier<LANES>::EACH];
    carrier.bring(in.z, in.channels, start + first, count, z);
    next.bring(in, carrier, start + first + FRAMES, min(FRAMES, present - first - FRAMES));
    for (int k = 0; k < count; k++) {
      const float dt = chunk.dt[k][place.own], dtu = dt * chunk.u[k][place.own];
      float sum = 0.0f;
      for (int i = 0; i < STATES; i++) {
        h[i] = exp2_of(dt * a[i]) * h[i] + dtu * chunk.b[k][place.first + i];
        sum += h[i] * chunk.c[k][place.first + i];
      }
      sum = over_parts<LANES>(sum);
      if (place.part == 0) chunk.out[k][place.own] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Carrier<LANES>::EACH; i++) {
      const int k = carrier.frame + LANES * i;
      if (k >= count || !carrier.there) continue;
      float v = chunk.out[k][carrier.own] + skip * chunk.u[k][carrier.own];
      if (in.z) v *= z[i] * sigmoid(z[i]);
      write(y + (start + first + k) * in.channels + carrier.channel, v);
    }
  }
  if (place.part == 0 && place.channel < in.channels)
#pragma unroll 1
    for (int t = present; t < in.time; t++) write(y + (row * in.time + t) * in.channels + place.channel, 0.0f);
  place.write_states(in, last, h);
}

// Gradients from dy and d_last, which is null if the last state has none. du, d_dt, dz have the layout of u, dt and z;
// d_dt is null if dt is steady. These are to be summed over their first dimension:
//   d_bc  [gridDim.y, 2, b, t, n], of B and C
//   parts [b, (n + 2) * c]: of a [c, n], of dt_bias or the steady dt [c], and of D [c]
template <int LANES, typename T>
__device__ void backward(const Inputs<T> &in, const float *kept, const T *dy, const float *d_last, T *du, T *d_dt,
                         T *dz, float *dh0, float *d_bc, float *parts) {
  using Sums = OverChannels<LANES>;
  constexpr int CHANNELS = Chunk<LANES>::CHANNELS, WIDE = Chunk<LANES>::WIDE;
  __shared__ Chunk<LANES> chunk;
  // The gradients of C h + D u, of dt * u through the addend, and of dt through the decays.
  __shared__ float d_out[FRAMES][CHANNELS], to_input[FRAMES][CHANNELS], to_decay[FRAMES][CHANNELS];
  // States before each frame.
  __shared__ float states[FRAMES][STATES][THREADS];
  __shared__ float of_b[FRAMES][WARPS][WIDE], of_c[FRAMES][WARPS][WIDE];
  __shared__ float ends[2][THREADS];
  const Place<LANES> place;
  const Carrier<LANES> carrier(in.channels);
  const long long row = blockIdx.x;
  const int present = in.lengths ? in.lengths[row] : in.time, thread = threadIdx.x, warp = thread / WARP;
  const long long all = (long long)in.batch * in.time * in.n;
  d_bc += blockIdx.y * 2 * all;

  // Work for a whole channel is done by the thread that carries it.
  const int mine = carrier.channel;
  const bool has_mine = carrier.there;
  const float bias = bias_of(in, mine), skip = in.d && has_mine ? in.d[mine] : 0.0f;

#pragma unroll 1
  for (int t = present + thread / CHANNELS; t < in.time && has_mine; t += LANES) {
    const long long index = (row * in.time + t) * in.channels + mine;
    write(du + index, 0.0f);
    if (d_dt) write(d_dt + index, 0.0f);
    if (dz) write(dz + index, 0.0f);
  }
#pragma unroll 1
  for (int at = present * in.n + thread; at < in.time * in.n; at += THREADS) {
    d_bc[row * in.time * in.n + at] = 0.0f;
    d_bc[all + row * in.time * in.n + at] = 0.0f;
  }

  float a[STATES], dh[STATES], da[STATES], dd = 0.0f, d_bias = 0.0f;
  place.rates(in, a);
  place.read_states(in, d_last, dh);
  for (int i = 0; i < STATES; i++) da[i] = 0.0f;

  Brought<LANES> next;
  int first = (present - 1) / FRAMES * FRAMES;
  if (present > 0) next.bring(in, carrier, row * in.time + first, present - first);
#pragma unroll 1
  for (; present > 0 && first >= 0; first -= FRAMES) {
    const int count = min(FRAMES, present - first);
    const long long frame = row * in.time + first;
    float d_y[Carrier<LANES>::EACH], z[Carrier<LANES>::EACH];
    carrier.bring(dy, in.channels, frame, count, d_y);
    carrier.bring(in.z, in.channels, frame, count, z);
    __syncthreads();
    chunk.lay(in, carrier, next, bias);
#pragma unroll
    for (int i = 0; i < Carrier<LANES>::EACH; i++)
      d_out[carrier.frame + LANES * i][carrier.own] = in.z ? d_y[i] * (z[i] * sigmoid(z[i])) : d_y[i];
    __syncthreads();
    if (first > 0) next.bring(in, carrier, frame - FRAMES, FRAMES);

    float h[STATES];
    for (int i = 0; i < STATES; i++) h[i] = kept[kept_at(in.time, first / FRAMES) + i * THREADS];
    for (int k = 0; k < count; k++) {
      const float dt = chunk.dt[k][place.own], dtu = dt * chunk.u[k][place.own];
      float sum = 0.0f;
      for (int i = 0; i < STATES; i++) {
        states[k][i][thread] = h[i];
        h[i] = exp2_of(dt * a[i]) * h[i] + dtu * chunk.b[k][place.first + i];
        sum += h[i] * chunk.c[k][place.first + i];
      }
      sum = over_parts<LANES>(sum);
      if (place.part == 0) chunk.out[k][place.own] = sum;
    }

#pragma unroll 1
    for (int k = count - 1; k >= 0; k--) {
      const float dt = chunk.dt[k][place.own], dtu = dt * chunk.u[k][place.own], g_out = d_out[k][place.own];
      float input = 0.0f, decays = 0.0f, db[STATES], dc[STATES];
      for (int i = 0; i < STATES; i++) {
        const float before = states[k][i][thread], decay = exp2_of(dt * a[i]), b = chunk.b[k][place.first + i];
        const float g = chunk.c[k][place.first + i] * g_out + dh[i];
        dc[i] = g_out * (decay * before + dtu * b);
        db[i] = g * dtu;
        input += g * b;
        dh[i] = g * decay;
        const float moved = dh[i] * before;
        decays += moved * a[i];
        da[i] += moved * dt;
      }
      input = over_parts<LANES>(input);
      decays = LN_2 * over_parts<LANES>(decays);
      if (place.part == 0) {
        to_input[k][place.own] = input;
        to_decay[k][place.own] = decays;
      }
      const int from = place.first + Sums::sum(db);
      Sums::sum(dc);
      if ((thread & Sums::SAME) == 0)
        for (int i = 0; i < Sums::LEFT; i++) {
          of_b[k][warp][from + i] = db[i];
          of_c[k][warp][from + i] = dc[i];
        }
    }
    __syncthreads();

#pragma unroll 1
    for (int at = thread; at < count * WIDE; at += THREADS) {
      const int k = at / WIDE, j = at % WIDE;
      if (j >= in.n) continue;
      float db = 0.0f, dc = 0.0f;
      for (int w = 0; w < WARPS; w++) {
        db += of_b[k][w][j];
        dc += of_c[k][w][j];
      }
      d_bc[(frame + k) * in.n + j] = db;
      d_bc[all + (frame + k) * in.n + j] = dc;
    }
#pragma unroll
    for (int i = 0; i < Carrier<LANES>::EACH; i++) {
      const int k = carrier.frame + LANES * i, own = carrier.own;
      if (k >= count || !has_mine) continue;
      const long long index = (frame + k) * in.channels + mine;
      const float u = chunk.u[k][own], dt = chunk.dt[k][own];
      write(du + index, dt * to_input[k][own] + skip * d_out[k][own]);
      dd += d_out[k][own] * u;
      float g = to_decay[k][own] + u * to_input[k][own];
      // The slope of ln(1 + e^x), as a function of its value y, is 1 - e^-y.
      if (in.softplus) g *= -expm1f(-dt);
      d_bias += g;
      if (d_dt) write(d_dt + index, g);
      if (dz) {
        const float s = sigmoid(z[i]);
        write(dz + index, (chunk.out[k][own] + skip * u) * d_y[i] * s * (1.0f + z[i] * (1.0f - s)));
      }
    }
  }
  place.write_states(in, dh0, dh);

  parts += row * (in.n + 2LL) * in.channels;
  for (int i = 0; i < STATES; i++)
    if (place.there(in, i)) parts[place.index(in, i)] = in.log ? da[i] * a[i] * LN_2 : da[i];
  ends[0][thread] = d_bias;
  ends[1][thread] = dd;
  __syncthreads();
  if (thread < CHANNELS && has_mine)
    for (int which = 0; which < 2; which++) {
      float sum = 0.0f;
      for (int i = 0; i < LANES; i++) sum += ends[which][thread + i * CHANNELS];
      parts[(in.n + (long long)which) * in.channels + mine] = sum;
    }
}

} // namespace

// BLOCKS: as many blocks of the backward kernel as shared memory holds at once; registers are limited to suit.
#define SELECTIVE_SCAN(T, name, LANES, size, BLOCKS)                                                                  \
  extern "C" __global__ void selective_scan_##name##_forward_##size(                                                  \
      const T *__restrict__ u, const void *__restrict__ dt, const float *__restrict__ dt_bias,                        \
      const float *__restrict__ a, const T *__restrict__ b, const T *__restrict__ c, const float *__restrict__ d,     \
      const T *__restrict__ z, const int *__restrict__ lengths, const float *__restrict__ h0, T *__restrict__ y,      \
      float *__restrict__ last, float *__restrict__ kept, int batch, int time, int channels, int n, int steady,       \
      int softplus, int log) {                                                                                        \
    forward<LANES>(                                                                                                   \
        Inputs<T>{u, dt, dt_bias, a, b, c, d, z, lengths, batch, time, channels, n, steady, softplus, log}, h0, y,    \
        last, kept);                                                                                                  \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) selective_scan_##name##_backward_##size(               \
      const T *__restrict__ u, const void *__restrict__ dt, const float *__restrict__ dt_bias,                        \
      const float *__restrict__ a, const T *__restrict__ b, const T *__restrict__ c, const float *__restrict__ d,     \
      const T *__restrict__ z, const int *__restrict__ lengths, const float *__restrict__ kept,                       \
      const T *__restrict__ dy, const float *__restrict__ d_last, T *__restrict__ du, T *__restrict__ d_dt,           \
      T *__restrict__ dz, float *__restrict__ dh0, float *__restrict__ d_bc, float *__restrict__ parts, int batch,    \
      int time, int channels, int n, int steady, int softplus, int log) {                                             \
    backward<LANES>(                                                                                                  \
        Inputs<T>{u, dt, dt_bias, a, b, c, d, z, lengths, batch, time, channels, n, steady, softplus, log}, kept, dy, \
        d_last, du, d_dt, dz, dh0, d_bc, parts);                                                                      \
  }

#define SELECTIVE_SCANS(T, name)                                                                                      \
  SELECTIVE_SCAN(T, name, 2, 16, 8)                                                                                     \
  SELECTIVE_SCAN(T, name, 4, 32, 6)                                                                                      \
  SELECTIVE_SCAN(T, name, 8, 64, 6)

SELECTIVE_SCANS(float, f32)
SELECTIVE_SCANS(__nv_bfloat16, bf16)
