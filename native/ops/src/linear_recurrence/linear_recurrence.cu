// h_t = a_t h_{t-1} + b_t, channel by channel (Martin & Cundy 2018, eq. 7), and the cells built on it.
//
// Inputs and states [b, t, c] are of type T; weights [c], the first state h0 [b, c], their gradients and all arithmetic
// are f32. A cell defines the gate and the addend of a channel as functions of its inputs in a frame; gates are
// computed within the walk over time, and recomputed in the backward pass, where g_t = dh_t + a_{t+1} g_{t+1}. The walk
// is exact at any gate and length. Each row writes its own gradients of the weights, [b, weights, c]; these parts must
// then be summed.
//
// The grid has a thread for each channel of a row, and whole blocks for one row after the other: neighbouring threads
// read neighbouring values, and only h is carried from frame to frame. Frames of a row from its length on do not exist:
// their state is 0, and they have no gradient. If `lengths` is null, all frames exist.

#include "channels.cuh"
#include "numbers.cuh"

namespace {

// Parameters are functions of a channel's weights, computed once and not once per frame; here they are the weights.
struct OwnWeights {
  __device__ void parameters(float *) const {}
  // Turns gradients of the parameters into gradients of the weights w.
  __device__ void weights_backward(const float *, float *) const {}
};

// The inputs are the gate and the addend.
struct Plain : OwnWeights {
  static constexpr int INPUTS = 2, WEIGHTS = 0;

  // Gate and addend, from inputs x and parameters p.
  __device__ void gates(const float *x, const float *, float &a, float &b) const {
    a = x[0];
    b = x[1];
  }

  // Gradients from g, the gradient of the new state; h is the previous state, a the gate. Adds the gradients of the
  // parameters to dp.
  __device__ void backward(const float *x, const float *, float h, float g, float &a, float *dx, float *) const {
    a = x[0];
    dx[0] = g * h;
    dx[1] = g;
  }
};

// The gate is a weight, the addend the input.
struct Constant : OwnWeights {
  static constexpr int INPUTS = 1, WEIGHTS = 1;

  __device__ void gates(const float *x, const float *p, float &a, float &b) const {
    a = p[0];
    b = x[0];
  }

  __device__ void backward(const float *, const float *p, float h, float g, float &a, float *dx, float *dp) const {
    a = p[0];
    dx[0] = g;
    dp[0] += g * h;
  }
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// h = (1 - sigmoid(z)) h + sigmoid(z) c, with inputs z and c (Feng et al. 2024, section 3.1.3).
struct MinGru : OwnWeights {
  static constexpr int INPUTS = 2, WEIGHTS = 0;

  __device__ void gates(const float *x, const float *, float &a, float &b) const {
    const float z = sigmoid(x[0]);
    a = 1.0f - z;
    b = z * x[1];
  }

  __device__ void backward(const float *x, const float *, float h, float g, float &a, float *dx, float *) const {
    const float z = sigmoid(x[0]);
    a = 1.0f - z;
    dx[0] = g * (x[1] - h) * z * (1.0f - z);
    dx[1] = g * z;
  }
};

// h = f / (f + i + eps) h + i / (f + i + eps) c, with inputs f, i and c, the first two under sigmoids (Feng et al.
// 2024, section 3.2.4).
struct MinLstm : OwnWeights {
  static constexpr int INPUTS = 3, WEIGHTS = 0;
  float eps;

  // The factors of h and of c. They are computed from the gates' logarithms, minus the larger logarithm: the ratio of
  // two closed gates is then finite.
  __device__ void shares(const float *x, float &keep, float &take) const {
    const float log_f = -softplus(-x[0]), log_i = -softplus(-x[1]), most = fmaxf(log_f, log_i);
    const float f = expf(log_f - most), i = expf(log_i - most);
    const float scale = 1.0f / (f + i + expf(logf(eps) - most));
    keep = f * scale;
    take = i * scale;
  }

  __device__ void gates(const float *x, const float *, float &a, float &b) const {
    float take;
    shares(x, a, take);
    b = take * x[2];
  }

