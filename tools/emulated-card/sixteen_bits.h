// Numbers of 16 bits. Each operation is done in f32 and rounded.
#pragma once
#include "cuda_runtime.h"
#include <concepts>

namespace emulate {

template <typename Format> struct Sixteen {
  uint16_t bits;

  Sixteen() = default;
  template <typename A>
    requires std::is_arithmetic_v<A>
  Sixteen(A v) : bits(Format::round(float(v))) {}
  operator float() const { return Format::value(bits); }

  static Sixteen of_bits(uint16_t bits) {
    Sixteen v;
    v.bits = bits;
    return v;
  }

  friend Sixteen operator+(Sixteen a, Sixteen b) { return float(a) + float(b); }
  friend Sixteen operator-(Sixteen a, Sixteen b) { return float(a) - float(b); }
  friend Sixteen operator*(Sixteen a, Sixteen b) { return float(a) * float(b); }
  friend Sixteen operator/(Sixteen a, Sixteen b) { return float(a) / float(b); }
  friend Sixteen operator-(Sixteen a) { return of_bits(a.bits ^ 0x8000); }
  friend Sixteen &operator+=(Sixteen &a, Sixteen b) { return a = a + b; }
  friend Sixteen &operator-=(Sixteen &a, Sixteen b) { return a = a - b; }
  friend Sixteen &operator*=(Sixteen &a, Sixteen b) { return a = a * b; }
  friend Sixteen &operator/=(Sixteen &a, Sixteen b) { return a = a / b; }
  friend bool operator==(Sixteen a, Sixteen b) { return float(a) == float(b); }
  friend bool operator!=(Sixteen a, Sixteen b) { return float(a) != float(b); }
  friend bool operator<(Sixteen a, Sixteen b) { return float(a) < float(b); }
  friend bool operator<=(Sixteen a, Sixteen b) { return float(a) <= float(b); }
  friend bool operator>(Sixteen a, Sixteen b) { return float(a) > float(b); }
  friend bool operator>=(Sixteen a, Sixteen b) { return float(a) >= float(b); }
};

// A pair of numbers.
template <typename Format> struct alignas(4) SixteenTwice {
  Sixteen<Format> x, y;
};

} // namespace emulate

template <typename F> bool __hisnan(emulate::Sixteen<F> a) { return std::isnan(float(a)); }
template <typename F> emulate::Sixteen<F> __habs(emulate::Sixteen<F> a) { return std::fabs(float(a)); }
template <typename F> emulate::Sixteen<F> __hmax(emulate::Sixteen<F> a, emulate::Sixteen<F> b) {
  return std::fmax(float(a), float(b));
}
template <typename F> emulate::Sixteen<F> __hmin(emulate::Sixteen<F> a, emulate::Sixteen<F> b) {
  return std::fmin(float(a), float(b));
}
template <typename F> emulate::Sixteen<F> __hmax_nan(emulate::Sixteen<F> a, emulate::Sixteen<F> b) {
  return __hisnan(a) ? a : __hisnan(b) ? b : __hmax(a, b);
}
template <typename F> emulate::Sixteen<F> __hmin_nan(emulate::Sixteen<F> a, emulate::Sixteen<F> b) {
  return __hisnan(a) ? a : __hisnan(b) ? b : __hmin(a, b);
}
template <typename F> emulate::Sixteen<F> hsqrt(emulate::Sixteen<F> a) { return std::sqrt(float(a)); }
template <typename F> emulate::Sixteen<F> hexp(emulate::Sixteen<F> a) { return std::exp(float(a)); }
template <typename F> emulate::Sixteen<F> hlog(emulate::Sixteen<F> a) { return std::log(float(a)); }
template <typename F> emulate::Sixteen<F> hcos(emulate::Sixteen<F> a) { return std::cos(float(a)); }
template <typename F> emulate::Sixteen<F> hsin(emulate::Sixteen<F> a) { return std::sin(float(a)); }

template <typename F> emulate::SixteenTwice<F> __hadd2(emulate::SixteenTwice<F> a, emulate::SixteenTwice<F> b) {
  return {a.x + b.x, a.y + b.y};
}
template <typename F> emulate::SixteenTwice<F> __hsub2(emulate::SixteenTwice<F> a, emulate::SixteenTwice<F> b) {
  return {a.x - b.x, a.y - b.y};
}
template <typename F> emulate::SixteenTwice<F> __hmul2(emulate::SixteenTwice<F> a, emulate::SixteenTwice<F> b) {
  return {a.x * b.x, a.y * b.y};
}
