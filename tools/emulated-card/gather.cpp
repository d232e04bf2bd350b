#include "emulate.h"
#include "gather.cu"

#define EMULATED_GATHER(name) EMULATED(name##_forward) EMULATED(name##_backward) EMULATED(name##_sum)

EMULATED_GATHER(gather_f32)
EMULATED_GATHER(gather_bf16)
EMULATED(gather_runs)
EMULATED(one_hot)
