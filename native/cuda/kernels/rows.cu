// What a captured decision reads and writes: its buffers have fixed places, those of the games have not.
//
// Numbers are moved as words of 32 bits. Rows are one behind the other on the card, `width` words each.

namespace {

// The bits of a number that is not finite: its exponent is all ones.
__device__ inline bool is_finite(unsigned word) { return (word & 0x7f800000u) != 0x7f800000u; }

} // namespace

// to [n] = from. A thread for each word.
extern "C" __global__ void copy_words(const unsigned *__restrict__ from, unsigned *__restrict__ to, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}

// to [gridDim.x, width]: the rows that lie at `places`. A block for each row.
extern "C" __global__ void gather_rows(const unsigned long long *__restrict__ places, unsigned *__restrict__ to,
                                       int width) {
  const unsigned *from = reinterpret_cast<const unsigned *>(places[blockIdx.x]);
  to += blockIdx.x * (long long)width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

// The rows of f32 `from [gridDim.x, width]`, written from `place[0]` on; `spoilt[row * stride]` becomes 1 where one has
// a number that is not finite, and stays as it is where none has. A block for each row.
extern "C" __global__ void put_rows(const unsigned long long *__restrict__ place, const unsigned *__restrict__ from,
                                    int width, float *__restrict__ spoilt, int stride) {
  const long long row = blockIdx.x;
  unsigned *to = reinterpret_cast<unsigned *>(place[0]) + row * width;
  from += row * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    to[i] = from[i];
    // Whoever writes here writes the same.
    if (!is_finite(from[i])) spoilt[row * stride] = 1.0f;
  }
}

// answer [gridDim.x, width + 1]: the rows of logits [gridDim.x, width], and behind each a 0. A block for each row.
extern "C" __global__ void answer_rows(const float *__restrict__ logits, float *__restrict__ answer, int width) {
  const long long row = blockIdx.x;
  for (int i = threadIdx.x; i <= width; i += blockDim.x)
    answer[row * (width + 1) + i] = i < width ? logits[row * width + i] : 0.0f;
}
