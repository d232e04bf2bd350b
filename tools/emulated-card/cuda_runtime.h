// The types and functions that nvcc offers without a header.
#pragma once
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <type_traits>

// The target of the kernels' PTX.
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 800

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Memory of a block. Blocks run one after another, so one copy is enough; blocks that wait for each other have only
// dynamic shared memory. For that, declared as `extern __shared__`, see bin/emulated-card.
#define __shared__ static

// Local to a library, so that two libraries in a process share nothing.
#define HIDDEN __attribute__((visibility("hidden")))

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

HIDDEN inline dim3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulate {
HIDDEN inline char *dynamic_shared;
}

struct alignas(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename A, typename B>
concept Numbers = std::is_arithmetic_v<A> && std::is_arithmetic_v<B>;

template <typename A, typename B>
  requires Numbers<A, B>
constexpr auto min(A a, B b) -> std::common_type_t<A, B> {
  return b < a ? b : a;
}
template <typename A, typename B>
  requires Numbers<A, B>
constexpr auto max(A a, B b) -> std::common_type_t<A, B> {
  return a < b ? b : a;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
#if !__GLIBC_PREREQ(2, 41)
inline double cospi(double x) { return std::cos(M_PI * x); }
#endif
inline double normcdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }
inline float normcdff(float x) { return float(normcdf(x)); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
namespace emulate {
// A number that no compiler fuses into a later or earlier operation.
template <typename T> T rounded(T x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}
} // namespace emulate

inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fadd_rn(float x, float y) { return emulate::rounded(x) + emulate::rounded(y); }
inline float __fsub_rn(float x, float y) { return emulate::rounded(x) - emulate::rounded(y); }
inline float __fmul_rn(float x, float y) { return emulate::rounded(x * y); }
inline double __dadd_rn(double x, double y) { return emulate::rounded(x) + emulate::rounded(y); }
inline double __dsub_rn(double x, double y) { return emulate::rounded(x) - emulate::rounded(y); }
inline double __dmul_rn(double x, double y) { return emulate::rounded(x * y); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(unsigned(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
inline unsigned __brev(unsigned v) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; i++) reversed |= (v >> i & 1) << (31 - i);
  return reversed;
}

namespace emulate {
template <typename To, typename From> To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
} // namespace emulate

inline float __uint_as_float(unsigned v) { return emulate::bits_of<float>(v); }
inline float __int_as_float(int v) { return emulate::bits_of<float>(v); }
inline unsigned __float_as_uint(float v) { return emulate::bits_of<unsigned>(v); }
inline int __float_as_int(float v) { return emulate::bits_of<int>(v); }
inline double __longlong_as_double(long long v) { return emulate::bits_of<double>(v); }
inline long long __double_as_longlong(double v) { return emulate::bits_of<long long>(v); }

template <typename T> T __ldg(const T *p) { return *p; }
template <typename T> T __ldcs(const T *p) { return *p; }
template <typename T> T __ldcg(const T *p) { return *p; }
template <typename T> void __stcs(T *p, T v) { *p = v; }
inline void __threadfence() {}
inline void __threadfence_block() {}

// Threads run one at a time, so plain operations are atomic.
template <typename T> T atomicExch(T *p, std::type_identity_t<T> v) {
  const T old = *p;
  *p = v;
  return old;
}
template <typename T> T atomicAdd(T *p, std::type_identity_t<T> v) { return atomicExch(p, T(*p + v)); }
template <typename T> T atomicSub(T *p, std::type_identity_t<T> v) { return atomicExch(p, T(*p - v)); }
template <typename T> T atomicMax(T *p, std::type_identity_t<T> v) { return atomicExch(p, *p < v ? v : *p); }
template <typename T> T atomicMin(T *p, std::type_identity_t<T> v) { return atomicExch(p, v < *p ? v : *p); }
template <typename T> T atomicOr(T *p, std::type_identity_t<T> v) { return atomicExch(p, T(*p | v)); }
template <typename T> T atomicAnd(T *p, std::type_identity_t<T> v) { return atomicExch(p, T(*p & v)); }
template <typename T> T atomicCAS(T *p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return atomicExch(p, *p == expected ? v : *p);
}
