// Recurrences whose state is a matrix, of each head of each row (Dao & Gu 2024; Yang et al. 2023; Beck et al. 2024):
//
//   S_t = S_{t-1} diag(e^decay_t) + x_t k_t^T, x_t = scale factor_t v_t        y_t = S_t q_t
//
// S is [wide, key]. q, k, v lie in the streams [b, t, width] from columns of their own on; v has `value` numbers for
// each head. If wide is value + 1, the last number of each v is the 1 of a normaliser. `shared` adjacent heads have the
// same q and k. Decays and factors are the gates, by `kind`: 0 one decay [heads] for all frames, 1 for each head [b, t,
// heads], 2 with factors [b, t, 2 heads], 3 for each number of a key [b, t, heads * key]. Streams, gates and y [b, t,
// heads, wide] are of type T; decays of kind 0, states [b, heads, wide, key] and all arithmetic are f32. Frames of a
// row from its length on do not exist: y is 0 there, they have no gradient, and the last state is that after the last
// frame. If `lengths` is null, all frames exist.
//
// If keys are rotated (Sun et al. 2023, eq. 5 and 6), S is rotated as well after each frame, so that it has the
// rotation of the next query. turns [FRAMES + 1, 2, key / 2] holds the cosines and sines of 0..FRAMES frames for the
// pairs (i, i + key / 2) of a key; it is null without rotation. Within a chunk queries and keys are rotated, after it
// the state; the two numbers of a pair lie side by side.
//
// A block computes VALUES rows of the state of a head (y of the grid: heads, and slices of each) of a row (x). It has a
// warp for each 16 keys, enough for at least `key`; a thread has 4 keys of 4 rows. Frames are processed by chunks,
// whose inputs lie in shared memory. The forward pass saves the states before each chunk, in an order of its own, [b,
// chunks, gridDim.y, 16, blockDim.x]; the backward pass recomputes those in between, a part of the chunk at a time in
// registers. Nothing is divided by a decay: the gradient of a decay is a product with S. Sums have an order that
// depends on sizes alone.

#include "numbers.cuh"

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Frames of a chunk, and of a part of it.
constexpr int FRAMES = 8, PART = 2;
// Rows of a state in a block.
constexpr int VALUES = 32;
// Keys of a warp.
constexpr int KEYS = 16;
// Rows and keys of a thread.
constexpr int TILE = 4;
// Threads of a warp across its keys; the others are across its rows.
constexpr int ACROSS = KEYS / TILE;

enum Kind { CONSTANT, HEAD, HEAD_AND_INPUT, KEY };

template <typename T> struct Inputs {
  const T *streams, *gates;
  const float *constant;
  const int *lengths;
  const float *turns;
  int batch, time, width, heads, shared, key, value, wide, q, k, v, kind;
  float scale;

  __device__ int present() const { return lengths ? lengths[blockIdx.x] : time; }
  __device__ int slices() const { return (wide + VALUES - 1) / VALUES; }
  __device__ int head() const { return blockIdx.y / slices(); }
  // The first row of this block.
  __device__ int first_row() const { return blockIdx.y % slices() * VALUES; }
  __device__ int gate_count() const { return kind == KEY ? heads * key : kind == HEAD_AND_INPUT ? 2 * heads : heads; }
  // The index of frame t among those of all rows.
  __device__ long long frame(int t) const { return blockIdx.x * (long long)time + t; }

  __device__ float log_decay(int t, int j) const {
    if (kind == CONSTANT) return constant[head()];
    return read(gates + frame(t) * gate_count() + (kind == KEY ? head() * key + j : head()));
  }

  __device__ float factor(int t) const {
    return kind == HEAD_AND_INPUT ? read(gates + frame(t) * gate_count() + heads + head()) : 1.0f;
  }

  // A number of v, by its row of the state.
  __device__ float value_of(int t, int row) const {
    return row < value ? read(streams + frame(t) * width + v + head() * value + row) : 1.0f;
  }

  // The number of a key at a place: with rotation, the two numbers of a pair lie side by side.
  __device__ int number(int place) const {
    return !turns ? place : place % 2 == 0 ? place / 2 : place / 2 + key / 2;
  }

  // A number of q or k of the head, from column `first` of the streams on, after f rotations.
  __device__ float key_of(int t, int first, int place, int f) const {
    const T *from = streams + frame(t) * width + first + head() / shared * key;
    const float own = read(from + number(place));
    return turns ? turned(own, read(from + number(place ^ 1)), place, f, 1.0f) : own;
  }

  // One number of a pair, from it and the other, after f rotations: forwards with `way` 1, backwards with -1.
  __device__ float turned(float own, float other, int place, int f, float way) const {
    const float *turn = turns + f * key + place / 2;
    return own * turn[0] + (place % 2 == 0 ? -way : way) * other * turn[key / 2];
  }
};

