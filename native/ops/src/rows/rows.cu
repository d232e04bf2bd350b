// Copies of numbers: columns of rows, and the reads and writes of a recorded step, whose buffers have fixed addresses,
// while those of games and batches do not.
//
// Numbers are copied as words of 32 bits, except columns of 16 bits. Rows are contiguous, with `width` words each.

namespace {

// Words of a block.
constexpr int STRETCH = 1024;

// A number that is not finite has an exponent of ones only.
__device__ inline bool is_finite(unsigned word) { return (word & 0x7f800000u) != 0x7f800000u; }

} // namespace

// to [n] = from. The grid has a thread for each word.
extern "C" __global__ void copy_words(const unsigned *__restrict__ from, unsigned *__restrict__ to, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}

// Copies n columns of from [rows, from_width], from `from_first` on, to those of to [rows, to_width] from `to_first`
// on. The grid has a thread for each number.
template <typename Word>
__device__ void columns(const Word *from, Word *to, long long rows, int n, int from_width, int from_first,
                        int to_width, int to_first) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const long long row = i / n;
  const int column = int(i - row * n);
  to[row * to_width + to_first + column] = from[row * from_width + from_first + column];
}

extern "C" __global__ void copy_columns_32(const unsigned *__restrict__ from, unsigned *__restrict__ to,
                                           long long rows, int n, int from_width, int from_first, int to_width,
                                           int to_first) {
  columns(from, to, rows, n, from_width, from_first, to_width, to_first);
}

extern "C" __global__ void copy_columns_16(const unsigned short *__restrict__ from, unsigned short *__restrict__ to,
                                           long long rows, int n, int from_width, int from_first, int to_width,
                                           int to_first) {
  columns(from, to, rows, n, from_width, from_first, to_width, to_first);
}

// Copies the inputs of a step to its buffers, in one launch: rows of parts of states at the addresses `places [parts,
// rows]`, and stretches of `words`. `table` has an address and a width for each part, then an address, a first word and
// a count for each stretch. The number after each row of answer [rows, width + 1] becomes 0.
//
// The grid has blocks (y) for the words of each row of each part, and of each stretch (x); if a grid has no more
// blocks, each block strides on.
extern "C" __global__ void begin_step(const unsigned *__restrict__ words, const unsigned long long *__restrict__ table,
                                      int parts, int rows, float *__restrict__ answer, int width) {
  const unsigned long long *places = reinterpret_cast<const unsigned long long *>(words);
  const int job = blockIdx.x;
  const unsigned *from;
  unsigned *to;
  long long n;
  if (job < parts * rows) {
    const int part = job / rows, row = job % rows;
    n = table[2 * part + 1];
    from = reinterpret_cast<const unsigned *>(places[job]);
    to = reinterpret_cast<unsigned *>(table[2 * part]) + row * n;
  } else {
    const unsigned long long *stretch = table + 2 * parts + 3 * (job - parts * rows);
    to = reinterpret_cast<unsigned *>(stretch[0]);
    from = words + stretch[1];
    n = stretch[2];
  }
  for (long long first = blockIdx.y * (long long)STRETCH; first < n; first += gridDim.y * (long long)STRETCH) {
    const long long end = min(n, first + STRETCH);
    for (long long i = first + threadIdx.x; i < end; i += blockDim.x) to[i] = from[i];
  }
  if (job == 0 && blockIdx.y == 0)
    for (int row = threadIdx.x; row < rows; row += blockDim.x) answer[row * (width + 1LL) + width] = 0.0f;
}

// Copies the outputs of a step: f32 parts of states [gridDim.x, n0], .., up to four of them, to the addresses in
// `places`, and logits [gridDim.x, width], if there are any, to answer [gridDim.x, width + 1]. The number after a row
// of the answer becomes 1 if one of the row's parts has a number that is not finite.
//
// The grid has blocks (z) for the words of each part, the logits last (y), of each row (x); if a grid has no more
// blocks, each block strides on.
extern "C" __global__ void end_step(const unsigned long long *__restrict__ places, const unsigned *__restrict__ part0,
                                    const unsigned *__restrict__ part1, const unsigned *__restrict__ part2,
                                    const unsigned *__restrict__ part3, int n0, int n1, int n2, int n3, int parts,
                                    const unsigned *__restrict__ logits, float *__restrict__ answer, int width) {
  const long long row = blockIdx.x;
  const int part = blockIdx.y;
  const bool is_part = part < parts;
  const unsigned *from = !is_part ? logits : part == 0 ? part0 : part == 1 ? part1 : part == 2 ? part2 : part3;
  const int n = !is_part ? width : part == 0 ? n0 : part == 1 ? n1 : part == 2 ? n2 : n3;
  unsigned *to = is_part ? reinterpret_cast<unsigned *>(places[part]) + row * n
                         : reinterpret_cast<unsigned *>(answer) + row * (width + 1);
  from += row * n;
  for (long long first = blockIdx.z * (long long)STRETCH; first < n; first += gridDim.z * (long long)STRETCH) {
    const long long end = min((long long)n, first + STRETCH);
    for (long long i = first + threadIdx.x; i < end; i += blockDim.x) {
      to[i] = from[i];
      // Concurrent writers write the same value.
      if (is_part && !is_finite(from[i])) answer[row * (width + 1) + width] = 1.0f;
    }
  }
}
