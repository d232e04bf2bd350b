#include "emulate.h"
#include "wkv.cu"

EMULATED(wkv_f32_forward)
EMULATED(wkv_f32_backward)
EMULATED(wkv_bf16_forward)
EMULATED(wkv_bf16_backward)