// The frames of a chunk. Frames, keys and rows that do not exist change no state.
template <int MOST_KEYS> struct Chunk {
  alignas(16) float q[FRAMES][MOST_KEYS], k[FRAMES][MOST_KEYS], fade[FRAMES][MOST_KEYS];
  alignas(16) float x[FRAMES][VALUES];

  // Reads `count` frames from `first` on.
  template <typename T> __device__ void read_frames(const Inputs<T> &in, int first, int count, int present) {
    const int keys = blockDim.x / WARP * KEYS;
#pragma unroll 1
    for (int at = threadIdx.x; at < count * keys; at += blockDim.x) {
      const int f = at / keys, j = at % keys, t = first + f;
      const bool there = t < present && j < in.key;
      q[f][j] = there ? in.key_of(t, in.q, j, f) : 0.0f;
      k[f][j] = there ? in.key_of(t, in.k, j, f) : 0.0f;
      fade[f][j] = there ? expf(in.log_decay(t, j)) : 1.0f;
    }
#pragma unroll 1
    for (int at = threadIdx.x; at < count * VALUES; at += blockDim.x) {
      const int f = at / VALUES, i = at % VALUES, t = first + f, row = in.first_row() + i;
      const bool there = t < present && row < in.wide;
      x[f][i] = there ? in.scale * in.factor(t) * in.value_of(t, row) : 0.0f;
    }
  }
};

// The position of a thread: its first row in the block, and its first key.
struct Place {
  int row, key;

  __device__ Place() {
    const int lane = threadIdx.x % WARP;
    row = lane / ACROSS * TILE;
    key = threadIdx.x / WARP * KEYS + lane % ACROSS * TILE;
  }
};

using Tile = float[TILE][TILE];

// Reads numbers of states [b, heads, wide, key], 0 where there are none.
template <typename T> __device__ void read_state(const Inputs<T> &in, const Place &place, const float *from, Tile &s) {
  const long long head = (blockIdx.x * (long long)in.heads + in.head()) * in.wide;
  for (int i = 0; i < TILE; i++)
    for (int j = 0; j < TILE; j++) {
      const int row = in.first_row() + place.row + i, key = place.key + j;
      s[i][j] = from && row < in.wide && key < in.key ? from[(head + row) * in.key + in.number(key)] : 0.0f;
    }
}

template <typename T>
__device__ void write_state(const Inputs<T> &in, const Place &place, float *to, const Tile &s) {
  const long long head = (blockIdx.x * (long long)in.heads + in.head()) * in.wide;
  for (int i = 0; i < TILE; i++)
    for (int j = 0; j < TILE; j++) {
      const int row = in.first_row() + place.row + i, key = place.key + j;
      if (row < in.wide && key < in.key) to[(head + row) * in.key + in.number(key)] = s[i][j];
    }
}

// Rotates a state, or its gradient, by f frames.
template <typename T> __device__ void turn(const Inputs<T> &in, const Place &place, int f, float way, Tile &s) {
  if (!in.turns) return;
  for (int j = 0; j < TILE; j += 2) {
    if (place.key + j >= in.key) return;
    for (int i = 0; i < TILE; i++) {
      const float a = s[i][j], b = s[i][j + 1];
      s[i][j] = in.turned(a, b, place.key + j, f, way);
      s[i][j + 1] = in.turned(b, a, place.key + j + 1, f, way);
    }
  }
}

// The index of the state saved before a chunk: numbers of this thread are blockDim.x apart.
__device__ inline long long kept_at(int time, int chunk) {
  const long long chunks = (time + FRAMES - 1) / FRAMES;
  return ((blockIdx.x * chunks + chunk) * gridDim.y + blockIdx.y) * (TILE * TILE * blockDim.x) + threadIdx.x;
}

