// Numbers in memory are f32 or bf16; arithmetic is f32.
#pragma once
#include <cuda_bf16.h>

__device__ inline float read(const float *p) { return *p; }
__device__ inline float read(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ inline void write(float *p, float v) { *p = v; }
__device__ inline void write(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }
