// The places of words that are wanted, in order: of steps that a limit cut, and of episodes that ended.

namespace {

constexpr int THREADS = 256;

} // namespace

// Counts the words [n] that equal `wanted`, or that are not 0 if `wanted` is 0. Writes the place of each of them to `out`,
// followed by the word itself and by that of `beside` at the place if `beside` is not null. If there are more than `most`,
// only the last ones are written. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
    wanted_places(const unsigned *__restrict__ words, const unsigned *__restrict__ beside, unsigned *__restrict__ out,
           unsigned *__restrict__ count, long long n, int wanted, long long most) {
  __shared__ unsigned ends[THREADS];
  const int thread = threadIdx.x;
  const long long each = (n + THREADS - 1) / THREADS;
  const long long begin = min(thread * each, n), end = min(begin + each, n);
  unsigned own = 0;
  for (long long i = begin; i < end; i++) own += wanted ? words[i] == unsigned(wanted) : words[i] != 0;
  ends[thread] = own;
  __syncthreads();
  for (int apart = 1; apart < THREADS; apart *= 2) {
    const unsigned before = thread >= apart ? ends[thread - apart] : 0;
    __syncthreads();
    ends[thread] += before;
    __syncthreads();
  }
  const long long total = ends[THREADS - 1], skipped = max(total - most, 0LL);
  const int width = beside ? 3 : 1;
  long long slot = ends[thread] - own - skipped;
  for (long long i = begin; i < end; i++) {
    if (!(wanted ? words[i] == unsigned(wanted) : words[i] != 0)) continue;
    if (slot >= 0) {
      out[slot * width] = unsigned(i);
      if (beside) {
        out[slot * width + 1] = words[i];
        out[slot * width + 2] = beside[i];
      }
    }
    slot++;
  }
  if (thread == 0) *count = unsigned(total);
}
