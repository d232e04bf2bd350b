// Populations on a card. A thread is an individual: it reads its own column of each row, so that neighbouring
// threads read neighbouring addresses.
//
//   weights  [weights, stride] f32, bf16 or int8     biases, scales  [rows, stride] f32; scales of int8 only
//
// `stride` is the count, rounded up. `layers`, `heads` and `measured` are the structs below, as words of 64 bits.
//
// A thread has a column of units: numbers of the observation, then of each layer, then the labels that were chosen. The
// units of a block are in shared memory; those of a large network are in `scratch` [units, stride].

#include "activations.cuh"
#include "acrobot.cuh"
#include "cart_pole.cuh"
#include "duel.cuh"
#include "mountain_car.cuh"
#include "pendulum.cuh"
#include "rules.cuh"
#include <cuda_bf16.h>

namespace {

// Threads of a block, and units of each in shared memory. Small blocks spread few individuals over all multiprocessors.
constexpr int THREADS = 32, SHARED_UNITS = 128;
// Outputs that are computed together, so that each unit is read once for all of them.
constexpr int OUTPUTS = 4;
// Types of stored weights, as in `image.rs`.
constexpr int F32 = 0, BF16 = 1;
// Kinds of heads.
constexpr int CLASSES = 1;
// Kinds of measures.
constexpr int FINAL = 0, OBSERVATION = 1, CHOSEN = 2;

// A dense layer: rows of units that it reads and writes, its first weight and its first row of all rows.
struct Layer {
  long long from, to, inputs, outputs, weights, biases, activation;
};

// A head: the first unit of its logits, its first label, and its number of classes or of numbers. Numbers have bounds.
struct Head {
  long long kind, logits, labels, count;
  float low, high;
};

// A measure, and the index of its number.
struct Measured {
  long long kind, at;
};

struct Genomes {
  const void *weights;
  const float *biases, *scales;
  const Layer *layers;
  long long count, stride;
  int storage, num_layers;
};

struct Game {
  const Head *heads;
  const Measured *measured;
  const Rules *rules;
  double *returns, *measures;
  unsigned *decisions;
  int num_heads, num_measured, labels, alike;
  unsigned episodes;
};

// The units of a thread.
struct Units {
  float *of;
  long long stride;

