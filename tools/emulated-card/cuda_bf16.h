// The part of CUDA's header of this name that kernels use.
#pragma once
#include "sixteen_bits.h"

namespace emulate {

struct Bfloat {
  static float value(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

  // Rounds to nearest, ties to even. NaN stays NaN.
  static uint16_t round(float f) {
    const uint32_t bits = __float_as_uint(f);
    if (f != f) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

} // namespace emulate

using __nv_bfloat16 = emulate::Sixteen<emulate::Bfloat>;
using __nv_bfloat162 = emulate::SixteenTwice<emulate::Bfloat>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float f) { return f; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return f; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline float __low2float(__nv_bfloat162 v) { return v.x; }
inline float __high2float(__nv_bfloat162 v) { return v.y; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16::of_bits(bits); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
