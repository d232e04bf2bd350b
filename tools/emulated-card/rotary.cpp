#include "emulate.h"
#include "rotary.cu"

EMULATED(rotary_bf16)
EMULATED(rotary_f16)