// Advances the state by frame f of a chunk.
template <int MOST_KEYS>
__device__ inline void step(const Chunk<MOST_KEYS> &chunk, const Place &place, int f, Tile &s) {
  for (int j = 0; j < TILE; j++) {
    const float fade = chunk.fade[f][place.key + j], k = chunk.k[f][place.key + j];
    for (int i = 0; i < TILE; i++) s[i][j] = fade * s[i][j] + chunk.x[f][place.row + i] * k;
  }
}

// Sums 4 numbers each over the lanes whose places differ in `from`, `from / 2`, .. `to`. Each thread gets one of the
// sums, in v[0]; returns its index.
__device__ inline int sum_of_lanes(float (&v)[TILE], int from, int to) {
  int left = TILE, first = 0;
#pragma unroll
  for (int apart = from; apart >= to; apart /= 2) {
    if (left == 1) {
      v[0] += __shfl_xor_sync(ALL_LANES, v[0], apart);
      continue;
    }
    left /= 2;
    const bool upper = threadIdx.x & apart;
    first += upper ? left : 0;
#pragma unroll
    for (int i = 0; i < TILE / 2; i++) {
      if (i >= left) break;
      const float keep = upper ? v[i + left] : v[i], give = upper ? v[i] : v[i + left];
      v[i] = keep + __shfl_xor_sync(ALL_LANES, give, apart);
    }
  }
  return first;
}

// The sum over the warp's keys; the second function sums over its rows.
__device__ inline int sum_of_keys(float (&v)[TILE]) { return sum_of_lanes(v, ACROSS / 2, 1); }
__device__ inline int sum_of_rows(float (&v)[TILE]) { return sum_of_lanes(v, WARP / 2, ACROSS); }

