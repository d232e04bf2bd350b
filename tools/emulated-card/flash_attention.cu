// Plain kernels with the names, arguments, blocks and results of those in flash_attention.cuh, which use instructions
// of tensor cores. They test the launches and arguments of those kernels, not their code.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

__device__ inline float number(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float number(__half v) { return __half2float(v); }
__device__ inline void write(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }
__device__ inline void write(__half *p, float v) { *p = __float2half(v); }

// Queries of a block.
constexpr int ROWS = 64;

// One thread per query. The other half of a block is idle.
template <typename T, int D>
__device__ void forward(const T *q, const T *k, const T *v, T *y, float *log_sums, long long q_batch, long long q_time,
                        long long q_head, long long k_batch, long long k_time, long long k_head, long long v_batch,
                        long long v_time, long long v_head, int time, int heads, float scale) {
  const int t = blockIdx.x * ROWS + threadIdx.x, row = blockIdx.y, head = blockIdx.z;
  if (threadIdx.x >= ROWS || t >= time) return;
  q += row * q_batch + t * q_time + head * q_head;
  k += row * k_batch + head * k_head;
  v += row * v_batch + head * v_head;
  float most = -INFINITY, sum = 0.0f, mixed[D] = {};
  for (int s = 0; s <= t; s++) {
    float score = 0.0f;
    for (int i = 0; i < D; i++) score += number(q[i]) * number(k[s * k_time + i]);
    score *= scale;
    const float largest = fmaxf(most, score), keep = expf(most - largest), weight = expf(score - largest);
    for (int i = 0; i < D; i++) mixed[i] = mixed[i] * keep + weight * number(v[s * v_time + i]);
    sum = sum * keep + weight;
    most = largest;
  }
  y += ((row * (long long)time + t) * heads + head) * D;
  for (int i = 0; i < D; i++) write(y + i, mixed[i] / sum);
  log_sums[(row * (long long)heads + head) * time + t] = most + logf(sum);
}

} // namespace

#define KERNEL(name, T, D)                                                                                            \
  extern "C" __global__ void name##_##D(                                                                              \
      const T *q, const T *k, const T *v, T *y, float *log_sums, long long q_batch, long long q_time,                 \
      long long q_head, long long k_batch, long long k_time, long long k_head, long long v_batch, long long v_time,   \
      long long v_head, int batch, int time, int heads, float scale) {                                                \
    forward<T, D>(q, k, v, y, log_sums, q_batch, q_time, q_head, k_batch, k_time, k_head, v_batch, v_time, v_head,    \
                  time, heads, scale);                                                                                \
  }

#define KERNELS(name, T) KERNEL(name, T, 32) KERNEL(name, T, 64) KERNEL(name, T, 128)

KERNELS(flash_attention_bf16, __nv_bfloat16)
KERNELS(flash_attention_f16, __half)
