// The part of CUDA's header of this name that kernels use.
#pragma once
#include "sixteen_bits.h"

namespace emulate {

struct Half {
  static float value(uint16_t bits) { return float(bits_of<_Float16>(bits)); }
  static uint16_t round(float f) { return bits_of<uint16_t>(_Float16(f)); }
};

} // namespace emulate

using __half = emulate::Sixteen<emulate::Half>;
using __half2 = emulate::SixteenTwice<emulate::Half>;
using half = __half;
using half2 = __half2;

inline float __half2float(__half v) { return v; }
inline __half __float2half(float f) { return f; }
inline __half __float2half_rn(float f) { return f; }
inline __half __ushort_as_half(unsigned short bits) { return __half::of_bits(bits); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