  __device__ void backward(const float *x, const float *, float h, float g, float &a, float *dx, float *) const {
    float keep, take;
    shares(x, keep, take);
    a = keep;
    // d keep / d ln f = keep (1 - keep), d take / d ln f = -keep take, and likewise for i.
    dx[0] = g * (h * (1.0f - keep) - x[2] * take) * keep * sigmoid(-x[0]);
    dx[1] = g * (x[2] * (1.0f - take) - h * keep) * take * sigmoid(-x[1]);
    dx[2] = g * take;
  }
};

// a = sigmoid(lambda)^(8 sigmoid(r)), h = a h + sqrt(1 - a^2) sigmoid(i) x, with inputs r, i, x and the weight lambda
// (De et al. 2024, eq. 1 to 4).
struct RgLru {
  static constexpr int INPUTS = 3, WEIGHTS = 1;
  static constexpr float POWER = 8.0f;

  // ln a at r = 1.
  __device__ void parameters(float *p) const { p[0] = -POWER * softplus(-p[0]); }

  __device__ void weights_backward(const float *w, float *d) const { d[0] *= POWER * sigmoid(-w[0]); }

  // a and sqrt(1 - a^2), without cancellation for a near 1.
  __device__ static void decay(float log_a, float &a, float &keep) {
    const float less = expm1f(log_a);
    a = 1.0f + less;
    keep = sqrtf(-less * (2.0f + less));
  }

  __device__ void gates(const float *x, const float *p, float &a, float &b) const {
    float keep;
    decay(sigmoid(x[0]) * p[0], a, keep);
    b = keep * sigmoid(x[1]) * x[2];
  }

  __device__ void backward(const float *x, const float *p, float h, float g, float &a, float *dx, float *dp) const {
    const float r = sigmoid(x[0]), i = sigmoid(x[1]);
    float keep;
    decay(r * p[0], a, keep);
    // d keep / d ln a = -a^2 / keep; at a = 1 keep is 0, and no gradient reaches the decay.
    const float slope = a * a / fmaxf(keep, 1e-18f);
    const float d_log_a = g * (h * a - i * x[2] * slope);
    dx[0] = d_log_a * p[0] * r * (1.0f - r);
    dx[1] = g * keep * x[2] * i * (1.0f - i);
    dx[2] = g * keep * i;
    dp[0] += d_log_a * r;
  }
};

// h = f h + sigmoid(i) silu(v) with f = bound + (1 - bound) sigmoid(f), inputs f, i, v and the weight bound (Qin et al.
// 2023, eq. 3 to 5, on the real line).
struct Hgrn : OwnWeights {
  static constexpr int INPUTS = 3, WEIGHTS = 1;

  __device__ void gates(const float *x, const float *p, float &a, float &b) const {
    a = p[0] + (1.0f - p[0]) * sigmoid(x[0]);
    b = sigmoid(x[1]) * x[2] * sigmoid(x[2]);
  }

  __device__ void backward(const float *x, const float *p, float h, float g, float &a, float *dx, float *dp) const {
    const float f = sigmoid(x[0]), i = sigmoid(x[1]), s = sigmoid(x[2]), df = g * h;
    a = p[0] + (1.0f - p[0]) * f;
    dx[0] = df * (1.0f - p[0]) * f * (1.0f - f);
    dx[1] = g * x[2] * s * i * (1.0f - i);
    dx[2] = g * i * s * (1.0f + x[2] * (1.0f - s));
    dp[0] += df * (1.0f - f);
  }
};

// h' = -rate h + u with rate = exp(a_log), discretised with steps of dt = exp(dt_log), with the input u and the weights
// a_log, dt_log (zero-order hold: Smith et al. 2023, eq. 6): a = exp(-rate dt), h = a h + (1 - a) / rate u.
struct Diagonal {
  static constexpr int INPUTS = 1, WEIGHTS = 2;

  // a and (1 - a) / rate.
  __device__ void parameters(float *p) const {
    const float rate = expf(p[0]), less = expm1f(-rate * expf(p[1]));
    p[0] = 1.0f + less;
    p[1] = -less / rate;
  }

