#include "emulate.h"
#include "norm.cu"

#define EMULATED_NORM(name)                                                                                           \
  EMULATED(name##_forward) EMULATED(name##_forward_few) EMULATED(name##_backward) EMULATED(name##_weight_parts)

EMULATED_NORM(layer_norm_f32)
EMULATED_NORM(layer_norm_bf16)
EMULATED_NORM(rms_norm_f32)
EMULATED_NORM(rms_norm_bf16)
