// Dropout (Srivastava et al. 2014), inverted: kept values are scaled by 1 / (1 - p). The mask of a value is drawn by
// Philox 4x32-10 (Salmon et al. 2011) from the stream's key, its step and the value's index, as on the CPU. The mask is
// the same in both passes and is never stored.
//
// x, residual, y [rows, d] are of type T, arithmetic is f32. A counter on the card advances the step, so that a
// recorded launch draws new masks at every replay.

#include "numbers.cuh"
#include "philox.cuh"

// The rows that share a mask, and their positions in the windows that contain them.
struct Rows {
  long long rows;
  int d, repeat, window, before, frames;
};

// Key and step of a stream of random numbers.
struct Stream {
  unsigned key[2];
  unsigned long long step;
};

namespace {

// A thread computes four values of a row, from one block of random words.
template <typename T>
__device__ void dropout(const T *x, const T *residual, T *y, Rows of, Stream stream, float p, float scale) {
  const unsigned long long blocks = (of.d + 3) / 4;
  const unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  if (at >= of.rows * blocks) return;
  const unsigned long long row = at / blocks, block = at % blocks, shared = row / of.repeat;
  const unsigned long long place = shared / of.frames * of.window + of.before + shared % of.frames;
  const unsigned long long index = place * blocks + block;
  const Words words = philox({{unsigned(index), unsigned(index >> 32), unsigned(stream.step), unsigned(stream.step >> 32)}},
                             stream.key[0], stream.key[1]);
  const int first = int(block) * 4;
  for (int i = 0; i < 4; i++) {
    if (first + i >= of.d) continue;
    const unsigned long long n = row * of.d + first + i;
    const float factor = unit(words.of[i]) < p ? 0.0f : scale;
    // The CPU rounds the product before it adds, so the two are not fused.
    const float v = __fmul_rn(read(x + n), factor);
    write(y + n, residual ? read(residual + n) + v : v);
  }
}

} // namespace

// y = x after dropout, plus a residual if there is one. The grid has a thread for every four values of a row. The step
// is `step` plus *counter, if there is a counter.
#define DROPOUT(name, T)                                                                                               \
  extern "C" __global__ void name(const T *__restrict__ x, const T *__restrict__ residual, T *__restrict__ y,          \
                                  const long long *__restrict__ counter, long long step, int key0, int key1,           \
                                  long long rows, int d, int repeat, int window, int before, int frames, float p,      \
                                  float scale) {                                                                       \
    const unsigned long long now = step + (counter ? *counter : 0);                                                    \
    dropout<T>(x, residual, y, {rows, d, repeat, window, before, frames}, {{unsigned(key0), unsigned(key1)}, now}, p,  \
               scale);                                                                                                 \
  }

DROPOUT(dropout_f32, float)
DROPOUT(dropout_bf16, __nv_bfloat16)
