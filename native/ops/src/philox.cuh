// Philox 4x32-10 (Salmon et al. 2011), with the same words as `native/tensor/src/rng.rs`.
#pragma once

// Four random words.
struct Words {
  unsigned of[4];
};

__device__ inline Words philox(Words counter, unsigned key0, unsigned key1) {
  for (int round = 0; round < 10; round++) {
    const unsigned long long a = 0xD2511F53ull * counter.of[0], b = 0xCD9E8D57ull * counter.of[2];
    counter = {{unsigned(b >> 32) ^ counter.of[1] ^ key0, unsigned(b), unsigned(a >> 32) ^ counter.of[3] ^ key1,
                unsigned(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// A number in [0, 1), from the upper 24 bits.
__device__ inline float unit(unsigned word) { return float(word >> 8) / 16777216.0f; }

// Number `index` of a stream: uniform in [0, 1).
__device__ inline float uniform_at(unsigned index, unsigned key0, unsigned key1, unsigned step0, unsigned step1) {
  const Words words = philox({{index / 4, 0, step0, step1}}, key0, key1);
  // Selected without an array index, which would put the words in local memory.
  const unsigned lower = index % 2 == 0 ? words.of[0] : words.of[1];
  const unsigned upper = index % 2 == 0 ? words.of[2] : words.of[3];
  return unit(index % 4 < 2 ? lower : upper);
}

// Standard normal number `index` + 2^32 of a stream, by the Box-Muller transform.
__device__ inline float normal_at(unsigned index, unsigned key0, unsigned key1, unsigned step0, unsigned step1) {
  const Words words = philox({{index, 1, step0, step1}}, key0, key1);
  const double radius = sqrt(-2.0 * log(double(1.0f - unit(words.of[0]))));
  return float(radius * cospi(2.0 * words.of[1] / 4294967296.0));
}
