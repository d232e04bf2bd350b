#include "flash_attention.cuh"

KERNELS(flash_attention_bf16, cutlass::bfloat16_t)
