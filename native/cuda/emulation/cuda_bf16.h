// What kernels use of CUDA's header of this name.
#pragma once
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 v) {
  uint32_t bits = uint32_t(v.bits) << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

// To the nearest, halves to even; a NaN stays one.
inline __nv_bfloat16 __float2bfloat16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (f != f) return {uint16_t(bits >> 16 | 0x40)};
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