// The sum over a warp, in every lane.
__device__ inline float sum_of_warp(float v) {
  for (int apart = WARP / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(ALL_LANES, v, apart);
  return v;
}

// `kept` is null if no backward pass follows.
template <int MOST_KEYS, typename T>
__device__ void forward(const Inputs<T> &in, const float *first_state, T *y, float *last, float *kept) {
  __shared__ Chunk<MOST_KEYS> chunk;
  // The sums over each warp's keys.
  __shared__ float reads[FRAMES][MOST_KEYS / KEYS][VALUES];
  const Place place;
  const int present = in.present(), warp = threadIdx.x / WARP, warps = blockDim.x / WARP;

  Tile s;
  read_state(in, place, first_state, s);
#pragma unroll 1
  for (int first = 0; first < in.time; first += FRAMES) {
    const int count = min(FRAMES, in.time - first);
    if (first < present) {
      if (kept)
        for (int i = 0; i < TILE * TILE; i++)
          kept[kept_at(in.time, first / FRAMES) + i * blockDim.x] = s[i / TILE][i % TILE];
      __syncthreads();
      chunk.read_frames(in, first, count, present);
      __syncthreads();
#pragma unroll 1
      for (int f = 0; f < count; f++) {
        step(chunk, place, f, s);
        float read[TILE];
        for (int i = 0; i < TILE; i++) {
          read[i] = 0.0f;
          for (int j = 0; j < TILE; j++) read[i] += s[i][j] * chunk.q[f][place.key + j];
        }
        const int row = sum_of_keys(read);
        reads[f][warp][place.row + row] = read[0];
      }
      turn(in, place, min(count, present - first), -1.0f, s);
      __syncthreads();
    }
#pragma unroll 1
    for (int at = threadIdx.x; at < count * VALUES; at += blockDim.x) {
      const int f = at / VALUES, i = at % VALUES, row = in.first_row() + i;
      float sum = 0.0f;
      for (int w = 0; w < warps && first + f < present; w++) sum += reads[f][w][i];
      if (row < in.wide) write(y + (in.frame(first + f) * in.heads + in.head()) * in.wide + row, sum);
    }
  }
  write_state(in, place, last, s);
}

template <typename T> __device__ float turned_back(const Inputs<T> &in, const float *d, int place, int f) {
  return in.turns ? in.turned(d[place], d[place ^ 1], place, f, -1.0f) : d[place];
}

// Gradients from dy and d_last, which is null if the last state has none. d_streams gets those of v, in their columns.
// These are to be summed over their first dimension:
//   d_keys  [shared * slices, b, t, 2, heads / shared * key], of q and of k
//   d_gates [slices, b, t, gates], null if gates are constant
template <int MOST_KEYS, typename T>
__device__ void backward(const Inputs<T> &in, const float *kept, const T *dy, const float *d_last, T *d_streams,
                         float *d_first, float *d_keys, float *d_gates) {
  __shared__ Chunk<MOST_KEYS> chunk;
  alignas(16) __shared__ float d_read[FRAMES][VALUES];
  __shared__ float dq[FRAMES][MOST_KEYS], dk[FRAMES][MOST_KEYS], d_log[FRAMES][MOST_KEYS];
  // The sums over each warp's keys.
  __shared__ float dx[FRAMES][MOST_KEYS / KEYS][VALUES];
  const Place place;
  const int present = in.present(), warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
  const int head = in.head(), slice = blockIdx.y % in.slices(), groups = in.heads / in.shared;
  const long long frames = (long long)in.batch * in.time;
  d_keys += (head % in.shared * in.slices() + slice) * frames * 2 * groups * in.key;
  d_gates += d_gates ? slice * frames * in.gate_count() : 0;

  Tile ds;
  read_state(in, place, d_last, ds);
#pragma unroll 1
  for (int first = (in.time - 1) / FRAMES * FRAMES; first >= 0; first -= FRAMES) {
    const int count = min(FRAMES, in.time - first);
    if (first < present) {
      __syncthreads();
      chunk.read_frames(in, first, FRAMES, present);
#pragma unroll 1
      for (int at = threadIdx.x; at < FRAMES * VALUES; at += blockDim.x) {
        const int f = at / VALUES, i = at % VALUES, row = in.first_row() + i;
        const bool there = first + f < present && row < in.wide;
        d_read[f][i] = there ? read(dy + (in.frame(first + f) * in.heads + head) * in.wide + row) : 0.0f;
      }
      turn(in, place, min(count, present - first), 1.0f, ds);
      __syncthreads();

#pragma unroll 1
      for (int part = FRAMES - PART; part >= 0; part -= PART) {
        // States before each frame of the part, and after the last one.
        Tile s[PART + 1];
        for (int i = 0; i < TILE * TILE; i++)
          s[0][i / TILE][i % TILE] = kept[kept_at(in.time, first / FRAMES) + i * blockDim.x];
#pragma unroll 1
        for (int f = 0; f < part; f++) step(chunk, place, f, s[0]);
#pragma unroll
        for (int n = 0; n < PART; n++) {
          for (int i = 0; i < TILE * TILE; i++) s[n + 1][i / TILE][i % TILE] = s[n][i / TILE][i % TILE];
          step(chunk, place, part + n, s[n + 1]);
        }
#pragma unroll
        for (int n = PART - 1; n >= 0; n--) {
          const int f = part + n;
          float to_q[TILE] = {}, to_k[TILE] = {}, to_log[TILE] = {}, to_x[TILE] = {};
          for (int j = 0; j < TILE; j++) {
            const float q = chunk.q[f][place.key + j], k = chunk.k[f][place.key + j];
            const float fade = chunk.fade[f][place.key + j];
            for (int i = 0; i < TILE; i++) {
              const float g = d_read[f][place.row + i];
              to_q[j] += g * s[n + 1][i][j];
              ds[i][j] += g * q;
              to_k[j] += ds[i][j] * chunk.x[f][place.row + i];
              to_x[i] += ds[i][j] * k;
              ds[i][j] *= fade;
              to_log[j] += ds[i][j] * s[n][i][j];
            }
          }
          const int row = sum_of_keys(to_x);
          dx[f][warp][place.row + row] = to_x[0];
          const int key = sum_of_rows(to_q);
          sum_of_rows(to_k);
          sum_of_rows(to_log);
          // Lanes that differ in the last step alone have the same sum.
          if ((lane & ACROSS) == 0) {
            dq[f][place.key + key] = to_q[0];
            dk[f][place.key + key] = to_k[0];
            d_log[f][place.key + key] = to_log[0];
          }
        }
      }
      __syncthreads();
    }

    // Each frame has a warp.
#pragma unroll 1
    for (int f = warp; f < count; f += warps) {
      const int t = first + f, row = in.first_row() + lane;
      const bool there = t < present;
      const long long frame = in.frame(t);
      float *to_keys = d_keys + frame * 2 * groups * in.key + head / in.shared * in.key;
      float *to_gates = d_gates ? d_gates + frame * in.gate_count() : nullptr;
      float log = 0.0f, input = 0.0f;
#pragma unroll 1
      for (int j = lane; j < in.key; j += WARP) {
        const int number = in.number(j);
        to_keys[number] = there ? turned_back(in, dq[f], j, f) : 0.0f;
        to_keys[groups * in.key + number] = there ? turned_back(in, dk[f], j, f) : 0.0f;
        const float d = there ? d_log[f][j] : 0.0f;
        log += d;
        if (in.kind == KEY) to_gates[head * in.key + number] = d;
      }
      if (there && row < in.wide) {
#pragma unroll 1
        for (int w = 0; w < warps; w++) input += dx[f][w][lane];
        input *= in.scale;
      }
      if (row < in.value)
        write(d_streams + frame * in.width + in.v + head * in.value + row, there ? in.factor(t) * input : 0.0f);
      if (in.kind == HEAD || in.kind == HEAD_AND_INPUT) {
        log = sum_of_warp(log);
        if (lane == 0) to_gates[head] = log;
      }
      if (in.kind == HEAD_AND_INPUT) {
        input = sum_of_warp(there && row < in.wide ? input * in.value_of(t, row) : 0.0f);
        if (lane == 0) to_gates[in.heads + head] = input;
      }
    }
  }
  write_state(in, place, d_first, ds);
}

// d_streams [frames, width]: the columns of q and of k are the sums of d_keys over its `count` parts, each [frames, 2,
// keys], in order. The columns of v are already written; all others become 0. The grid has a thread for each number.
template <typename T>
__device__ void gather(const float *d_keys, T *d_streams, long long frames, int width, int q, int k, int v, int keys,
                       int values, int count) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at >= frames * width) return;
  const long long frame = at / width;
  const int column = at % width;
  if (column >= v && column < v + values) return;
  float sum = 0.0f;
  for (int which = 0; which < 2; which++) {
    const int j = column - (which == 0 ? q : k);
    if (j < 0 || j >= keys) continue;
    for (int part = 0; part < count; part++) sum += d_keys[((part * frames + frame) * 2 + which) * keys + j];
  }
  write(d_streams + at, sum);
}

} // namespace

