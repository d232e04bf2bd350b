// h_t = a_t h_{t-1} + b_t, channel by channel (Martin & Cundy 2018, eq. 7), and cells that are made of it.
//
// Inputs and states [b, t, c] are of type T; the first state h0 [b, c], its gradient and all arithmetic are f32. A
// cell says how gate and addend of a channel come from its inputs of a frame; gates are worked out within the walk
// over time, and again on the way back, where g_t = dh_t + a_{t+1} g_{t+1}. The walk is exact at any gate and length.
//
// A thread for each channel (x) of a row (y of the grid, at most 65,535): neighbours read neighbours, and no number
// but h goes from frame to frame. Frames of a row from its length on do not exist: their state is 0, and they have no
// gradient; without lengths all have
// all.

#include "numbers.cuh"

namespace {

// Gate and addend are the inputs.
struct Plain {
  static constexpr int INPUTS = 2;

  __device__ void gates(const float *x, float &a, float &b) const {
    a = x[0];
    b = x[1];
  }

  // For the gradient g of the new state; h is the state before, a the gate.
  __device__ void backward(const float *x, float h, float g, float &a, float *dx) const {
    a = x[0];
    dx[0] = g * h;
    dx[1] = g;
  }
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// h = (1 - sigmoid(z)) h + sigmoid(z) c of inputs z, c (Feng et al. 2024, section 3.1.3).
struct MinGru {
  static constexpr int INPUTS = 2;

  __device__ void gates(const float *x, float &a, float &b) const {
    const float z = sigmoid(x[0]);
    a = 1.0f - z;
    b = z * x[1];
  }

  __device__ void backward(const float *x, float h, float g, float &a, float *dx) const {
    const float z = sigmoid(x[0]);
    a = 1.0f - z;
    dx[0] = g * (x[1] - h) * z * (1.0f - z);
    dx[1] = g * z;
  }
};

// h = f / (f + i + eps) h + i / (f + i + eps) c of inputs f, i, c, the first two under sigmoids (Feng et al. 2024,
// section 3.2.4).
struct MinLstm {
  static constexpr int INPUTS = 3;
  float eps;

  __device__ void gates(const float *x, float &a, float &b) const {
    const float f = sigmoid(x[0]), i = sigmoid(x[1]);
    const float scale = 1.0f / (f + i + eps);
    a = f * scale;
    b = i * scale * x[2];
  }

  __device__ void backward(const float *x, float h, float g, float &a, float *dx) const {
    const float f = sigmoid(x[0]), i = sigmoid(x[1]);
    const float scale = 1.0f / (f + i + eps);
    const float keep = f * scale, take = i * scale;
    a = keep;
    // d keep / d ln f = keep (1 - keep), d take / d ln f = -keep take, and the other way round.
    dx[0] = g * (h * (1.0f - keep) - x[2] * take) * keep * (1.0f - f);
    dx[1] = g * (x[2] * (1.0f - take) - h * keep) * take * (1.0f - i);
    dx[2] = g * take;
  }
};

// Inputs of a cell: where each begins, and how far apart its frames are.
template <typename T, int N> struct Inputs {
  T *first[N];
  long long stride;
};

// As they lie beside each other in one tensor [b, t, N * c].
template <int N, typename T> __device__ Inputs<T, N> beside(T *projected, int channels) {
  Inputs<T, N> inputs;
  for (int n = 0; n < N; n++) inputs.first[n] = projected + n * (long long)channels;
  inputs.stride = N * (long long)channels;
  return inputs;
}

template <typename Cell, typename T>
__device__ void forward(Cell cell, Inputs<const T, Cell::INPUTS> inputs, const float *h0, const int *lengths, T *h,
                        int time, int channels) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  const long long row = blockIdx.y, first = row * time;
  const int present = lengths ? lengths[row] : time;

