#include "emulate.h"
#include "last.cu"

EMULATED(last_f32_forward)
EMULATED(last_f32_backward)
EMULATED(last_bf16_forward)
EMULATED(last_bf16_backward)
