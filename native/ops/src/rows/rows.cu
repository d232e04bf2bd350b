// Numbers go from place to place: columns of rows, and what a recorded step reads and writes, whose buffers have fixed
// places; those of games and batches have not.
//
// But for columns of 16 bits they are moved as words of 32. Rows are one behind the other, `width` words each.

namespace {

// Words of a block.
constexpr int STRETCH = 1024;

// The bits of a number that is not finite: its exponent is all ones.
__device__ inline bool is_finite(unsigned word) { return (word & 0x7f800000u) != 0x7f800000u; }

} // namespace

// to [n] = from. A thread for each word.
extern "C" __global__ void copy_words(const unsigned *__restrict__ from, unsigned *__restrict__ to, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}

// n columns of from [rows, from_width], from `from_first` on, go to those of to [rows, to_width] from `to_first` on. A
// thread for each number.
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

// What a step reads goes to its places, in one launch: rows of parts of states that lie at `places [parts, rows]`, and
// stretches of `words`. `table` has a place and a width for each part, then a place, a first word and a count for each
// stretch. Behind each row of answer [rows, width + 1] there is a 0 then.
//
// A block for each so many words of each row of each part, and of each stretch (x): along y, walking on where a grid has
// no more.
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

// What a step gives: f32 parts of states [gridDim.x, n0] and so on, up to four of them, are written to where `places`
// say, and logits [gridDim.x, width], if there are any, to answer [gridDim.x, width + 1], behind whose row there is a 1
// then if one of its parts has a number that is not finite.
//
// A block for each so many words of each part, the logits last (y), of each row (x): along z, walking on where a grid
// has no more.
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
      // Whoever writes here writes the same.
      if (is_part && !is_finite(from[i])) answer[row * (width + 1) + width] = 1.0f;
    }
  }
}
