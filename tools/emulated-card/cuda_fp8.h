// The part of CUDA's header of this name that kernels use.
#pragma once
#include "cuda_fp16.h"

enum __nv_fp8_interpretation_t { __NV_E4M3 };

namespace emulate {

// A sign, four bits of exponent and three of mantissa. There is no infinity; the largest magnitude is NaN.
inline float e4m3_value(unsigned char bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float v = exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) v = NAN;
  return bits & 0x80 ? -v : v;
}

// Rounds to nearest, ties to even, and saturates at the largest number.
inline unsigned char e4m3_round(float f) {
  if (f != f) return 0x7f;
  const unsigned char sign = std::signbit(f) ? 0x80 : 0;
  f = std::fabs(f);
  if (f >= 448.0f) return sign | 0x7e;
  unsigned char below = 0;
  for (unsigned char step = 0x40; step > 0; step /= 2)
    if (below + step < 0x7f && e4m3_value(below + step) <= f) below += step;
  const float low = f - e4m3_value(below), high = e4m3_value(below + 1) - f;
  const bool up = high < low || (high == low && below % 2 == 1);
  return sign | (up ? below + 1 : below);
}

} // namespace emulate

struct __nv_fp8_e4m3 {
  unsigned char __x;

  __nv_fp8_e4m3() = default;
  template <typename A>
    requires std::is_convertible_v<A, float>
  explicit __nv_fp8_e4m3(A v) : __x(emulate::e4m3_round(float(v))) {}
};

inline __half __nv_cvt_fp8_to_halfraw(unsigned char bits, __nv_fp8_interpretation_t) {
  return emulate::e4m3_value(bits);
}
