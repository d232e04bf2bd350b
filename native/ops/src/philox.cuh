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
