#include "emulate.h"
#include "../kernels/dropout.cu"

EMULATED(dropout_f32)
EMULATED(dropout_bf16)
