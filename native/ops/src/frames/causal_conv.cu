// A causal convolution of each channel over its own last inputs (Gu & Dao 2023, fig. 3), optionally followed by SiLU:
// y[t] = f(bias + sum over j of weight[j] * x[t - (taps - 1) + j]).
//
// x, y [b, t, c] and the inputs before the first frame, oldest first, [b, c, taps - 1] are of type T; weight [c, taps],
// bias [c] (or null) and their gradients, and all arithmetic, are f32. There are at most TAPS taps. Row r has
// `lengths[r]` frames, all if `lengths` is null. Later frames do not exist: their output is 0, they have no gradient,
// and the state after the row does not contain them.
//
// A thread for each channel (x) walks along stretches of `frames` frames and keeps the carried inputs in registers. At
// the start of a stretch the thread loads the inputs before the stretch; the backward pass recomputes gradients past
// the end of the stretch.

#include "numbers.cuh"

namespace {

constexpr int TAPS = 8;
// Frames that a thread loads at once.
constexpr int AT_ONCE = 4;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The inputs of a convolution, of type T or const T.
template <typename T> struct Inputs {
  T *x, *state;
  int taps, time, channels;

  // A frame of a row; frames before the first one are numbered from -1 down.
  __device__ T *at(long long row, int t, int channel) const {
    return t < 0 ? state + (row * channels + channel) * (taps - 1) + taps - 1 + t
                 : x + (row * time + t) * channels + channel;
  }
};

struct Filter {
  // The weights are the last `taps` entries, so that the newest input has the last one; earlier entries are 0.
  float weight[TAPS];
  float bias;
  bool silu;

  __device__ Filter(const float *given, const float *biases, int taps, bool silu, int channel)
      : bias(biases ? biases[channel] : 0.0f), silu(silu) {
    for (int i = 0; i < TAPS; i++) weight[i] = i + taps < TAPS ? 0.0f : given[channel * taps + i + taps - TAPS];
  }
};

// A channel of x [b, time, channels] in AT_ONCE frames of a row; 0 from frame `end` on.
template <typename T>
__device__ void some(const T *x, long long row, int time, int channels, int channel, int t, int end,
                     float (&to)[AT_ONCE]) {
#pragma unroll
  for (int e = 0; e < AT_ONCE; e++)
    to[e] = t + e < end ? read(x + (row * time + t + e) * channels + channel) : 0.0f;
}

// The last values of a walk, the newest at the end.
struct Window {
  float last[TAPS] = {};

  __device__ void push(float next) {
    for (int i = 0; i + 1 < TAPS; i++) last[i] = last[i + 1];
    last[TAPS - 1] = next;
  }

  // Loads the inputs before frame t that frame t sees.
  template <typename T> __device__ void fill(const Inputs<T> &inputs, long long row, int t, int channel) {
    for (int i = 0; i < TAPS; i++) {
      const int back = TAPS - 1 - i;
      last[i] = back + 1 < inputs.taps ? read(inputs.at(row, t - 1 - back, channel)) : 0.0f;
    }
  }

  __device__ float convolved(const Filter &filter) const {
    float sum = filter.bias;
    for (int i = 0; i < TAPS; i++) sum += filter.weight[i] * last[i];
    return sum;
  }
};

// A stretch of a row, and its frames that exist.
struct Stretch {
  long long row;
  int first, last, present;

  __device__ Stretch(long long index, const int *lengths, int time, int frames) {
    const int stretches = (time + frames - 1) / frames;
    row = index / stretches;
    first = int(index % stretches) * frames;
    last = min(time, first + frames);
    present = lengths ? lengths[row] : time;
  }
};

// `next` is the state after a row: its last inputs.
template <typename T>
__device__ void forward(Inputs<const T> inputs, const float *weight, const float *bias, const int *lengths, T *y,
                        T *next, bool silu, long long stretches, int frames) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x, past = inputs.taps - 1;
  if (channel >= inputs.channels) return;
  const Filter filter(weight, bias, inputs.taps, silu, channel);

  for (long long index = blockIdx.y; index < stretches; index += gridDim.y) {
    const Stretch stretch(index, lengths, inputs.time, frames);
    const auto [row, first, last, present] = stretch;
    Window window;
    if (first < present) window.fill(inputs, row, first, channel);
    for (int begin = first; begin < last; begin += AT_ONCE) {
      float x[AT_ONCE];
      some(inputs.x, row, inputs.time, inputs.channels, channel, begin, min(last, present), x);
#pragma unroll
      for (int e = 0; e < AT_ONCE; e++) {
        const int t = begin + e;
        if (t >= last) break;
        float v = 0.0f;
        if (t < present) {
          window.push(x[e]);
          v = window.convolved(filter);
          if (silu) v *= sigmoid(v);
        }
        write(y + (row * inputs.time + t) * inputs.channels + channel, v);
      }
    }
    if (first == 0)
      for (int slot = 0; slot < past; slot++)
        next[(row * inputs.channels + channel) * past + slot] = *inputs.at(row, present - past + slot, channel);
  }
}

