// Decisions of autoregressive heads. Counterpart of `native/nn/src/heads/mod.rs` and `sampling.rs` on a card, with
// the same random numbers (Philox 4x32-10, Salmon et al. 2011).
//
// All heads read the residual stream [size] of a row (Vinyals et al. 2019). Each head takes its logits from the
// stream, chooses, and adds an encoding of its choice for the heads after it. Separate launches would be three short
// ones per head.

#include "philox.cuh"

namespace {

constexpr int WARP = 32, THREADS = 256;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Maximum numbers of a stream and logits of a head.
constexpr int STREAM = 2048, LOGITS = 1024;
// Marks a missing label.
constexpr unsigned NONE = 0xffff;

// A head: logits [width] = decode [width, size] stream + bias [width] + a row of `prior`, if there is one. The
// previous label selects the row; for bits, each bit selects the row of its own logit. The last row is for a missing
// label. encode [size, width] is null for the last head.
struct Head {
  const float *decode, *bias, *encode, *prior;
  long long width, classes, first_logit, first_label;
};

// Drawing options of a row: its generator, temperature and thresholds.
struct Draw {
  unsigned key0, key1, step0, step1;
  float temperature, press_threshold, release_threshold;
  unsigned flags;

  __device__ bool deterministic() const { return flags & 1; }
  __device__ bool deterministic_buttons() const { return flags & 3; }

  __device__ float uniform(unsigned index) const { return uniform_at(index, key0, key1, step0, step1); }
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// A head's part of the labels of a row; null if there are no labels.
__device__ inline const unsigned *own(const unsigned *labels, long long row, int width, const Head &head) {
  return labels ? labels + row * width + head.first_label : nullptr;
}

__device__ inline bool known(const unsigned *labels) { return labels && labels[0] != NONE; }

// Row index in the prior table.
__device__ inline unsigned row_of(const unsigned *previous, long long i, unsigned classes) {
  return previous ? min(previous[i], classes) : classes;
}

__device__ inline float prior_of(const Head &head, const unsigned *previous, int i) {
  if (!head.prior) return 0.0f;
  const unsigned row = head.classes ? row_of(previous, 0, unsigned(head.width)) : row_of(previous, i, 2);
  return head.prior[row * head.width + i];
}

__device__ inline bool pressed(const Draw &draw, float logit, bool holds, unsigned index) {
  if (draw.deterministic_buttons())
    return sigmoid(logit) > (holds ? draw.release_threshold : draw.press_threshold);
  return draw.uniform(index) < sigmoid(logit / draw.temperature);
}

// The class at which the cumulative probability passes a random number. Called by a whole warp.
__device__ inline int drawn(const Draw &draw, const float *logits, float *weights, int width, unsigned index) {
  int best = 0;
  for (int i = 1; i < width; i++)
    if (logits[i] > logits[best]) best = i;
  if (draw.deterministic()) return best;
  const float top = logits[best];
  for (int i = threadIdx.x % WARP; i < width; i += WARP) weights[i] = expf((logits[i] - top) / draw.temperature);
  __syncwarp();
  double total = 0.0;
  for (int i = 0; i < width; i++) total += weights[i];
  double left = draw.uniform(index) * total;
  for (int i = 0; i < width; i++) {
    left -= weights[i];
    if (left < 0.0) return i;
  }
  return best;
}

} // namespace

// For each row of streams [n, size], out [n, num_logits + num_labels]: logits of all heads, then labels as numbers.
// `heads` and `draws` [n] are the structs above, as words. previous [n, num_labels] may be null. Labels in given [n,
// num_labels] are not drawn; it may be null. One block for each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    decide(const float *__restrict__ streams, const unsigned long long *__restrict__ heads,
           const unsigned *__restrict__ previous, const unsigned *__restrict__ given,
           const unsigned *__restrict__ draws, float *__restrict__ out, int count, int size, int num_logits,
           int num_labels) {
  __shared__ float stream[STREAM], logits[LOGITS], weights[LOGITS];
  __shared__ Draw draw;
  __shared__ int choice;
  const long long row = blockIdx.x;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  if (threadIdx.x == 0) draw = reinterpret_cast<const Draw *>(draws)[row];
  out += row * (num_logits + num_labels);
  for (int s = threadIdx.x; s < size; s += THREADS) stream[s] = streams[row * size + s];
  for (int h = 0; h < count; h++) {
    const Head &head = reinterpret_cast<const Head *>(heads)[h];
    const int width = int(head.width);
    const unsigned *held = own(previous, row, num_labels, head), *told = own(given, row, num_labels, head);
    float *labels = out + num_logits + head.first_label;
    __syncthreads();
    for (int i = warp; i < width; i += THREADS / WARP) {
      float sum = 0.0f;
      for (int s = lane; s < size; s += WARP) sum += head.decode[i * (long long)size + s] * stream[s];
      for (int apart = WARP / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
      if (lane > 0) continue;
      sum += head.bias[i] + prior_of(head, held, i);
      logits[i] = sum;
      out[head.first_logit + i] = sum;
    }
    __syncthreads();
    if (head.classes) {
      if (warp == 0) {
        const int drew = known(told) ? int(told[0]) : drawn(draw, logits, weights, width, unsigned(head.first_label));
        if (lane == 0) {
          choice = drew;
          labels[0] = float(drew);
        }
      }
    } else {
      for (int i = threadIdx.x; i < width; i += THREADS) {
        const bool holds = known(held) && held[i] == 1;
        const bool bit =
            known(told) ? told[i] == 1 : pressed(draw, logits[i], holds, unsigned(head.first_label) + i);
        weights[i] = labels[i] = bit ? 1.0f : 0.0f;
      }
    }
    __syncthreads();
    if (!head.encode) continue;
    for (int s = threadIdx.x; s < size; s += THREADS) {
      const float *encode = head.encode + s * head.width;
      float sum = 0.0f;
      if (head.classes) sum = encode[choice];
      else
        for (int i = 0; i < width; i++) sum += weights[i] * encode[i];
      stream[s] += sum;
    }
  }
}
