// All frames of an LSTM or a GRU in one launch, where a launch for each frame would spend most of its time on beginning.
// A block has ROWS rows of the batch and UNITS numbers of the state, as in frame_product.cuh, and walks over the frames
// with its part of the recurrent weight [gates * width, width] in registers. After each frame it waits for the blocks of
// the same rows, which have the other numbers of the state. The launch is cooperative: all blocks run at once.
//
// The grid has a block for each UNITS numbers (x) and each ROWS rows (y) after the first `skipped` rows. width is a
// multiple of UNITS and at most WIDEST. Tensors that products read are aligned to 16 bytes: h0, y and the weight forward, and
// the gates' gradients backward. met [gridDim.y]: zeros at first.
//
// Sums of products are those of the matrix units (matrix_units.cuh); their order depends on sizes alone.

#include "cells.cuh"
#include "matrix_units.cuh"
#include "numbers.cuh"

#ifdef __CUDACC__
#define SHARED_PIECES(name) extern __shared__ Piece name[]
#else
#define SHARED_PIECES(name) Piece *name = reinterpret_cast<Piece *>(emulate::dynamic_shared)
#endif

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32, ROWS = 32, UNITS = 16, WIDEST = 256;
// Numbers of a thread.
constexpr int NUMBERS = ROWS * UNITS / THREADS;
constexpr int IN_PIECE = 16, IN_LINE = LINE / IN_PIECE;

// The number of pieces of a row of `width` numbers, up to whole lines.
template <typename O> __device__ int lines_of(int width) { return (width * int(sizeof(O)) + LINE - 1) / LINE; }

// Where a block is, and what it waits for.
struct Place {
  int skipped, batch;
  unsigned *met;

  __device__ int first() const { return skipped + blockIdx.y * ROWS; }
  __device__ int row(int i) const { return first() + threadIdx.x / UNITS + ROWS / NUMBERS * i; }
  __device__ int unit() const { return blockIdx.x * UNITS + threadIdx.x % UNITS; }

  // Ends a frame of this block: what it wrote can be read by blocks that wait for it.
  __device__ void arrive() const {
    __syncthreads();
    if (threadIdx.x > 0) return;
#ifdef __CUDACC__
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(met + blockIdx.y) : "memory");
#else
    atomicAdd(met + blockIdx.y, 1u);
#endif
  }

  // Waits until each block of these rows has ended this number of frames.
  __device__ void wait(int frames) const {
    const unsigned least = unsigned(frames) * gridDim.x;
    if (threadIdx.x == 0) {
#ifdef __CUDACC__
      unsigned seen;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(met + blockIdx.y) : "memory");
      while (seen < least);
#else
      emulate::wait_for_blocks(met + blockIdx.y, least);
#endif
    }
    __syncthreads();
  }
};

// 16 bytes that another block may have written.
__device__ inline Piece written(const void *from) {
  const uint4 v = __ldcg(static_cast<const uint4 *>(from));
  return {{v.x, v.y, v.z, v.w}};
}

// Numbers of a state that become operands of a product.
template <typename T, typename O> struct Operands {
  Piece v;
  __device__ void load(const T *from, bool there) {
    v = {};
    if (there) v = written(from);
  }
  __device__ Piece piece() const { return v; }
};
template <> struct Operands<float, __nv_bfloat16> {
  Piece v[2];
  __device__ void load(const float *from, bool there) {
    v[0] = v[1] = {};
    if (there) {
      v[0] = written(from);
      v[1] = written(from + 4);
    }
  }
  __device__ Piece piece() const {
    Piece to;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
      __nv_bfloat16 two[2];
      write(two, __uint_as_float(v[pair / 2].v[pair % 2 * 2]));
      write(two + 1, __uint_as_float(v[pair / 2].v[pair % 2 * 2 + 1]));
      memcpy(to.v + pair, two, sizeof two);
    }
    return to;
  }
};