#define INPUTS(T)                                                                                                     \
  Inputs<T> {                                                                                                         \
    streams, gates, constant, lengths, turns, batch, time, width, heads, shared, key, value, wide, q, k, v, kind,     \
        scale                                                                                                         \
  }

#define MATRIX_STATE(T, name, SIZE)                                                                                   \
  extern "C" __global__ void matrix_state_##name##_forward_##SIZE(                                                    \
      const T *__restrict__ streams, const T *__restrict__ gates, const float *__restrict__ constant,                 \
      const int *__restrict__ lengths, const float *__restrict__ turns, const float *__restrict__ first,              \
      T *__restrict__ y, float *__restrict__ last, float *__restrict__ kept, int batch, int time, int width,          \
      int heads, int shared, int key, int value, int wide, int q, int k, int v, int kind, float scale) {              \
    forward<SIZE>(INPUTS(T), first, y, last, kept);                                                                   \
  }                                                                                                                   \
  extern "C" __global__ void matrix_state_##name##_backward_##SIZE(                                                   \
      const T *__restrict__ streams, const T *__restrict__ gates, const float *__restrict__ constant,                 \
      const int *__restrict__ lengths, const float *__restrict__ turns, const float *__restrict__ kept,               \
      const T *__restrict__ dy, const float *__restrict__ d_last, T *__restrict__ d_streams,                          \
      float *__restrict__ d_first, float *__restrict__ d_keys, float *__restrict__ d_gates, int batch, int time,      \
      int width, int heads, int shared, int key, int value, int wide, int q, int k, int v, int kind, float scale) {   \
    backward<SIZE>(INPUTS(T), kept, dy, d_last, d_streams, d_first, d_keys, d_gates);                                 \
  }

#define MATRIX_STATES(T, name)                                                                                        \
  MATRIX_STATE(T, name, 64)                                                                                           \
  MATRIX_STATE(T, name, 128)                                                                                          \
  extern "C" __global__ void matrix_state_##name##_gather(                                                            \
      const float *__restrict__ d_keys, T *__restrict__ d_streams, long long frames, int width, int q, int k, int v,  \
      int keys, int values, int count) {                                                                              \
    gather(d_keys, d_streams, frames, width, q, k, v, keys, values, count);                                           \
  }

MATRIX_STATES(float, f32)
MATRIX_STATES(__nv_bfloat16, bf16)
