// The weighted average of the past in RWKV-4 (Peng et al. 2023, eq. 16), channel by channel. The state is the mean m of
// the past and the logarithm s of its total weight, so that nothing overflows at any k:
//
//   y = m + sigmoid(u + k - s) (v - m)
//   g = sigmoid(k - (s - exp(w)))      m = m + g (v - m)      s = log(exp(s - exp(w)) + exp(k))
//
// k, v, y [b, t, c] are of type T; the decay w and the bonus u [c], states [b, c] and all arithmetic are f32. The
// forward pass saves the states before each frame, [b, t, c] each, for the backward pass. Gradients of w and u are
// written by row, parts [b, 2, c], to be summed.
//
// The grid has a thread for each channel of a row, and whole blocks for one row after the other. Frames of a row from
// its length on do not exist: y is 0 there, they have no gradient, and the last state is that after the last frame. If
// `lengths` is null, all frames exist.

#include "channels.cuh"
#include "numbers.cuh"

namespace {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// kept_mean and kept_weight are null if no backward pass follows.
template <typename T>
__device__ void forward(const T *k, const T *v, const float *w, const float *u, const float *mean, const float *weight,
                        const int *lengths, T *y, float *last_mean, float *last_weight, float *kept_mean,
                        float *kept_weight, int time, int channels) {
  const auto [row, channel] = channel_of_row(channels);
  if (channel >= channels) return;
  const long long own = row * channels + channel;
  const int present = lengths ? lengths[row] : time;

  const float decay = expf(w[channel]), bonus = u[channel];
  float m = mean[own], s = weight[own];
  for (int t = 0; t < present; t++) {
    const long long at = (row * time + t) * channels + channel;
    const float k_t = read(k + at), v_t = read(v + at);
    if (kept_mean) {
      kept_mean[at] = m;
      kept_weight[at] = s;
    }
    write(y + at, m + sigmoid(bonus + k_t - s) * (v_t - m));
    const float past = s - decay, apart = k_t - past, e = expf(-fabsf(apart));
    m += (apart > 0.0f ? 1.0f : e) / (1.0f + e) * (v_t - m);
    s = fmaxf(past, k_t) + log1pf(e);
  }
  for (int t = present; t < time; t++) write(y + (row * time + t) * channels + channel, 0.0f);
  last_mean[own] = m;
  last_weight[own] = s;
}

// The gradients of the last state are null if there are none.
template <typename T>
__device__ void backward(const T *k, const T *v, const float *w, const float *u, const int *lengths,
                         const float *kept_mean, const float *kept_weight, const T *dy, const float *d_last_mean,
                         const float *d_last_weight, T *dk, T *dv, float *dmean, float *dweight, float *parts, int time,
                         int channels) {
  const auto [row, channel] = channel_of_row(channels);
  if (channel >= channels) return;
  const long long own = row * channels + channel;
  const int present = lengths ? lengths[row] : time;

  for (int t = present; t < time; t++) {
    const long long at = (row * time + t) * channels + channel;
    write(dk + at, 0.0f);
    write(dv + at, 0.0f);
  }
  const float decay = expf(w[channel]), bonus = u[channel];
  float dm = d_last_mean ? d_last_mean[own] : 0.0f, ds = d_last_weight ? d_last_weight[own] : 0.0f;
  float d_decay = 0.0f, d_bonus = 0.0f;
  for (int t = present - 1; t >= 0; t--) {
    const long long at = (row * time + t) * channels + channel;
    const float k_t = read(k + at), v_t = read(v + at), g_y = read(dy + at), m = kept_mean[at], s = kept_weight[at];
    const float ahead = v_t - m;
    const float p = sigmoid(bonus + k_t - s), dp = g_y * ahead * p * (1.0f - p);
    // The slope of the new s is g with respect to k and 1 - g with respect to the old s, as that of the new m is for v
    // and m.
    const float g = sigmoid(k_t - (s - decay)), dg = dm * ahead * g * (1.0f - g);
    const float past = ds * (1.0f - g) - dg;
    write(dk + at, dp + ds * g + dg);
    write(dv + at, g_y * p + dm * g);
    d_bonus += dp;
    d_decay -= past;
    dm = g_y * (1.0f - p) + dm * (1.0f - g);
    ds = past - dp;
  }
  dmean[own] = dm;
  dweight[own] = ds;
  parts[2 * row * channels + channel] = d_decay * decay;
  parts[(2 * row + 1) * channels + channel] = d_bonus;
}

} // namespace

#define WKV(T, name)                                                                                                  \
  extern "C" __global__ void wkv_##name##_forward(                                                                    \
      const T *__restrict__ k, const T *__restrict__ v, const float *__restrict__ w, const float *__restrict__ u,     \
      const float *__restrict__ mean, const float *__restrict__ weight, const int *__restrict__ lengths,              \
      T *__restrict__ y, float *__restrict__ last_mean, float *__restrict__ last_weight,                              \
      float *__restrict__ kept_mean, float *__restrict__ kept_weight, int time, int channels) {                       \
    forward(k, v, w, u, mean, weight, lengths, y, last_mean, last_weight, kept_mean, kept_weight, time, channels);    \
  }                                                                                                                   \
  extern "C" __global__ void wkv_##name##_backward(                                                                   \
      const T *__restrict__ k, const T *__restrict__ v, const float *__restrict__ w, const float *__restrict__ u,     \
      const int *__restrict__ lengths, const float *__restrict__ kept_mean, const float *__restrict__ kept_weight,    \
      const T *__restrict__ dy, const float *__restrict__ d_last_mean, const float *__restrict__ d_last_weight,       \
      T *__restrict__ dk, T *__restrict__ dv, float *__restrict__ dmean, float *__restrict__ dweight,                 \
      float *__restrict__ parts, int time, int channels) {                                                            \
    backward(k, v, w, u, lengths, kept_mean, kept_weight, dy, d_last_mean, d_last_weight, dk, dv, dmean, dweight,     \
             parts, time, channels);                                                                                  \
  }

WKV(float, f32)
WKV(__nv_bfloat16, bf16)
