#include "emulate.h"
#include "recurrent_walk.cu"

#define EMULATED_CELL(name) EMULATED(name##_walk_forward) EMULATED(name##_walk_backward)

EMULATED_CELL(lstm_f32)
EMULATED_CELL(lstm_tf32)
EMULATED_CELL(lstm_bf16)
EMULATED_CELL(lstm_mixed)
EMULATED_CELL(gru_f32)
EMULATED_CELL(gru_tf32)
EMULATED_CELL(gru_bf16)
EMULATED_CELL(gru_mixed)
