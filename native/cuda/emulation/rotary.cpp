#include "emulate.h"
#include "../kernels/rotary.cu"

EMULATED(rotary_bf16)
EMULATED(rotary_f16)
