#include "emulate.h"
#include "elements.cu"

EMULATED(add_f32)
EMULATED(add_bf16)
EMULATED(f32_to_bf16)
EMULATED(copy_strided_32)
EMULATED(copy_strided_16)
