// Queries, keys and values for kernels with 16-bit operands: queries and keys are rotated by their position (RoPE: Su
// et al. 2021, eq. 34), values are unchanged, and all are rounded to type T.
//
// qkv and out are [rows, 3, heads, head_dim], where each `time` consecutive rows are the frames of one sequence; tables
// of rotations are [positions, head_dim / 2], and frame t has position t. The pairs are those of attention.cu.
//
// The grid has a thread for each pair.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

__device__ inline void write(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }
__device__ inline void write(__half *p, float v) { *p = __float2half(v); }

template <typename T>
__device__ void turned(const float *qkv, const float *cos, const float *sin, T *out, long long rows, int time, int heads,
                       int head_dim, int interleaved) {
  const int half = head_dim / 2;
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at >= rows * 3 * heads * half) return;
  const int pair = int(at % half);
  const long long head = at / half, row = head / (3 * heads);
  const bool is_value = head % (3 * heads) >= 2 * heads;
  const long long first = head * head_dim + (interleaved ? 2 * pair : pair), second = first + (interleaved ? 1 : half);
  const float a = qkv[first], b = qkv[second];
  const long long angle = row % time * half + pair;
  const float c = is_value ? 1.0f : cos[angle], s = is_value ? 0.0f : sin[angle];
  write(out + first, a * c - b * s);
  write(out + second, b * c + a * s);
}

} // namespace

#define ROTARY(name, T)                                                                                               \
  extern "C" __global__ void name(const float *qkv, const float *cos, const float *sin, T *out, long long rows,       \
                                  int time, int heads, int head_dim, int interleaved) {                               \
    turned<T>(qkv, cos, sin, out, rows, time, heads, head_dim, interleaved);                                          \
  }

ROTARY(rotary_bf16, __nv_bfloat16)
ROTARY(rotary_f16, __half)