  float state = h0[row * channels + channel];
  for (int t = 0; t < present; t++) {
    float x[Cell::INPUTS], a, b;
    for (int n = 0; n < Cell::INPUTS; n++) x[n] = read(inputs.first[n] + (first + t) * inputs.stride + channel);
    cell.gates(x, a, b);
    state = a * state + b;
    write(h + (first + t) * channels + channel, state);
  }
  for (int t = present; t < time; t++) write(h + (first + t) * channels + channel, 0.0f);
}

template <typename Cell, typename T>
__device__ void backward(Cell cell, Inputs<const T, Cell::INPUTS> inputs, const float *h0, const int *lengths,
                         const T *h, const T *dh, Inputs<T, Cell::INPUTS> dinputs, float *dh0, int time,
                         int channels) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  const long long row = blockIdx.y, first = row * time;
  const int present = lengths ? lengths[row] : time;

  for (int t = time - 1; t >= present; t--)
    for (int n = 0; n < Cell::INPUTS; n++)
      write(dinputs.first[n] + (first + t) * dinputs.stride + channel, 0.0f);

  // a_{t+1} g_{t+1}
  float carry = 0.0f;
  for (int t = present - 1; t >= 0; t--) {
    float x[Cell::INPUTS], dx[Cell::INPUTS], a;
    for (int n = 0; n < Cell::INPUTS; n++) x[n] = read(inputs.first[n] + (first + t) * inputs.stride + channel);
    const float before = t > 0 ? read(h + (first + t - 1) * channels + channel) : h0[row * channels + channel];
    const float g = carry + read(dh + (first + t) * channels + channel);
    cell.backward(x, before, g, a, dx);
    carry = a * g;
    for (int n = 0; n < Cell::INPUTS; n++)
      write(dinputs.first[n] + (first + t) * dinputs.stride + channel, dx[n]);
  }
  dh0[row * channels + channel] = carry;
}

} // namespace

#define LINEAR_RECURRENCE(T, name)                                                                                    \
  extern "C" __global__ void linear_recurrence_##name##_forward(                                                      \
      const T *__restrict__ a, const T *__restrict__ b, const float *__restrict__ h0,                                 \
      const int *__restrict__ lengths, T *__restrict__ h, int time, int channels) {                                   \
    forward(Plain{}, Inputs<const T, 2>{{a, b}, channels}, h0, lengths, h, time, channels);                           \
  }                                                                                                                   \
  extern "C" __global__ void linear_recurrence_##name##_backward(                                                     \
      const T *__restrict__ a, const T *__restrict__ b, const float *__restrict__ h0,                                 \
      const int *__restrict__ lengths, const T *__restrict__ h, const T *__restrict__ dh, T *__restrict__ da,         \
      T *__restrict__ db, float *__restrict__ dh0, int time, int channels) {                                          \
    backward(Plain{}, Inputs<const T, 2>{{a, b}, channels}, h0, lengths, h, dh, Inputs<T, 2>{{da, db}, channels},     \
             dh0, time, channels);                                                                                    \
  }                                                                                                                   \
  extern "C" __global__ void min_gru_##name##_forward(                                                                \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      T *__restrict__ h, int time, int channels) {                                                                    \
    forward(MinGru{}, beside<2>(projected, channels), h0, lengths, h, time, channels);                                \
  }                                                                                                                   \
  extern "C" __global__ void min_gru_##name##_backward(                                                               \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      const T *__restrict__ h, const T *__restrict__ dh, T *__restrict__ dprojected, float *__restrict__ dh0,         \
      int time, int channels) {                                                                                       \
    backward(MinGru{}, beside<2>(projected, channels), h0, lengths, h, dh, beside<2>(dprojected, channels), dh0,      \
             time, channels);                                                                                         \
  }                                                                                                                   \
  extern "C" __global__ void min_lstm_##name##_forward(                                                               \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      T *__restrict__ h, int time, int channels, float eps) {                                                         \
    forward(MinLstm{eps}, beside<3>(projected, channels), h0, lengths, h, time, channels);                            \
  }                                                                                                                   \
  extern "C" __global__ void min_lstm_##name##_backward(                                                              \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      const T *__restrict__ h, const T *__restrict__ dh, T *__restrict__ dprojected, float *__restrict__ dh0,         \
      int time, int channels, float eps) {                                                                            \
    backward(MinLstm{eps}, beside<3>(projected, channels), h0, lengths, h, dh, beside<3>(dprojected, channels), dh0,  \
             time, channels);                                                                                         \
  }

LINEAR_RECURRENCE(float, f32)
LINEAR_RECURRENCE(__nv_bfloat16, bf16)
