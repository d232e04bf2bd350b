#include "emulate.h"
#include "loss.cu"

EMULATED(loss_f32)
EMULATED(loss_bf16)
EMULATED(loss_totals)
