// The state after each row of states [b, t, c]: the state after its last frame, or first [b, c] where a row has no
// frame. Values are copied unchanged.
//
// The grid has a thread for each channel (x) of a row (y, which strides over the rows).

#include "numbers.cuh"

namespace {

template <typename T>
__device__ void forward(const T *states, const T *first, const int *lengths, T *y, int time, int batch, int channels) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  for (long long row = blockIdx.y; row < batch; row += gridDim.y) {
    const long long own = row * channels + channel, end = lengths[row] - 1;
    y[own] = end < 0 ? first[own] : states[(row * time + end) * channels + channel];
  }
}

template <typename T>
__device__ void backward(const int *lengths, const T *dy, T *dstates, T *dfirst, int time, int batch, int channels) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  for (long long row = blockIdx.y; row < batch; row += gridDim.y) {
    const long long own = row * channels + channel, end = lengths[row] - 1;
    const float d = read(dy + own);
    for (int t = 0; t < time; t++) write(dstates + (row * time + t) * channels + channel, t == end ? d : 0.0f);
    write(dfirst + own, end < 0 ? d : 0.0f);
  }
}

} // namespace

#define LAST(T, name)                                                                                                 \
  extern "C" __global__ void last_##name##_forward(const T *__restrict__ states, const T *__restrict__ first,         \
                                                   const int *__restrict__ lengths, T *__restrict__ y, int time,      \
                                                   int batch, int channels) {                                         \
    forward(states, first, lengths, y, time, batch, channels);                                                        \
  }                                                                                                                   \
  extern "C" __global__ void last_##name##_backward(const int *__restrict__ lengths, const T *__restrict__ dy,        \
                                                    T *__restrict__ dstates, T *__restrict__ dfirst, int time,        \
                                                    int batch, int channels) {                                        \
    backward(lengths, dy, dstates, dfirst, time, batch, channels);                                                    \
  }

LAST(float, f32)
LAST(__nv_bfloat16, bf16)