// Walks forward. cell(t): the cell of a frame, whose states before are h0, then y.
template <typename Way, int GATES, typename T, typename CellOf>
__device__ void walk_forward(const int *lengths, int time, int width, const Place &place, const T *h0, const T *y,
                             const typename Way::Number *weight, CellOf cell_of) {
  using O = typename Way::Number;
  constexpr int IN = IN_PIECE / sizeof(O), MOST = WIDEST * sizeof(O) / LINE;
  // A warp has eight gates.
  constexpr int TILES = GATES * UNITS / 8, APART = GATES * UNITS + 8;
  static_assert(TILES <= WARPS, "each eight gates have a warp");
  SHARED_PIECES(tile);
  const int lines = lines_of<O>(width), pieces = lines * IN_LINE;
  // Rows lie so that eight threads read 128 bytes of different banks.
  const int apart = (pieces + 7) / 8 * 8 + IN_LINE;
  float *gates = reinterpret_cast<float *>(tile + ROWS * apart);
  const int warp = threadIdx.x / 32;

  Piece columns[MOST];
  const long long gate = warp / 2 * (long long)width + blockIdx.x * UNITS + warp % 2 * 8 + of_row();
#pragma unroll
  for (int line = 0; line < MOST; line++) {
    const int k = (line * IN_LINE + of_line()) * IN;
    columns[line] = {};
    if (warp < TILES && k < width) columns[line] = Way::kept(*reinterpret_cast<const Piece *>(weight + gate * width + k));
  }

  // The pieces of a thread: every eighth one of a row.
  constexpr int LANES = THREADS / ROWS, LOADS = MOST * IN_LINE / LANES;
  const int line = threadIdx.x / LANES;
  const bool exists = place.first() + line < place.batch;

  const auto biases = cell_of(0).biases(width, place.unit());
  for (int t = 0; t < time; t++) {
    const Frame frame{lengths, t, time, place.batch, width};
    const auto cell = cell_of(t);
    decltype(cell.before(frame, 0, 0)) before[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; i++)
      if (place.row(i) < place.batch) before[i] = cell.before(frame, place.row(i), place.unit());

    if (t > 0) place.wait(t);
    const long long row = place.first() + line;
    const T *from = t > 0 ? y + (row * time + t - 1) * width : h0 + row * width;
    Operands<T, O> loaded[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int k = (threadIdx.x % LANES + LANES * i) * IN;
      loaded[i].load(from + k, exists && k < width);
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int piece = threadIdx.x % LANES + LANES * i;
      if (piece < pieces) tile[line * apart + piece] = Way::kept(loaded[i].piece());
    }
    __syncthreads();

    if (warp < TILES) {
      float sums[2][Way::SUMS][4] = {};
#pragma unroll
      for (int line = 0; line < MOST; line++) {
        if (line >= lines) break;
        const Piece *at = tile + of_row() * apart + line * IN_LINE + of_line();
#pragma unroll
        for (int m = 0; m < 2; m++) Way::multiply(sums[m], at[16 * m * apart], at[(16 * m + 8) * apart], columns[line]);
      }
#pragma unroll
      for (int i = 0; i < 8; i++)
        gates[(i / 4 * 16 + i % 4 / 2 * 8 + of_row()) * APART + 8 * warp + 2 * of_line() + i % 2] = whole(sums[i / 4], i % 4);
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
      if (place.row(i) >= place.batch) continue;
      float own[GATES];
#pragma unroll
      for (int n = 0; n < GATES; n++)
        own[n] = gates[(place.row(i) - place.first()) * APART + n * UNITS + threadIdx.x % UNITS];
      cell.after(frame, place.row(i), place.unit(), biases, before[i], own);
    }
    place.arrive();
  }
}

// Walks backward. cell(t): the cell of a frame, whose gradients to the state before are d [b, time, gates * width].
template <typename Way, int GATES, typename CellOf>
__device__ void walk_backward(const int *lengths, int time, int width, const Place &place,
                              const typename Way::Number *d, const typename Way::Number *weight, CellOf cell_of) {
  using O = typename Way::Number;
  // A warp has every eighth line of the gates.
  constexpr int IN = IN_PIECE / sizeof(O), MOST = GATES * WIDEST * sizeof(O) / LINE / WARPS;
  // Lines whose loads are under way at once; more would spill registers.
  constexpr int TOGETHER = MOST < 4 ? MOST : 4, APART = UNITS + 8;
  SHARED_PIECES(tile);
  float *shares = reinterpret_cast<float *>(tile);
  const int warp = threadIdx.x / 32, depth = GATES * width;

  Piece columns[MOST][2];
#pragma unroll
  for (int l = 0; l < MOST; l++) {
    const int k = ((warp + WARPS * l) * IN_LINE + of_line()) * IN;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      alignas(16) O numbers[IN] = {};
      const long long unit = blockIdx.x * UNITS + 8 * n + of_row();
      if (k < depth)
        for (int e = 0; e < IN; e++) numbers[e] = weight[(k + e) * (long long)width + unit];
      Piece piece;
      memcpy(&piece, numbers, sizeof piece);
      columns[l][n] = Way::kept(piece);
    }
  }

  for (int t = time - 1; t >= 0; t--) {
    const Frame frame{lengths, t, time, place.batch, width};
    const auto cell = cell_of(t);
    decltype(cell.before(frame, 0, 0)) before[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; i++)
      if (place.row(i) < place.batch) before[i] = cell.before(frame, place.row(i), place.unit());

    float own[NUMBERS] = {};
    if (t + 1 < time) {
      place.wait(time - 1 - t);
      float sums[2][2][Way::SUMS][4] = {};
#pragma unroll
      for (int first = 0; first < MOST; first += TOGETHER) {
        Piece rows[TOGETHER][4];
#pragma unroll
        for (int l = 0; l < TOGETHER; l++) {
          const int k = ((warp + WARPS * (first + l)) * IN_LINE + of_line()) * IN;
#pragma unroll
          for (int m = 0; m < 4; m++) {
            const long long row = place.first() + 8 * m + of_row();
            rows[l][m] = {};
            if (first + l < MOST && row < place.batch && k < depth)
              rows[l][m] = written(d + (row * time + t + 1) * depth + k);
          }
        }
#pragma unroll
        for (int l = 0; l < TOGETHER; l++) {
          if (first + l >= MOST) break;
#pragma unroll
          for (int i = 0; i < 4; i++)
            Way::multiply(sums[i / 2][i % 2], Way::kept(rows[l][i / 2 * 2]), Way::kept(rows[l][i / 2 * 2 + 1]),
                          columns[first + l][i % 2]);
        }
      }
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            shares[(warp * ROWS + 16 * m + i / 2 * 8 + of_row()) * APART + 8 * n + 2 * of_line() + i % 2] = whole(sums[m][n], i);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < NUMBERS; i++)
#pragma unroll
        for (int w = 0; w < WARPS; w++)
          own[i] += shares[(w * ROWS + place.row(i) - place.first()) * APART + threadIdx.x % UNITS];
    }
#pragma unroll
    for (int i = 0; i < NUMBERS; i++)
      if (place.row(i) < place.batch) cell.after(frame, place.row(i), place.unit(), before[i], own[i]);
    place.arrive();
  }
}

} // namespace

// The last arguments of each kernel.
#define WALK unsigned *met, const int *lengths, int time, int skipped, int batch, int width

// c and h: states after the last frame; before, those after each frame. dh and dc likewise; dc_last: the gradient of the
// last c, or null.
#define RECURRENT_WALK(T, O, name, Way)                                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS) lstm_##name##_walk_forward(                                    \
      const T *projected, const O *weight, const float *bias_ih, const float *bias_hh, const T *h0, const float *c0,   \
      T *y, float *c, T *gates, float *cells, WALK) {                                                                  \
    walk_forward<Way, 4>(lengths, time, width, {skipped, batch, met}, h0, y, weight, [&](int t) {                      \
      return LstmForward<T, O>{projected, bias_ih, bias_hh, h0, t > 0 ? c : c0, y, c, nullptr, gates, cells};          \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS) lstm_##name##_walk_backward(                                   \
      const T *gates, const float *c0, const float *cells, const T *h0, const T *y, const T *dy, const O *weight,      \
      const float *dc_last, float *dh, float *dc, O *dgates, O *previous, WALK) {                                      \
    walk_backward<Way, 4>(lengths, time, width, {skipped, batch, met}, dgates, weight, [&](int t) {                    \
      const bool last = t + 1 == time;                                                                                 \
      return LstmBackward<T, O>{gates, c0, cells, h0, y, dy, last ? nullptr : dh, last ? dc_last : dc,                 \
                                dh, dc, dgates, previous};                                                             \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS) gru_##name##_walk_forward(                                     \
      const T *projected, const O *weight, const float *bias_ih, const float *bias_hh, const T *h0,                    \
      const float *first, T *y, float *h, T *gates, T *reset, WALK) {                                                  \
    walk_forward<Way, 3>(lengths, time, width, {skipped, batch, met}, h0, y, weight, [&](int t) {                      \
      return GruForward<T, O>{projected, bias_ih, bias_hh, t > 0 ? h : first, y, h, nullptr, gates, reset};            \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS) gru_##name##_walk_backward(                                    \
      const T *gates, const T *reset, const T *h0, const T *y, const T *dy, const O *weight, float *dh,                \
      O *dprojected, O *drecurrent, O *previous, WALK) {                                                               \
    walk_backward<Way, 3>(lengths, time, width, {skipped, batch, met}, drecurrent, weight, [&](int t) {                \
      return GruBackward<T, O>{gates, reset, h0, y, dy, t + 1 == time ? nullptr : dh, dh, dprojected, drecurrent,      \
                               previous};                                                                              \
    });                                                                                                                \
  }

RECURRENT_WALK(float, float, f32, InF32)
RECURRENT_WALK(float, float, tf32, InTf32)
RECURRENT_WALK(__nv_bfloat16, __nv_bfloat16, bf16, InBf16)
RECURRENT_WALK(float, __nv_bfloat16, mixed, InBf16)
