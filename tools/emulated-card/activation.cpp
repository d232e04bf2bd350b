#include "emulate.h"
#include "activation.cu"

#define EMULATED_ACTIVATION(suffix)                                                                                   \
  EMULATED(activation_##suffix##_forward)                                                                             \
  EMULATED(activation_##suffix##_backward)                                                                            \
  EMULATED(activation_##suffix##_bias_parts)                                                                          \
  EMULATED(gated_##suffix##_forward)                                                                                  \
  EMULATED(gated_##suffix##_backward)                                                                                 \
  EMULATED(glu_##suffix##_forward)                                                                                    \
  EMULATED(glu_##suffix##_backward)                                                                                   \
  EMULATED(skip_##suffix##_forward)                                                                                   \
  EMULATED(skip_##suffix##_parts)

EMULATED_ACTIVATION(f32)
EMULATED_ACTIVATION(bf16)
