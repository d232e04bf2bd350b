#include "emulate.h"
#include "../kernels/sampling.cu"

EMULATED(sample_f32)
EMULATED(sample_bf16)
