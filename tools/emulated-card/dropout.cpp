#include "emulate.h"
#include "dropout.cu"

EMULATED(dropout_f32)
EMULATED(dropout_bf16)