  // Computed in f64: over a short step the second sum is far smaller than its terms.
  __device__ void weights_backward(const float *w, float *d) const {
    const double rate = exp(double(w[0])), dt = exp(double(w[1])), da = d[0], d_scale = d[1];
    const double a = exp(-rate * dt), less = expm1(-rate * dt);
    d[0] = float((-da * dt * a + d_scale * (rate * dt * a + less) / (rate * rate)) * rate);
    d[1] = float((-da * rate * a + d_scale * a) * dt);
  }

  __device__ void gates(const float *x, const float *p, float &a, float &b) const {
    a = p[0];
    b = p[1] * x[0];
  }

  __device__ void backward(const float *x, const float *p, float h, float g, float &a, float *dx, float *dp) const {
    a = p[0];
    dx[0] = g * p[1];
    dp[0] += g * h;
    dp[1] += g * x[0];
  }
};

// Inputs of a cell: the first value of each, and the stride of its frames.
template <typename T, int N> struct Inputs {
  T *first[N];
  long long stride[N];

  __device__ T *at(int n, long long frame, int channel) const { return first[n] + frame * stride[n] + channel; }
};

// Sets inputs from `from` on to `n` inputs that lie side by side in one tensor [b, t, n * c].
template <int N, typename T> __device__ void beside(Inputs<T, N> &inputs, int from, int n, T *projected, int channels) {
  for (int i = 0; i < n; i++) {
    inputs.first[from + i] = projected + i * (long long)channels;
    inputs.stride[from + i] = n * (long long)channels;
  }
}

// Inputs that all lie in one tensor.
template <int N, typename T> __device__ Inputs<T, N> in_one(T *projected, int channels) {
  Inputs<T, N> inputs;
  beside(inputs, 0, N, projected, channels);
  return inputs;
}

// Inputs of which the last has a tensor of its own.
template <int N, typename T> __device__ Inputs<T, N> in_two(T *projected, T *last, int channels) {
  Inputs<T, N> inputs;
  beside(inputs, 0, N - 1, projected, channels);
  beside(inputs, N - 1, 1, last, channels);
  return inputs;
}

// The weights of a cell, [c] each; one spare entry keeps the array from being empty.
template <int K> struct Weights {
  const float *first[K + 1];

  __device__ void read(int channel, float *w) const {
    for (int k = 0; k < K; k++) w[k] = first[k][channel];
  }
};

template <typename Cell, typename T>
__device__ void forward(Cell cell, Inputs<const T, Cell::INPUTS> inputs, Weights<Cell::WEIGHTS> weights,
                        const float *h0, const int *lengths, T *h, int time, int channels) {
  const auto [row, channel] = channel_of_row(channels);
  if (channel >= channels) return;
  const long long first = row * time;
  const int present = lengths ? lengths[row] : time;

  float p[Cell::WEIGHTS + 1];
  weights.read(channel, p);
  cell.parameters(p);
  float state = h0[row * channels + channel];
  for (int t = 0; t < present; t++) {
    float x[Cell::INPUTS], a, b;
    for (int n = 0; n < Cell::INPUTS; n++) x[n] = read(inputs.at(n, first + t, channel));
    cell.gates(x, p, a, b);
    state = a * state + b;
    write(h + (first + t) * channels + channel, state);
  }
  for (int t = present; t < time; t++) write(h + (first + t) * channels + channel, 0.0f);
}

template <typename Cell, typename T>
__device__ void backward(Cell cell, Inputs<const T, Cell::INPUTS> inputs, Weights<Cell::WEIGHTS> weights,
                         const float *h0, const int *lengths, const T *h, const T *dh,
                         Inputs<T, Cell::INPUTS> dinputs, float *dh0, float *parts, int time, int channels) {
  const auto [row, channel] = channel_of_row(channels);
  if (channel >= channels) return;
  const long long first = row * time;
  const int present = lengths ? lengths[row] : time;

  for (int t = time - 1; t >= present; t--)
    for (int n = 0; n < Cell::INPUTS; n++) write(dinputs.at(n, first + t, channel), 0.0f);

  float w[Cell::WEIGHTS + 1], p[Cell::WEIGHTS + 1], dp[Cell::WEIGHTS + 1];
  weights.read(channel, w);
  weights.read(channel, p);
  cell.parameters(p);
  for (int k = 0; k < Cell::WEIGHTS; k++) dp[k] = 0.0f;
  // carry = a_{t+1} g_{t+1}.
  float carry = 0.0f;
  for (int t = present - 1; t >= 0; t--) {
    float x[Cell::INPUTS], dx[Cell::INPUTS], a;
    for (int n = 0; n < Cell::INPUTS; n++) x[n] = read(inputs.at(n, first + t, channel));
    const float before = t > 0 ? read(h + (first + t - 1) * channels + channel) : h0[row * channels + channel];
    const float g = carry + read(dh + (first + t) * channels + channel);
    cell.backward(x, p, before, g, a, dx, dp);
    carry = a * g;
    for (int n = 0; n < Cell::INPUTS; n++) write(dinputs.at(n, first + t, channel), dx[n]);
  }
  dh0[row * channels + channel] = carry;
  cell.weights_backward(w, dp);
  for (int k = 0; k < Cell::WEIGHTS; k++) parts[(row * Cell::WEIGHTS + k) * channels + channel] = dp[k];
}

} // namespace

#define LINEAR_RECURRENCE(T, name)                                                                                    \
  extern "C" __global__ void linear_recurrence_##name##_forward(                                                      \
      const T *__restrict__ a, const T *__restrict__ b, const float *__restrict__ h0,                                 \
      const int *__restrict__ lengths, T *__restrict__ h, int time, int channels) {                                   \
    forward(Plain{}, in_two<2>(a, b, channels), {}, h0, lengths, h, time, channels);                                  \
  }                                                                                                                   \
  extern "C" __global__ void linear_recurrence_##name##_backward(                                                     \
      const T *__restrict__ a, const T *__restrict__ b, const float *__restrict__ h0,                                 \
      const int *__restrict__ lengths, const T *__restrict__ h, const T *__restrict__ dh, T *__restrict__ da,         \
      T *__restrict__ db, float *__restrict__ dh0, int time, int channels) {                                          \
    backward(Plain{}, in_two<2>(a, b, channels), {}, h0, lengths, h, dh, in_two<2>(da, db, channels), dh0, nullptr,   \
             time, channels);                                                                                         \
  }                                                                                                                   \
  extern "C" __global__ void constant_recurrence_##name##_forward(                                                    \
      const T *__restrict__ b, const float *__restrict__ a, const float *__restrict__ h0,                             \
      const int *__restrict__ lengths, T *__restrict__ h, int time, int channels) {                                   \
    forward(Constant{}, in_one<1>(b, channels), {{a}}, h0, lengths, h, time, channels);                               \
  }                                                                                                                   \
  extern "C" __global__ void constant_recurrence_##name##_backward(                                                   \
      const T *__restrict__ b, const float *__restrict__ a, const float *__restrict__ h0,                             \
      const int *__restrict__ lengths, const T *__restrict__ h, const T *__restrict__ dh, T *__restrict__ db,         \
      float *__restrict__ dh0, float *__restrict__ parts, int time, int channels) {                                   \
    backward(Constant{}, in_one<1>(b, channels), {{a}}, h0, lengths, h, dh, in_one<1>(db, channels), dh0, parts,      \
             time, channels);                                                                                         \
  }                                                                                                                   \
  extern "C" __global__ void min_gru_##name##_forward(                                                                \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      T *__restrict__ h, int time, int channels) {                                                                    \
    forward(MinGru{}, in_one<2>(projected, channels), {}, h0, lengths, h, time, channels);                            \
  }                                                                                                                   \
  extern "C" __global__ void min_gru_##name##_backward(                                                               \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      const T *__restrict__ h, const T *__restrict__ dh, T *__restrict__ dprojected, float *__restrict__ dh0,         \
      int time, int channels) {                                                                                       \
    backward(MinGru{}, in_one<2>(projected, channels), {}, h0, lengths, h, dh, in_one<2>(dprojected, channels), dh0,  \
             nullptr, time, channels);                                                                                \
  }                                                                                                                   \
  extern "C" __global__ void min_lstm_##name##_forward(                                                               \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      T *__restrict__ h, int time, int channels, float eps) {                                                         \
    forward(MinLstm{{}, eps}, in_one<3>(projected, channels), {}, h0, lengths, h, time, channels);                    \
  }                                                                                                                   \
  extern "C" __global__ void min_lstm_##name##_backward(                                                              \
      const T *__restrict__ projected, const float *__restrict__ h0, const int *__restrict__ lengths,                 \
      const T *__restrict__ h, const T *__restrict__ dh, T *__restrict__ dprojected, float *__restrict__ dh0,         \
      int time, int channels, float eps) {                                                                            \
    backward(MinLstm{{}, eps}, in_one<3>(projected, channels), {}, h0, lengths, h, dh, in_one<3>(dprojected, channels),\
             dh0, nullptr, time, channels);                                                                           \
  }                                                                                                                   \
  extern "C" __global__ void rg_lru_##name##_forward(                                                                 \
      const T *__restrict__ gates, const T *__restrict__ x, const float *__restrict__ lambda,                         \
      const float *__restrict__ h0, const int *__restrict__ lengths, T *__restrict__ h, int time, int channels) {     \
    forward(RgLru{}, in_two<3>(gates, x, channels), {{lambda}}, h0, lengths, h, time, channels);                      \
  }                                                                                                                   \
  extern "C" __global__ void rg_lru_##name##_backward(                                                                \
      const T *__restrict__ gates, const T *__restrict__ x, const float *__restrict__ lambda,                         \
      const float *__restrict__ h0, const int *__restrict__ lengths, const T *__restrict__ h,                         \
      const T *__restrict__ dh, T *__restrict__ dgates, T *__restrict__ dx, float *__restrict__ dh0,                  \
      float *__restrict__ parts, int time, int channels) {                                                            \
    backward(RgLru{}, in_two<3>(gates, x, channels), {{lambda}}, h0, lengths, h, dh,                                  \
             in_two<3>(dgates, dx, channels), dh0, parts, time, channels);                                            \
  }                                                                                                                   \
  extern "C" __global__ void hgrn_##name##_forward(                                                                   \
      const T *__restrict__ projected, const float *__restrict__ bound, const float *__restrict__ h0,                 \
      const int *__restrict__ lengths, T *__restrict__ h, int time, int channels) {                                   \
    forward(Hgrn{}, in_one<3>(projected, channels), {{bound}}, h0, lengths, h, time, channels);                       \
  }                                                                                                                   \
  extern "C" __global__ void hgrn_##name##_backward(                                                                  \
      const T *__restrict__ projected, const float *__restrict__ bound, const float *__restrict__ h0,                 \
      const int *__restrict__ lengths, const T *__restrict__ h, const T *__restrict__ dh,                             \
      T *__restrict__ dprojected, float *__restrict__ dh0, float *__restrict__ parts, int time, int channels) {       \
    backward(Hgrn{}, in_one<3>(projected, channels), {{bound}}, h0, lengths, h, dh, in_one<3>(dprojected, channels),  \
             dh0, parts, time, channels);                                                                             \
  }                                                                                                                   \
  extern "C" __global__ void diagonal_ssm_##name##_forward(                                                           \
      const T *__restrict__ u, const float *__restrict__ a_log, const float *__restrict__ dt_log,                     \
      const float *__restrict__ h0, const int *__restrict__ lengths, T *__restrict__ h, int time, int channels) {     \
    forward(Diagonal{}, in_one<1>(u, channels), {{a_log, dt_log}}, h0, lengths, h, time, channels);                   \
  }                                                                                                                   \
  extern "C" __global__ void diagonal_ssm_##name##_backward(                                                          \
      const T *__restrict__ u, const float *__restrict__ a_log, const float *__restrict__ dt_log,                     \
      const float *__restrict__ h0, const int *__restrict__ lengths, const T *__restrict__ h,                         \
      const T *__restrict__ dh, T *__restrict__ du, float *__restrict__ dh0, float *__restrict__ parts, int time,     \
      int channels) {                                                                                                 \
    backward(Diagonal{}, in_one<1>(u, channels), {{a_log, dt_log}}, h0, lengths, h, dh, in_one<1>(du, channels),      \
             dh0, parts, time, channels);                                                                             \
  }

LINEAR_RECURRENCE(float, f32)
LINEAR_RECURRENCE(__nv_bfloat16, bf16)
