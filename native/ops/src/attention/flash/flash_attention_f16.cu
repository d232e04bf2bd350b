#include "flash_attention.cuh"

KERNELS(flash_attention_f16, cutlass::half_t)
