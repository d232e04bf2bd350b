// Kernels whose results are right only if threads wait for each other as on a card.
#include "emulate.h"

// out: [gridDim.x], the sum of each block's numbers of x, reduced by halves in shared memory.
static void __global__ block_sum(const float *x, float *out) {
  __shared__ float sums[256];
  sums[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

// y: each thread gets the number of the next thread but one in its warp, by two shuffles.
static void __global__ rotate(const float *x, float *y) {
  float v = x[threadIdx.x];
  for (int i = 0; i < 2; i++) v = __shfl_sync(0xffffffffu, v, (threadIdx.x + 1) % 32);
  y[threadIdx.x] = v;
}

// Every other thread waits for threads that have ended.
static void __global__ half_a_barrier(float *) {
  if (threadIdx.x % 2 == 1) __syncthreads();
}

// y: each thread gets the number of the next thread in its block, without waiting for it.
static void __global__ no_barrier(const float *x, float *y) {
  __shared__ float numbers[64];
  numbers[threadIdx.x] = 0.0f;
  __syncthreads();
  numbers[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = numbers[(threadIdx.x + 1) % 64];
}

// sum: the sum of four numbers behind pointers. A null pointer counts as 0.
static void __global__ sum_of_pointers(const float *const *x, float *sum) {
  __shared__ float numbers[4];
  numbers[threadIdx.x] = x[threadIdx.x] ? *x[threadIdx.x] : 0.0f;
  __syncthreads();
  if (threadIdx.x == 0) *sum = numbers[0] + numbers[1] + numbers[2] + numbers[3];
}

// y: the sum of each half of a warp, plus 100 if any of its numbers is negative. The halves do not wait for each other.
static void __global__ halves(const float *x, float *y) {
  const unsigned half = threadIdx.x / 16, lanes = 0xffffu << 16 * half;
  float sum = x[threadIdx.x];
  for (int apart = 8; apart > 0; apart /= 2) sum += __shfl_down_sync(lanes, sum, apart, 16);
  const bool negative = __any_sync(lanes, x[threadIdx.x] < 0.0f);
  if (threadIdx.x % 16 == 0) y[half] = sum + (negative ? 100.0f : 0.0f);
}

// x: a factor and a summand for each number of y, the square of the factor plus the summand. The compiler may round the
// first once. It has to round the product and the sum of the others.
static void __global__ product_and_sum(const float *x, float *y) {
  y[0] = x[0] * x[0] + x[1];
  y[1] = __fmul_rn(x[2], x[2]) + x[3];
  y[2] = __fadd_rn(x[4] * x[4], x[5]);
}

// count: raised by each block once it has seen the counts of the blocks before it; the last block waits for `last` more.
static void __global__ in_turn(unsigned *count, float *seen, unsigned last) {
  if (threadIdx.x == 0) {
    const unsigned before = gridDim.x - 1 - blockIdx.x;
    emulate::wait_for_blocks(count, before + (blockIdx.x == 0 ? last : 0));
    atomicAdd(count, 1u);
  }
  __syncthreads();
  if (threadIdx.x == 1) seen[blockIdx.x] = float(*count);
}

// d: the product of two matrices of tf32, of threads' numbers as mma.sync.m16n8k8 has them.
static void __global__ product_of_a_warp(const float *a, const float *b, float *d) {
  const unsigned row = threadIdx.x / 4, k = threadIdx.x % 4;
  const auto of_a = [&](unsigned i, unsigned j) { return __float_as_uint(a[(row + 8 * i) * 8 + k + 4 * j]); };
  const unsigned four[4] = {of_a(0, 0), of_a(1, 0), of_a(0, 1), of_a(1, 1)};
  const unsigned two[2] = {__float_as_uint(b[k * 8 + row]), __float_as_uint(b[(k + 4) * 8 + row])};
  float sums[4] = {};
  for (int twice = 0; twice < 2; twice++) emulate::multiply_tf32(sums, four, two);
  for (unsigned i = 0; i < 4; i++) d[(row + i / 2 * 8) * 8 + 2 * k + i % 2] = sums[i];
}

EMULATED(in_turn)
EMULATED(product_of_a_warp)
EMULATED(block_sum)
EMULATED(rotate)
EMULATED(half_a_barrier)
EMULATED(no_barrier)
EMULATED(sum_of_pointers)
EMULATED(halves)
EMULATED(product_and_sum)
