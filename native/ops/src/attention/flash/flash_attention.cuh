// softmax(scale q k^T) v of each head, causal: `flash::compute_attn` of flash attention 2 (Dao 2023), for cards of
// compute 8.0 and later.
//
// q, k, v and y are [batch, time, heads, D] of T; q, k and v have the given strides, y is contiguous. log_sums [batch,
// heads, time] are written too. A block of 128 threads computes ROWS queries: the grid is [ceil(time / ROWS), batch,
// heads], and a block has SHARED<D> bytes of shared memory.

#include <cstdint>

#include "flash.h"
#include "flash_fwd_kernel.h"

// Queries of a block, and keys of a tile. The launch templates of flash attention double one or the other for heads of
// 32 and 64 elements: these need more registers than there are, and half of a tile would be empty in a window of 60
// frames.
constexpr int ROWS = 64;
constexpr int COLUMNS = 64;
constexpr int WARPS = 4;

template <int D> constexpr int SHARED = 2 * D * (ROWS + 2 * COLUMNS);

template <typename T, int D>
__device__ void forward(const T *q, const T *k, const T *v, T *y, float *log_sums, long long q_batch, long long q_time,
                        long long q_head, long long k_batch, long long k_time, long long k_head, long long v_batch,
                        long long v_time, long long v_head, int batch, int time, int heads, float scale) {
  using Traits = Flash_fwd_kernel_traits<D, ROWS, COLUMNS, WARPS, false, false, T>;
  static_assert(Traits::kSmemSize == SHARED<D> && SHARED<D> <= 48 * 1024, "shared memory of a plain launch");
  // All other parameters are 0.
  Flash_fwd_params params{};
  params.q_ptr = const_cast<T *>(q);
  params.k_ptr = const_cast<T *>(k);
  params.v_ptr = const_cast<T *>(v);
  params.o_ptr = y;
  params.softmax_lse_ptr = log_sums;
  params.q_batch_stride = q_batch;
  params.q_row_stride = q_time;
  params.q_head_stride = q_head;
  params.k_batch_stride = k_batch;
  params.k_row_stride = k_time;
  params.k_head_stride = k_head;
  params.v_batch_stride = v_batch;
  params.v_row_stride = v_time;
  params.v_head_stride = v_head;
  params.o_batch_stride = (int64_t)time * heads * D;
  params.o_row_stride = heads * D;
  params.o_head_stride = D;
  params.b = batch;
  params.h = params.h_k = heads;
  params.h_h_k_ratio = 1;
  params.seqlen_q = params.seqlen_k = time;
  params.d = params.d_rounded = D;
  params.scale_softmax = scale;
  params.scale_softmax_log2 = scale * float(M_LOG2E);
  // The probability of keeping a weight.
  params.p_dropout = 1.0f;
  params.window_size_left = -1;
  constexpr bool DROPOUT = false, CAUSAL = true, LOCAL = false, ALIBI = false, WHOLE_TILES = false, WHOLE_HEADS = true,
                 SOFTCAP = false, RETURN_SOFTMAX = false;
  flash::compute_attn<Traits, DROPOUT, CAUSAL, LOCAL, ALIBI, WHOLE_TILES, WHOLE_HEADS, SOFTCAP, RETURN_SOFTMAX>(
      params);
}

#define KERNEL(name, T, D)                                                                                            \
  extern "C" __global__ void name##_##D(                                                                              \
      const T *q, const T *k, const T *v, T *y, float *log_sums, long long q_batch, long long q_time,                 \
      long long q_head, long long k_batch, long long k_time, long long k_head, long long v_batch, long long v_time,   \
      long long v_head, int batch, int time, int heads, float scale) {                                                \
    forward<T, D>(q, k, v, y, log_sums, q_batch, q_time, q_head, k_batch, k_time, k_head, v_batch, v_time, v_head,    \
                  batch, time, heads, scale);                                                                         \
  }

#define KERNELS(name, T) KERNEL(name, T, 32) KERNEL(name, T, 64) KERNEL(name, T, 128)
