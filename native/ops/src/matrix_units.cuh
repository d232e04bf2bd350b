// Products on the matrix units of a warp (tensor cores): D [16, 8] += A [16, k] B [k, 8], where k is what fills LINE bytes
// of a row. A thread has 16 of these bytes: of two rows of A, of_row and of_row + 8, and of one column of B, of_row. Sums
// over k have no order, so both sides may take their numbers as they lie in memory.
//
// An emulated product has the same parts in each thread (tools/emulated-card).
#pragma once
#include <cuda_bf16.h>

constexpr int LINE = 64;

__device__ inline int of_row() { return threadIdx.x % 32 / 4; }
__device__ inline int of_line() { return threadIdx.x % 4; }

namespace {

#ifdef __CUDACC__
__device__ inline void multiply_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline unsigned rounded_to_tf32(unsigned x) {
  unsigned to;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(to) : "f"(__uint_as_float(x)));
  return to;
}
#else
using emulate::multiply_bf16;
using emulate::multiply_tf32;
using emulate::rounded_to_tf32;
#endif

// 16 bytes of a row, which are loaded at once.
struct alignas(16) Piece {
  unsigned v[4];
};

__device__ inline void multiply_part(float (&d)[4], const Piece &upper, const Piece &lower, const Piece &column, int part,
                                     void (*multiply)(float (&)[4], const unsigned (&)[4], const unsigned (&)[2])) {
  const unsigned a[4] = {upper.v[2 * part], lower.v[2 * part], upper.v[2 * part + 1], lower.v[2 * part + 1]};
  const unsigned b[2] = {column.v[2 * part], column.v[2 * part + 1]};
  multiply(d, a, b);
}

// Keeps the compiler from computing ahead of time what follows from a piece.
__device__ inline void forget(Piece &p) {
#ifdef __CUDACC__
#pragma unroll
  for (int e = 0; e < 4; e++) asm volatile("" : "+r"(p.v[e]));
#endif
}

// A way to multiply: how operands are rounded, and a number of sums, so that no product waits for the previous one.

// Operands of bf16.
struct InBf16 {
  using Number = __nv_bfloat16;
  static constexpr int SUMS = 2;
  static __device__ Piece kept(const Piece &p) { return p; }
  static __device__ void multiply(float (&d)[SUMS][4], const Piece &upper, const Piece &lower, const Piece &column) {
#pragma unroll
    for (int part = 0; part < 2; part++) multiply_part(d[part], upper, lower, column, part, multiply_bf16);
  }
};

// Operands of f32, rounded to tf32 once.
struct InTf32 {
  using Number = float;
  static constexpr int SUMS = 2;
  static __device__ Piece kept(const Piece &p) {
    return {{rounded_to_tf32(p.v[0]), rounded_to_tf32(p.v[1]), rounded_to_tf32(p.v[2]), rounded_to_tf32(p.v[3])}};
  }
  static __device__ void multiply(float (&d)[SUMS][4], const Piece &upper, const Piece &lower, const Piece &column) {
#pragma unroll
    for (int part = 0; part < 2; part++) multiply_part(d[part], upper, lower, column, part, multiply_tf32);
  }
};

// Operands of f32 as sums of two numbers of tf32, of which the product of the two small ones is left out: 22 bits of
// each factor count. An infinite operand gives NaN.
struct InF32 {
  using Number = float;
  static constexpr int SUMS = 3;
  static __device__ Piece kept(const Piece &p) { return p; }
  static __device__ Piece large(const Piece &p) {
    Piece to;
#pragma unroll
    for (int e = 0; e < 4; e++) to.v[e] = p.v[e] & 0xffffe000u;
    return to;
  }
  static __device__ Piece small(const Piece &p, const Piece &large) {
    Piece to;
#pragma unroll
    for (int e = 0; e < 4; e++) to.v[e] = __float_as_uint(__uint_as_float(p.v[e]) - __uint_as_float(large.v[e]));
    return to;
  }
  static __device__ void multiply(float (&d)[SUMS][4], const Piece &upper, const Piece &lower, Piece column) {
    // Both parts of columns that are used again would take twice the registers.
    forget(column);
    const Piece up = large(upper), low = large(lower), of = large(column);
    const Piece up_rest = small(upper, up), low_rest = small(lower, low), of_rest = small(column, of);
#pragma unroll
    for (int part = 0; part < 2; part++) {
      multiply_part(d[0], up_rest, low_rest, of, part, multiply_tf32);
      multiply_part(d[1], up, low, of_rest, part, multiply_tf32);
      multiply_part(d[2], up, low, of, part, multiply_tf32);
    }
  }
};

// The whole of a number's sums, the small ones first.
template <int SUMS> __device__ inline float whole(const float (&d)[SUMS][4], int i) {
  float sum = d[0][i];
#pragma unroll
  for (int n = 1; n < SUMS; n++) sum += d[n][i];
  return sum;
}

} // namespace