  __device__ float &operator[](long long row) const { return of[row * stride]; }
};

__device__ inline float wide(float v) { return v; }
__device__ inline float wide(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float wide(signed char v) { return float(v); }

// Writes N outputs of a layer, before its activation. Sums are in the order of the CPU's.
template <typename C, int N>
__device__ void apply(const Genomes &of, const Layer &layer, long long first, long long at, const Units &units) {
  constexpr bool SCALED = sizeof(C) == 1;
  const C *weights = static_cast<const C *>(of.weights) + (layer.weights + first * layer.inputs) * of.stride + at;
  const long long row = (layer.biases + first) * of.stride + at;
  float sums[N];
#pragma unroll
  for (int n = 0; n < N; n++) sums[n] = SCALED ? 0.0f : of.biases[row + n * of.stride];
  for (long long i = 0; i < layer.inputs; i++) {
    const float x = units[layer.from + i];
#pragma unroll
    for (int n = 0; n < N; n++) sums[n] = fmaf(wide(weights[(n * layer.inputs + i) * of.stride]), x, sums[n]);
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
    if (SCALED) sums[n] = fmaf(sums[n], of.scales[row + n * of.stride], of.biases[row + n * of.stride]);
    units[layer.to + first + n] = sums[n];
  }
}

template <typename C> __device__ void apply(const Genomes &of, const Layer &layer, long long at, const Units &units) {
  long long row = 0;
  for (; row + OUTPUTS <= layer.outputs; row += OUTPUTS) apply<C, OUTPUTS>(of, layer, row, at, units);
  for (; row < layer.outputs; row++) apply<C, 1>(of, layer, row, at, units);
}

// Computes all units of an individual from its observation.
__device__ void forward(const Genomes &of, long long at, const Units &units) {
  for (int l = 0; l < of.num_layers; l++) {
    const Layer layer = of.layers[l];
    if (of.storage == F32) apply<float>(of, layer, at, units);
    else if (of.storage == BF16) apply<__nv_bfloat16>(of, layer, at, units);
    else apply<signed char>(of, layer, at, units);
    if (layer.activation == NONE) continue;
    for (long long i = layer.to; i < layer.to + layer.outputs; i++) units[i] = value(int(layer.activation), units[i]);
  }
}

// A number within the bounds of a head.
__device__ inline float squashed(float mean, const Head &head) {
  const double value = head.low + (double(head.high) - head.low) * 0.5 * (tanh(double(mean)) + 1.0);
  // A number that is not finite counts as 0.
  return value - value == 0.0 ? clamped(float(value), head.low, head.high) : 0.0f;
}

// Writes the likeliest labels. Of equally likely classes the first is chosen.
__device__ inline void choose(const Game &game, const Units &units) {
  for (int h = 0; h < game.num_heads; h++) {
    const Head head = game.heads[h];
    const long long label = game.labels + head.labels;
    if (head.kind == CLASSES) {
      float best = units[head.logits];
      int chosen = 0;
      for (int i = 1; i < head.count; i++) {
        const float logit = units[head.logits + i];
        if (logit > best) {
          best = logit;
          chosen = i;
        }
      }
      units[label] = float(chosen);
    } else {
      for (int i = 0; i < head.count; i++) units[label + i] = squashed(units[head.logits + i], head);
    }
  }
}

// Writes a stacked observation: the last ones, then that of `state`; or, with `fill`, copies of the latter.
template <typename W> __device__ void show(const float *state, const Units &units, int stack, bool fill) {
  float seen[W::SHOWN];
  W::observe(state, 0, seen);
  for (int slot = 0; slot + 1 < stack; slot++)
#pragma unroll
    for (int i = 0; i < W::SHOWN; i++)
      units[slot * W::SHOWN + i] = fill ? seen[i] : float(units[(slot + 1) * W::SHOWN + i]);
#pragma unroll
  for (int i = 0; i < W::SHOWN; i++) units[(stack - 1) * W::SHOWN + i] = seen[i];
}

// Adds a number of each measure of this kind, from this row of units on.
__device__ inline void note(const Genomes &of, const Game &game, long long at, int kind, long long row,
                            const Units &units) {
  for (int m = 0; m < game.num_measured; m++) {
    const Measured measured = game.measured[m];
    if (measured.kind == kind) game.measures[m * of.stride + at] += units[row + measured.at];
  }
}

// All episodes of an individual, one after the other, by the rules of `episodes.rs`.
template <typename W> __device__ void play_all(const Genomes &of, const Game &game, long long at, const Units &units) {
  const Rules &rules = *game.rules;
  const unsigned long long index = rules.first + (game.alike ? 0 : at);
  constexpr int LABELS = W::INPUT / W::SEATS;
  float state[W::STATE];
  unsigned steps = 0, begun = 1, left = game.episodes, decisions = 0;
  double sum = 0.0;
  for (int m = 0; m < game.num_measured; m++) game.measures[m * of.stride + at] = 0.0;
  W::start(words_of(rules.starts, index, 0), state);
  show<W>(state, units, rules.stack, true);
  while (left > 0) {
    forward(of, at, units);
    choose(game, units);
    note(of, game, at, OBSERVATION, 0, units);
    note(of, game, at, CHOSEN, game.labels, units);
    float input[W::INPUT];
#pragma unroll
    for (int i = 0; i < LABELS; i++) input[i] = units[game.labels + i];
    play<W>(rules.opponent, state, rules, index, (unsigned long long)begun << 32 | steps, input + W::INPUT - LABELS);
    float reward = 0.0f;
    bool ended = false;
    for (unsigned turn = 0; turn < rules.repeat && !ended; turn++) {
      float paid[W::TERMS], own = 0.0f;
      const bool terminated = W::step(state, input, float(rules.limit), paid);
#pragma unroll
      for (int i = 0; i < W::TERMS; i++) own += rules.weights[i] * paid[i];
      reward += own;
      ended = terminated || ++steps >= rules.limit;
    }
    sum += reward;
    decisions++;
    show<W>(state, units, rules.stack, false);
    if (!ended) continue;
    left--;
    note(of, game, at, FINAL, 0, units);
    W::start(words_of(rules.starts, index, begun++), state);
    steps = 0;
    show<W>(state, units, rules.stack, true);
  }
  game.returns[at] = sum / game.episodes;
  game.decisions[at] = decisions;
  for (int m = 0; m < game.num_measured; m++) {
    const long long kind = game.measured[m].kind;
    double &measure = game.measures[m * of.stride + at];
    if (kind == FINAL) measure /= game.episodes;
    else if (kind == OBSERVATION || kind == CHOSEN) measure /= decisions;
    else measure = double(decisions) / game.episodes;
  }
}

// The units of this thread.
__device__ inline Units units_of(float *shared, float *scratch, long long at, long long stride) {
  return scratch ? Units{scratch + at, stride} : Units{shared + threadIdx.x, THREADS};
}

template <typename W> __device__ void play_all(const Genomes &of, const Game &game, float *scratch) {
  __shared__ float shared[SHARED_UNITS * THREADS];
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (at >= of.count) return;
  play_all<W>(of, game, at, units_of(shared, scratch, at, of.stride));
}

} // namespace

// Writes logits [outputs, stride], the last layers' units from `first` on. `observations` [inputs] is that of all
// individuals, or with `each` [inputs, stride] that of each. The grid has a thread for each individual, also below.
extern "C" __global__ void __launch_bounds__(THREADS)
    population_forward(const void *weights, const float *biases, const float *scales, const Layer *layers,
                       float *scratch, const float *observations, float *logits, long long count, long long stride,
                       int storage, int num_layers, int inputs, int each, int first, int outputs) {
  __shared__ float shared[SHARED_UNITS * THREADS];
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (at >= count) return;
  const Genomes of = {weights, biases, scales, layers, count, stride, storage, num_layers};
  const Units units = units_of(shared, scratch, at, stride);
  for (int i = 0; i < inputs; i++) units[i] = observations[each ? i * stride + at : i];
  forward(of, at, units);
  for (int i = 0; i < outputs; i++) logits[i * stride + at] = units[first + i];
}

// Plays `episodes` episodes of each individual. Writes mean returns [count] and decisions [count], and measures
// [num_measured, stride]. `labels` is the first unit of the labels. With `alike` all begin in the same states.
#define WORLD(name, W)                                                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS) population_episodes_##name(                                    \
      const void *weights, const float *biases, const float *scales, const Layer *layers, float *scratch,              \
      const Head *heads, const Measured *measured, const Rules *rules, double *returns, double *measures,              \
      unsigned *decisions, long long count, long long stride, int storage, int num_layers, int num_heads,              \
      int num_measured, int labels, int alike, int episodes) {                                                         \
    play_all<W>({weights, biases, scales, layers, count, stride, storage, num_layers},                                 \
                {heads, measured, rules, returns, measures, decisions, num_heads, num_measured, labels, alike,         \
                 unsigned(episodes)},                                                                                  \
                scratch);                                                                                              \
  }

WORLD(cart_pole, CartPole)
WORLD(cart_pole_velocity_less, VelocityLess)
WORLD(mountain_car, MountainCar)
WORLD(mountain_car_continuous, MountainCarContinuous)
WORLD(acrobot, Acrobot)
WORLD(pendulum, Pendulum)
WORLD(duel, Duel)
