// All headers that a kernel may include.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_fp8.h"
#include "emulate.h"
#include <cuda/std/limits>
