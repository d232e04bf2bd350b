// One frame of an LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000), a GRU (Cho et al.
// 2014, with the reset gate after the product) and an sLSTM (Beck et al. 2024, eq. 8 to 17). Forward, a kernel runs
// after cuBLAS's product of the previous states with the recurrent weight; backward, it runs before that of the gates'
// gradients with the weight. Kernels named `whole` compute the product too (frame_product.cuh): forward that of the
// frame, backward that of the gradients of the following frame, in place.
//
// Numbers are of type T, and operands of products of type O. Biases, results of products, the states c, n and m, the h
// of a GRU, gradients carried between frames, and all arithmetic are f32. Tensors with frames are [b, time, ..], others
// [b, ..]. Gates lie side by side, in the order i, f, g, o, or r, z, n, or i, f, z, o.
//
// The grid has a thread for each channel (x) of a row (y, which strides over the rows). Neighbouring threads read
// neighbouring numbers, and no number is read by two threads, so outputs may alias inputs. A row without further frames
// keeps its states; if `lengths` is null, every row has all frames. In `whole` kernels a thread has two numbers of a
// block's tile, and the previous states that the product reads must not alias the new states.
//
// Pointers that may be null are documented as such.

#include "cells.cuh"
#include "frame_product.cuh"
#include "numbers.cuh"

