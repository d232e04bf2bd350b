// The cells of an LSTM and a GRU: what a number of the state becomes in a frame, forward and backward.
//
// Numbers are of type T, and operands of products of type O. Tensors with frames are [b, time, ..], others [b, ..]. Gates
// lie side by side, in the order i, f, g, o or r, z, n.
#pragma once
#include "numbers.cuh"

namespace {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The index of a frame, and the shape of the sequence.
struct Frame {
  const int *lengths;
  int t, time, batch, width;

  __device__ int channel() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  __device__ bool present(long long row) const { return !lengths || t < lengths[row]; }
  // The index of a row's numbers in this frame, where a frame has `parts` times the width.
  __device__ long long at(long long row, int parts) const { return (row * time + t) * parts * width; }
};

// The state of a row before the frame: from the sequence y, or h0 before the first frame.
template <typename T> __device__ float before(const Frame &frame, const T *h0, const T *y, long long row, int channel) {
  return read(frame.t > 0 ? y + frame.at(row, 1) - frame.width + channel : h0 + row * frame.width + channel);
}

template <typename O> __device__ void clear(O *gates, int count, int width) {
  for (int gate = 0; gate < count; gate++) write(gates + gate * (long long)width, 0.0f);
}

// A cell in one direction has two functions: `before` loads the inputs of a number of the state, so that these loads
// overlap the product, and `after` computes the number once the product is there. Forward, `biases` loads what is the same
// in all frames and rows.

// c' = f * c + i * g and h' = o * tanh(c') with gates i, f, o under sigmoids and g under a tanh. operand: h', or null.
// The tensors saved for the backward pass, gates and cells, may be null.
template <typename T, typename O> struct LstmForward {
  static constexpr int GATES = 4;
  const T *projected;
  const float *bias_ih, *bias_hh;
  const T *h0;
  const float *c;
  T *y;
  float *c_new;
  O *operand;
  T *gates;
  float *cells;

  struct Biases {
    float of[GATES];
  };
  struct Before {
    float gates[GATES], cell;
  };

  __device__ Biases biases(int width, int k) const {
    Biases b;
    for (int n = 0; n < GATES; n++) b.of[n] = bias_ih[n * width + k] + bias_hh[n * width + k];
    return b;
  }

  __device__ Before before(const Frame &frame, long long row, int k) const {
    Before b;
    for (int n = 0; n < GATES; n++) b.gates[n] = read(projected + frame.at(row, GATES) + n * frame.width + k);
    b.cell = c[row * frame.width + k];
    return b;
  }

  __device__ void after(const Frame &frame, long long row, int k, const Biases &biases, const Before &b,
                        const float (&own)[GATES]) const {
    const int width = frame.width;
    const long long at = frame.at(row, 1) + k, state = row * width + k, first = frame.at(row, GATES) + k;
    float cell = b.cell, h;
    if (frame.present(row)) {
      const auto gate = [&](int n) { return b.gates[n] + own[n] + biases.of[n]; };
      const float i = sigmoid(gate(0)), f = sigmoid(gate(1)), g = tanhf(gate(2)), o = sigmoid(gate(3));
      cell = f * cell + i * g;
      h = o * tanhf(cell);
      if (gates) {
        write(gates + first, i);
        write(gates + first + width, f);
        write(gates + first + 2LL * width, g);
        write(gates + first + 3LL * width, o);
      }
    } else {
      h = ::before(frame, h0, y, row, k);
    }
    write(y + at, h);
    if (operand) write(operand + state, h);
    c_new[state] = cell;
    if (cells) cells[at] = cell;
  }
};

// dgates: gradients of the arguments of the sigmoids and the tanh. previous: h before the frame.
template <typename T, typename O> struct LstmBackward {
  static constexpr int GATES = 4;
  const T *gates;
  const float *c0, *cells;
  const T *h0, *y, *dy;
  const float *dh, *dc;
  float *dh_before, *dc_before;
  O *dgates, *previous;

  struct Before {
    float dh, dy, dc, h, gates[GATES], cell, cell_before;
  };

  __device__ const O *to_state() const { return dgates; }

  __device__ Before before(const Frame &frame, long long row, int k) const {
    const long long state = row * frame.width + k;
    Before b = {};
    b.dh = dh ? dh[state] : 0.0f;
    b.dy = dy ? read(dy + frame.at(row, 1) + k) : 0.0f;
    b.dc = dc ? dc[state] : 0.0f;
    b.h = ::before(frame, h0, y, row, k);
    if (!frame.present(row)) return b;
    for (int n = 0; n < GATES; n++) b.gates[n] = read(gates + frame.at(row, GATES) + n * frame.width + k);
    b.cell = cells[frame.at(row, 1) + k];
    b.cell_before = ::before(frame, c0, cells, row, k);
    return b;
  }

  __device__ void after(const Frame &frame, long long row, int k, const Before &b, float through) const {
    const int width = frame.width;
    const long long at = frame.at(row, 1) + k, state = row * width + k, first = frame.at(row, GATES) + k;
    const float d = b.dh + through + b.dy;
    write(previous + at, b.h);
    if (!frame.present(row)) {
      clear(dgates + first, GATES, width);
      dh_before[state] = d;
      dc_before[state] = b.dc;
      return;
    }
    const float i = b.gates[0], f = b.gates[1], g = b.gates[2], o = b.gates[3];
    const float squashed = tanhf(b.cell);
    const float cell = b.dc + d * o * (1.0f - squashed * squashed);
    write(dgates + first, cell * g * i * (1.0f - i));
    write(dgates + first + width, cell * b.cell_before * f * (1.0f - f));
    write(dgates + first + 2LL * width, cell * i * (1.0f - g * g));
    write(dgates + first + 3LL * width, d * squashed * o * (1.0f - o));
    // h enters h' only through the gates, so its gradient comes through the weight alone.
    dh_before[state] = 0.0f;
    dc_before[state] = cell * f;
  }
};

// h' = (1 - z) * n + z * h with gates r, z under sigmoids and n = tanh(x_n + r * (h_n + b_hn)). The last state h is
// stored besides y, which is rounded. `reset` is the factor of r.
template <typename T, typename O> struct GruForward {
  static constexpr int GATES = 3;
  const T *projected;
  const float *bias_ih, *bias_hh, *h;
  T *y;
  float *h_new;
  O *operand;
  T *gates, *reset;

  struct Biases {
    float of_input[GATES], of[GATES];
  };
  struct Before {
    float gates[GATES], h;
  };

  __device__ Biases biases(int width, int k) const {
    Biases b;
    for (int n = 0; n < GATES; n++) {
      b.of_input[n] = bias_ih[n * width + k];
      b.of[n] = bias_hh[n * width + k];
    }
    return b;
  }

  __device__ Before before(const Frame &frame, long long row, int k) const {
    Before b;
    for (int n = 0; n < GATES; n++) b.gates[n] = read(projected + frame.at(row, GATES) + n * frame.width + k);
    b.h = h[row * frame.width + k];
    return b;
  }

  __device__ void after(const Frame &frame, long long row, int k, const Biases &biases, const Before &b,
                        const float (&own)[GATES]) const {
    const int width = frame.width;
    const long long at = frame.at(row, 1) + k, place = row * width + k, first = frame.at(row, GATES) + k;
    float now = b.h;
    if (frame.present(row)) {
      const auto input = [&](int n) { return b.gates[n] + biases.of_input[n]; };
      const auto state = [&](int n) { return own[n] + biases.of[n]; };
      const float r = sigmoid(input(0) + state(0)), z = sigmoid(input(1) + state(1));
      const float candidate = state(2), n = tanhf(input(2) + r * candidate);
      now = n + z * (now - n);
      if (gates) {
        write(gates + first, r);
        write(gates + first + width, z);
        write(gates + first + 2LL * width, n);
        write(reset + at, candidate);
      }
    }
    write(y + at, now);
    if (operand) write(operand + place, now);
    h_new[place] = now;
  }
};

// Gradients of the arguments of the sigmoids and the tanh: those of the projected input, and those of the product with
// h and its bias, which differ in n.
template <typename T, typename O> struct GruBackward {
  static constexpr int GATES = 3;
  const T *gates, *reset, *h0, *y, *dy;
  const float *dh;
  float *dh_before;
  O *dprojected, *drecurrent, *previous;

  struct Before {
    float dh, dy, h, gates[GATES], reset;
  };

  __device__ const O *to_state() const { return drecurrent; }

  __device__ Before before(const Frame &frame, long long row, int k) const {
    Before b = {};
    b.dh = dh ? dh[row * frame.width + k] : 0.0f;
    b.dy = dy ? read(dy + frame.at(row, 1) + k) : 0.0f;
    b.h = ::before(frame, h0, y, row, k);
    if (!frame.present(row)) return b;
    for (int n = 0; n < GATES; n++) b.gates[n] = read(gates + frame.at(row, GATES) + n * frame.width + k);
    b.reset = read(reset + frame.at(row, 1) + k);
    return b;
  }

  __device__ void after(const Frame &frame, long long row, int k, const Before &b, float through) const {
    const int width = frame.width;
    const long long at = frame.at(row, 1) + k, state = row * width + k, first = frame.at(row, GATES) + k;
    const float d = b.dh + through + b.dy;
    write(previous + at, b.h);
    if (!frame.present(row)) {
      clear(dprojected + first, GATES, width);
      clear(drecurrent + first, GATES, width);
      dh_before[state] = d;
      return;
    }
    const float r = b.gates[0], z = b.gates[1], n = b.gates[2];
    const float candidate = d * (1.0f - z) * (1.0f - n * n);
    const float dz = d * (b.h - n) * z * (1.0f - z), dr = candidate * b.reset * r * (1.0f - r);
    write(dprojected + first, dr);
    write(dprojected + first + width, dz);
    write(dprojected + first + 2LL * width, candidate);
    write(drecurrent + first, dr);
    write(drecurrent + first + width, dz);
    write(drecurrent + first + 2LL * width, candidate * r);
    dh_before[state] = d * z;
  }
};

} // namespace
