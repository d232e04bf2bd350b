#include "emulate.h"
#include "causal_conv.cu"

EMULATED(causal_conv_f32_forward)
EMULATED(causal_conv_f32_backward)
EMULATED(causal_conv_bf16_forward)
EMULATED(causal_conv_bf16_backward)