namespace {

// ln(1 + e^x) at any x.
__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// The gradient of a row's state after the frame: the carried gradient (null after the last frame), that through the
// weight or of the last state (or null), and that of the sequence (or null).
template <typename T>
__device__ float gradient(const Frame &frame, const float *carried, const float *through, const T *dy, long long row,
                          int channel) {
  const long long state = row * frame.width + channel;
  float sum = carried ? carried[state] : 0.0f;
  if (through) sum += through[state];
  if (dy) sum += read(dy + frame.at(row, 1) + channel);
  return sum;
}

// A forward frame after the product: recurrent [batch, gates * width].
template <typename Cell> __device__ void forward(const Frame &frame, const Cell &cell, const float *recurrent) {
  const int k = frame.channel();
  if (k >= frame.width) return;
  const auto biases = cell.biases(frame.width, k);
  for (long long row = blockIdx.y; row < frame.batch; row += gridDim.y) {
    const auto before = cell.before(frame, row, k);
    float own[Cell::GATES];
    for (int n = 0; n < Cell::GATES; n++) own[n] = recurrent[(row * Cell::GATES + n) * frame.width + k];
    cell.after(frame, row, k, biases, before, own);
  }
}

// A backward frame after the product: through [batch, width], or null.
template <typename Cell> __device__ void backward(const Frame &frame, const Cell &cell, const float *through) {
  const int k = frame.channel();
  if (k >= frame.width) return;
  for (long long row = blockIdx.y; row < frame.batch; row += gridDim.y)
    cell.after(frame, row, k, cell.before(frame, row, k), through ? through[row * frame.width + k] : 0.0f);
}

// A forward frame with its product, from h [batch, width], which must not alias the cell's operand.
template <typename Cell, typename O>
__device__ void whole_forward(const Frame &frame, const Cell &cell, const O *h, const O *weight) {
  using Tile = GatesOfTile<Cell::GATES>;
  Tile tile;
  typename Cell::Before before[Tile::NUMBERS];
  for (int i = 0; i < Tile::NUMBERS; i++)
    if (tile.row(i) < frame.batch) before[i] = cell.before(frame, tile.row(i), tile.unit());
  const auto biases = cell.biases(frame.width, tile.unit());
  tile.multiply(h, weight, frame.batch, frame.width);
  for (int i = 0; i < Tile::NUMBERS; i++)
    if (tile.row(i) < frame.batch) cell.after(frame, tile.row(i), tile.unit(), biases, before[i], tile.own[i]);
}

// A backward frame with the product of the gates' gradients of the following frame; the last frame has none.
template <typename Cell, typename O>
__device__ void whole_backward(const Frame &frame, const Cell &cell, const O *weight) {
  StatesOfTile tile;
  typename Cell::Before before[StatesOfTile::NUMBERS];
  for (int i = 0; i < StatesOfTile::NUMBERS; i++)
    if (tile.row(i) < frame.batch) before[i] = cell.before(frame, tile.row(i), tile.unit());
  const int depth = Cell::GATES * frame.width;
  if (frame.t + 1 < frame.time)
    tile.multiply(cell.to_state() + (frame.t + 1LL) * depth, (long long)frame.time * depth, weight, frame.batch,
                  frame.width, depth);
  for (int i = 0; i < StatesOfTile::NUMBERS; i++)
    if (tile.row(i) < frame.batch) cell.after(frame, tile.row(i), tile.unit(), before[i], tile.own[i]);
}

// The index of a channel's gates in [b, heads, 4, w], where heads have width w.
__device__ inline long long in_head(long long row, int width, int w, int channel) {
  return (row * width + channel / w * w) * 4 + channel % w;
}

// m' >= max(log sigmoid(f) + m, i), i' = e^(i - m'), f' = e^(log sigmoid(f) + m - m'), c' = f' c + i' tanh(z), n' = f'
// n + i', h' = sigmoid(o) c' / n'. m' is the least multiple of 1/64, so that it changes seldom; while n is 0 no frame
// has been seen, and m' >= i. `recurrent` has the gates of each head of width w side by side. y is 0 in frames that do
// not exist. `slopes`: those of the logarithm of the forget gate.
template <typename T, typename O>
__device__ void slstm_forward(Frame frame, int w, const T *projected, const float *recurrent, const T *h, const float *c,
                              const float *n, const float *m, T *y, T *h_new, float *c_new, float *n_new, float *m_new,
                              O *operand, T *gates, T *slopes, float *cells, float *norms) {
  const int k = frame.channel(), width = frame.width;
  if (k >= width) return;

  for (long long row = blockIdx.y; row < frame.batch; row += gridDim.y) {
    const long long at = frame.at(row, 1) + k, state = row * width + k, first = frame.at(row, 4) + k;
    if (!frame.present(row)) {
      write(y + at, 0.0f);
      h_new[state] = h[state];
      write(operand + state, read(h + state));
      c_new[state] = c[state];
      n_new[state] = n[state];
      m_new[state] = m[state];
      continue;
    }
    const auto gate = [&](int of) {
      return read(projected + first + of * (long long)width) + recurrent[in_head(row, width, w, k) + of * w];
    };
    const float input = gate(0), forget = gate(1), z = tanhf(gate(2)), o = sigmoid(gate(3));
    const float log = softplus(-forget), norm = n[state], unit = m[state];
    const float least = norm == 0.0f ? input : fmaxf(input, unit - log);
    const float units = ceilf(least * 64.0f) / 64.0f;
    // Before the first frame there is nothing to forget, however far m has moved.
    const float f = norm == 0.0f ? 0.0f : expf((unit - units) - log), i = expf(input - units);
    const float cell = f * c[state] + i * z, sum = f * norm + i;
    const float now = o * cell / sum;
    write(y + at, now);
    write(h_new + state, now);
    write(operand + state, now);
    c_new[state] = cell;
    n_new[state] = sum;
    m_new[state] = units;
    if (gates) {
      write(gates + first, i);
      write(gates + first + width, f);
      write(gates + first + 2LL * width, z);
      write(gates + first + 3LL * width, o);
      write(slopes + at, sigmoid(-forget));
      cells[at] = cell;
      norms[at] = sum;
    }
  }
}

// m is a choice of units on which no h depends, so it has no gradient. `drecurrent` is laid out as `recurrent`.
template <typename T, typename O>
__device__ void slstm_backward(Frame frame, int w, const T *gates, const T *slopes, const float *c0, const float *n0,
                               const float *cells, const float *norms, const T *h0, const T *y, const T *dy,
                               const float *through, const float *dh, const float *dc, const float *dn, float *dh_before,
                               float *dc_before, float *dn_before, T *dprojected, O *drecurrent, O *previous) {
  const int k = frame.channel(), width = frame.width;
  if (k >= width) return;

  for (long long row = blockIdx.y; row < frame.batch; row += gridDim.y) {
    const long long at = frame.at(row, 1) + k, state = row * width + k, first = frame.at(row, 4) + k;
    const long long head = in_head(row, width, w, k);
    const bool present = frame.present(row);
    const float d = gradient(frame, dh, through, present ? dy : nullptr, row, k);
    const float d_cell = dc ? dc[state] : 0.0f, d_sum = dn ? dn[state] : 0.0f;
    write(previous + at, before(frame, h0, y, row, k));
    if (!present) {
      clear(dprojected + first, 4, width);
      clear(drecurrent + head, 4, w);
      dh_before[state] = d;
      dc_before[state] = d_cell;
      dn_before[state] = d_sum;
      continue;
    }
    const float i = read(gates + first), f = read(gates + first + width), z = read(gates + first + 2LL * width),
                o = read(gates + first + 3LL * width);
    const float ratio = cells[at] / norms[at], through_cell = d * o / norms[at];
    const float cell = d_cell + through_cell, sum = d_sum - through_cell * ratio;
    const float forgotten = cell * before(frame, c0, cells, row, k) + sum * before(frame, n0, norms, row, k);
    const float of[4] = {(cell * z + sum) * i, forgotten * f * read(slopes + at), cell * i * (1.0f - z * z),
                         d * ratio * o * (1.0f - o)};
    for (int gate = 0; gate < 4; gate++) {
      write(dprojected + first + gate * (long long)width, of[gate]);
      write(drecurrent + head + gate * (long long)w, of[gate]);
    }
    // h enters h' only through the gates, so its gradient comes through the weight alone.
    dh_before[state] = 0.0f;
    dc_before[state] = cell * f;
    dn_before[state] = sum * f;
  }
}

} // namespace

