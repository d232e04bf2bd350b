#include "emulate.h"
#include "../kernels/linear_recurrence.cu"

#define EMULATED_CELL(name) EMULATED(name##_forward) EMULATED(name##_backward)

EMULATED_CELL(linear_recurrence_f32)
EMULATED_CELL(linear_recurrence_bf16)
EMULATED_CELL(min_gru_f32)
EMULATED_CELL(min_gru_bf16)
EMULATED_CELL(min_lstm_f32)
EMULATED_CELL(min_lstm_bf16)
