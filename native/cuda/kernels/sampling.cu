// From logits to a choice: `native/core/src/sampling.rs` on a card, by the same random numbers (Philox 4x32-10, Salmon
// et al. 2011).
//
// logits [n, width] of a head are of type T; all labels of a row are u32 [n, labels], those of the head from `first`
// on; a row's generator is four words, key and step. What the next head reads of the choice, `flat` [n, width], is of
// type T: bits as numbers, a class one-hot. A thread for each row.

#include "numbers.cuh"
#include "philox.cuh"

namespace {

// Stands for no previous label.
constexpr unsigned NONE = 0xffff;

// How a choice is drawn.
struct Sampling {
  float temperature, press_threshold, release_threshold;
  int deterministic, deterministic_buttons;
};

// Of a row.
struct Generator {
  unsigned key0, key1, step0, step1;

  __device__ Generator(const unsigned *words) : key0(words[0]), key1(words[1]), step0(words[2]), step1(words[3]) {}

  __device__ float uniform(unsigned index) const {
    const Words words = philox({{index / 4, 0, step0, step1}}, key0, key1);
    // Chosen one by one: an index would put them in local memory.
    const unsigned lower = index % 2 == 0 ? words.of[0] : words.of[1];
    const unsigned upper = index % 2 == 0 ? words.of[2] : words.of[3];
    return unit(index % 4 < 2 ? lower : upper);
  }
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// A bit for each logit; `held` are those of before, or nothing.
template <typename T>
__device__ void bits(Sampling sampling, const T *logits, const unsigned *held, Generator generator, unsigned first,
                     unsigned *choice, T *flat, int width) {
  const bool known = held && held[0] != NONE;
  for (int i = 0; i < width; i++) {
    const float logit = read(logits + i);
    bool pressed;
    if (sampling.deterministic || sampling.deterministic_buttons) {
      const bool holds = known && held[i] == 1;
      pressed = sigmoid(logit) > (holds ? sampling.release_threshold : sampling.press_threshold);
    } else {
      pressed = generator.uniform(first + i) < sigmoid(logit / sampling.temperature);
    }
    choice[i] = pressed;
    write(flat + i, pressed ? 1.0f : 0.0f);
  }
}

template <typename T> __device__ int most_likely(const T *logits, int width) {
  int best = 0;
  for (int i = 1; i < width; i++)
    if (read(logits + i) > read(logits + best)) best = i;
  return best;
}

// The class at which the cumulative probability passes a number.
template <typename T> __device__ int drawn(float temperature, const T *logits, float uniform, int width) {
  const int best = most_likely(logits, width);
  const float top = read(logits + best);
  double total = 0.0;
  for (int i = 0; i < width; i++) total += expf((read(logits + i) - top) / temperature);
  double left = uniform * total;
  for (int i = 0; i < width; i++) {
    left -= expf((read(logits + i) - top) / temperature);
    if (left < 0.0) return i;
  }
  return best;
}

template <typename T>
__device__ void sample(Sampling sampling, const T *logits, const unsigned *previous, const unsigned *generators,
                       unsigned *choices, T *flat, int n, int width, int labels, int first, int classes) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  const Generator generator(generators + 4 * row);
  logits += row * (long long)width;
  flat += row * (long long)width;
  unsigned *choice = choices + row * (long long)labels + first;
  if (!classes) {
    const unsigned *held = previous ? previous + row * (long long)labels + first : nullptr;
    bits(sampling, logits, held, generator, first, choice, flat, width);
    return;
  }
  const int own = sampling.deterministic ? most_likely(logits, width)
                                         : drawn(sampling.temperature, logits, generator.uniform(first), width);
  *choice = own;
  for (int i = 0; i < width; i++) write(flat + i, i == own ? 1.0f : 0.0f);
}

} // namespace

#define SAMPLE(name, T)                                                                                               \
  extern "C" __global__ void sample_##name(                                                                           \
      const T *__restrict__ logits, const unsigned *__restrict__ previous, const unsigned *__restrict__ generators,   \
      unsigned *__restrict__ choices, T *__restrict__ flat, int n, int width, int labels, int first, int classes,     \
      float temperature, float press_threshold, float release_threshold, int deterministic,                           \
      int deterministic_buttons) {                                                                                    \
    const Sampling sampling{temperature, press_threshold, release_threshold, deterministic, deterministic_buttons};   \
    sample(sampling, logits, previous, generators, choices, flat, n, width, labels, first, classes);                  \
  }

SAMPLE(f32, float)
SAMPLE(bf16, __nv_bfloat16)