// The frame: the last arguments of each kernel.
#define FRAME const int *lengths, int t, int time, int batch, int width

#define RECURRENT(T, O, name)                                                                                         \
  extern "C" __global__ void lstm_##name##_forward(                                                                   \
      const T *projected, const float *recurrent, const float *bias_ih, const float *bias_hh, const T *h0,            \
      const float *c, T *y, float *c_new, O *operand, T *gates, float *cells, FRAME) {                                \
    forward(Frame{lengths, t, time, batch, width},                                                                    \
            LstmForward<T, O>{projected, bias_ih, bias_hh, h0, c, y, c_new, operand, gates, cells}, recurrent);       \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(WHOLE_THREADS) lstm_##name##_whole_forward(                            \
      const T *projected, const O *__restrict__ h, const O *__restrict__ weight, const float *bias_ih,                \
      const float *bias_hh, const T *h0, const float *c, T *y, float *c_new, O *operand, T *gates, float *cells,      \
      FRAME) {                                                                                                        \
    whole_forward(Frame{lengths, t, time, batch, width},                                                              \
                  LstmForward<T, O>{projected, bias_ih, bias_hh, h0, c, y, c_new, operand, gates, cells}, h, weight); \
  }                                                                                                                   \
  extern "C" __global__ void lstm_##name##_backward(                                                                  \
      const T *gates, const float *c0, const float *cells, const T *h0, const T *y, const T *dy,                      \
      const float *through, const float *dh, const float *dc, float *dh_before, float *dc_before, O *dgates,          \
      O *previous, FRAME) {                                                                                           \
    backward(Frame{lengths, t, time, batch, width},                                                                   \
             LstmBackward<T, O>{gates, c0, cells, h0, y, dy, dh, dc, dh_before, dc_before, dgates, previous},         \
             through);                                                                                                \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(WHOLE_THREADS) lstm_##name##_whole_backward(                           \
      const T *gates, const float *c0, const float *cells, const T *h0, const T *y, const T *dy,                      \
      const O *__restrict__ weight, const float *dh, const float *dc, float *dh_before, float *dc_before, O *dgates,  \
      O *previous, FRAME) {                                                                                           \
    whole_backward(Frame{lengths, t, time, batch, width},                                                             \
                   LstmBackward<T, O>{gates, c0, cells, h0, y, dy, dh, dc, dh_before, dc_before, dgates, previous},   \
                   weight);                                                                                           \
  }                                                                                                                   \
  extern "C" __global__ void gru_##name##_forward(                                                                    \
      const T *projected, const float *recurrent, const float *bias_ih, const float *bias_hh, const float *h, T *y,   \
      float *h_new, O *operand, T *gates, T *reset, FRAME) {                                                          \
    forward(Frame{lengths, t, time, batch, width},                                                                    \
            GruForward<T, O>{projected, bias_ih, bias_hh, h, y, h_new, operand, gates, reset}, recurrent);            \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(WHOLE_THREADS) gru_##name##_whole_forward(                             \
      const T *projected, const O *__restrict__ before, const O *__restrict__ weight, const float *bias_ih,           \
      const float *bias_hh, const float *h, T *y, float *h_new, O *operand, T *gates, T *reset, FRAME) {              \
    whole_forward(Frame{lengths, t, time, batch, width},                                                              \
                  GruForward<T, O>{projected, bias_ih, bias_hh, h, y, h_new, operand, gates, reset}, before, weight); \
  }                                                                                                                   \
  extern "C" __global__ void gru_##name##_backward(                                                                   \
      const T *gates, const T *reset, const T *h0, const T *y, const T *dy, const float *through, const float *dh,    \
      float *dh_before, O *dprojected, O *drecurrent, O *previous, FRAME) {                                           \
    backward(Frame{lengths, t, time, batch, width},                                                                   \
             GruBackward<T, O>{gates, reset, h0, y, dy, dh, dh_before, dprojected, drecurrent, previous}, through);   \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(WHOLE_THREADS) gru_##name##_whole_backward(                            \
      const T *gates, const T *reset, const T *h0, const T *y, const T *dy, const O *__restrict__ weight,             \
      const float *dh, float *dh_before, O *dprojected, O *drecurrent, O *previous, FRAME) {                          \
    whole_backward(Frame{lengths, t, time, batch, width},                                                             \
                   GruBackward<T, O>{gates, reset, h0, y, dy, dh, dh_before, dprojected, drecurrent, previous},       \
                   weight);                                                                                           \
  }                                                                                                                   \
  extern "C" __global__ void slstm_##name##_forward(                                                                  \
      const T *projected, const float *recurrent, const T *h, const float *c, const float *n, const float *m, T *y,   \
      T *h_new, float *c_new, float *n_new, float *m_new, O *operand, T *gates, T *slopes, float *cells,              \
      float *norms, int w, FRAME) {                                                                                   \
    slstm_forward({lengths, t, time, batch, width}, w, projected, recurrent, h, c, n, m, y, h_new, c_new, n_new,      \
                  m_new, operand, gates, slopes, cells, norms);                                                       \
  }                                                                                                                   \
  extern "C" __global__ void slstm_##name##_backward(                                                                 \
      const T *gates, const T *slopes, const float *c0, const float *n0, const float *cells, const float *norms,      \
      const T *h0, const T *y, const T *dy, const float *through, const float *dh, const float *dc, const float *dn,  \
      float *dh_before, float *dc_before, float *dn_before, T *dprojected, O *drecurrent, O *previous, int w,         \
      FRAME) {                                                                                                        \
    slstm_backward({lengths, t, time, batch, width}, w, gates, slopes, c0, n0, cells, norms, h0, y, dy, through, dh,  \
                   dc, dn, dh_before, dc_before, dn_before, dprojected, drecurrent, previous);                        \
  }

RECURRENT(float, float, f32)
RECURRENT(__nv_bfloat16, __nv_bfloat16, bf16)
// The same for products of bf16.
RECURRENT(float, __nv_bfloat16, mixed)
