#include "emulate.h"
#include "matrix_state.cu"

#define EMULATED_STATE(name)                                                                                          \
  EMULATED(matrix_state_##name##_forward_64) EMULATED(matrix_state_##name##_backward_64)                              \
  EMULATED(matrix_state_##name##_forward_128) EMULATED(matrix_state_##name##_backward_128)                            \
  EMULATED(matrix_state_##name##_gather)

EMULATED_STATE(f32)
EMULATED_STATE(bf16)