// Gradients of the inputs, including those before the first frame, and of weight and bias, summed over the stretches of
// part blockIdx.y in order: parts [gridDim.y, c * (taps + 1)], the bias after the weight. `dnext` may be null.
template <typename T>
__device__ void backward(Inputs<const T> inputs, const float *weight, const float *bias, const int *lengths,
                         const T *dy, const T *dnext, Inputs<T> dinputs, float *parts, bool silu, long long stretches,
                         int frames, int stretches_per_part) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x, taps = inputs.taps, past = taps - 1;
  if (channel >= inputs.channels) return;
  const Filter filter(weight, bias, taps, silu, channel);
  // Weights in reverse order: here an input meets the gradients of the frames that saw it.
  float turned[TAPS];
  for (int i = 0; i < TAPS; i++) turned[TAPS - 1 - i] = i < taps ? weight[channel * taps + i] : 0.0f;
  float dweight[TAPS] = {}, dbias = 0.0f;

  const long long own = blockIdx.y * (long long)stretches_per_part;
  for (long long index = own; index < min(stretches, own + stretches_per_part); index++) {
    const Stretch stretch(index, lengths, inputs.time, frames);
    const auto [row, first, last, present] = stretch;
    Window window, gradients;
    if (first < present) window.fill(inputs, row, first, channel);
    const int end = last + past;
    for (int begin = first; begin < end; begin += AT_ONCE) {
      float x[AT_ONCE], of_y[AT_ONCE];
      some(inputs.x, row, inputs.time, inputs.channels, channel, begin, min(end, present), x);
      some(dy, row, inputs.time, inputs.channels, channel, begin, min(end, present), of_y);
#pragma unroll
      for (int e = 0; e < AT_ONCE; e++) {
        const int t = begin + e;
        if (t >= end) break;
        float d = 0.0f;
        if (t < present) {
          window.push(x[e]);
          d = of_y[e];
          if (silu) {
            const float v = window.convolved(filter), s = sigmoid(v);
            d *= s * (1.0f + v * (1.0f - s));
          }
          if (t < last) {
            dbias += d;
            for (int i = 0; i < TAPS; i++) dweight[i] += d * window.last[i];
          }
        }
        gradients.push(d);
        // The input that no later frame sees; the stretch that contains it computes its gradient.
        const int seen = t - past;
        if (seen < first && first > 0) continue;
        float sum = 0.0f;
        for (int i = 0; i < TAPS; i++) sum += turned[i] * gradients.last[i];
        const int slot = seen - present + past;
        if (dnext && 0 <= slot && slot < past)
          sum += read(dnext + (row * inputs.channels + channel) * past + slot);
        write(dinputs.at(row, seen, channel), sum);
      }
    }
  }

  parts += blockIdx.y * (taps + 1LL) * inputs.channels;
  for (int i = 0; i < TAPS; i++)
    if (i + taps >= TAPS) parts[channel * taps + i + taps - TAPS] = dweight[i];
  parts[taps * (long long)inputs.channels + channel] = dbias;
}

} // namespace

#define CAUSAL_CONV(T, name)                                                                                          \
  extern "C" __global__ void causal_conv_##name##_forward(                                                            \
      const T *__restrict__ x, const T *__restrict__ state, const float *__restrict__ weight,                         \
      const float *__restrict__ bias, const int *__restrict__ lengths, T *__restrict__ y, T *__restrict__ next,       \
      int taps, int silu, long long stretches, int frames, int time, int channels) {                                  \
    forward<T>({x, state, taps, time, channels}, weight, bias, lengths, y, next, silu != 0, stretches, frames);       \
  }                                                                                                                   \
  extern "C" __global__ void causal_conv_##name##_backward(                                                           \
      const T *__restrict__ x, const T *__restrict__ state, const float *__restrict__ weight,                         \
      const float *__restrict__ bias, const int *__restrict__ lengths, const T *__restrict__ dy,                      \
      const T *__restrict__ dnext, T *__restrict__ dx, T *__restrict__ dstate, float *__restrict__ parts, int taps,   \
      int silu, long long stretches, int frames, int time, int channels, int stretches_per_part) {                    \
    backward<T>({x, state, taps, time, channels}, weight, bias, lengths, dy, dnext, {dx, dstate, taps, time, channels}, \
                parts, silu != 0, stretches, frames, stretches_per_part);                                             \
  }

CAUSAL_CONV(float, f32)
CAUSAL_CONV(__nv_bfloat16, bf16)
