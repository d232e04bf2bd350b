// The functions of libcurand.so.10 that candle calls. The numbers of a seed differ from NVIDIA's; their distributions
// agree.
#include "card.h"
#include <cmath>

#define CURAND extern "C" __attribute__((visibility("default")))

namespace {

// Values of curandStatus_t.
enum { SUCCESS = 0, LENGTH_NOT_MULTIPLE = 105 };

struct Generator {
  void *stream = nullptr;
  uint64_t seed = 0, offset = 0;
};

// SplitMix64 (Steele et al. 2014) at a place of the sequence.
uint64_t bits(uint64_t seed, uint64_t place) {
  uint64_t v = seed * 0x9e3779b97f4a7c15 + (place + 1) * 0xd1342543de82ef95;
  v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9;
  v = (v ^ v >> 27) * 0x94d049bb133111eb;
  return v ^ v >> 31;
}

// A uniform number in (0, 1].
double uniform(uint64_t seed, uint64_t place) { return double((bits(seed, place) >> 11) + 1) * 0x1p-53; }

// A standard normal number (Box & Muller 1958).
double normal(uint64_t seed, uint64_t place) {
  const uint64_t pair = place & ~uint64_t(1);
  const double radius = std::sqrt(-2 * std::log(uniform(seed, pair))), angle = 2 * M_PI * uniform(seed, pair + 1);
  return radius * (place == pair ? std::cos(angle) : std::sin(angle));
}

template <typename T, typename Number> int generate(void *handle, T *to, size_t count, Number number) {
  Generator &generator = *static_cast<Generator *>(handle);
  const uint64_t seed = generator.seed, first = generator.offset;
  generator.offset += count;
  card::add(generator.stream, "numbers of cuRAND", [=] {
    for (size_t i = 0; i < count; i++) to[i] = T(number(seed, first + i));
  });
  return SUCCESS;
}

template <typename T> int uniforms(void *handle, T *to, size_t count) {
  // Rounded to f32 all numbers are still above 0.
  return generate(handle, to, count, uniform);
}

template <typename T> int normals(void *handle, T *to, size_t count, T mean, T deviation) {
  if (count % 2 != 0) return LENGTH_NOT_MULTIPLE;
  return generate(handle, to, count,
                  [=](uint64_t seed, uint64_t place) { return mean + deviation * normal(seed, place); });
}

} // namespace

CURAND int curandGetVersion(int *version) { return *version = 10400, SUCCESS; }
CURAND int curandCreateGenerator(void **handle, int) { return *handle = new Generator, SUCCESS; }
CURAND int curandDestroyGenerator(void *handle) { return delete static_cast<Generator *>(handle), SUCCESS; }
CURAND int curandSetStream(void *handle, void *stream) {
  return static_cast<Generator *>(handle)->stream = stream, SUCCESS;
}
CURAND int curandSetPseudoRandomGeneratorSeed(void *handle, unsigned long long seed) {
  return static_cast<Generator *>(handle)->seed = seed, SUCCESS;
}
CURAND int curandSetGeneratorOffset(void *handle, unsigned long long offset) {
  return static_cast<Generator *>(handle)->offset = offset, SUCCESS;
}
CURAND int curandGenerateUniform(void *handle, float *to, size_t count) { return uniforms(handle, to, count); }
CURAND int curandGenerateUniformDouble(void *handle, double *to, size_t count) { return uniforms(handle, to, count); }
CURAND int curandGenerateNormal(void *handle, float *to, size_t count, float mean, float deviation) {
  return normals(handle, to, count, mean, deviation);
}
CURAND int curandGenerateNormalDouble(void *handle, double *to, size_t count, double mean, double deviation) {
  return normals(handle, to, count, mean, deviation);
}
