#include "emulate.h"
#include "linear_recurrence.cu"

#define EMULATED_CELL(name) EMULATED(name##_forward) EMULATED(name##_backward)

EMULATED_CELL(linear_recurrence_f32)
EMULATED_CELL(linear_recurrence_bf16)
EMULATED_CELL(constant_recurrence_f32)
EMULATED_CELL(constant_recurrence_bf16)
EMULATED_CELL(min_gru_f32)
EMULATED_CELL(min_gru_bf16)
EMULATED_CELL(min_lstm_f32)
EMULATED_CELL(min_lstm_bf16)
EMULATED_CELL(rg_lru_f32)
EMULATED_CELL(rg_lru_bf16)
EMULATED_CELL(hgrn_f32)
EMULATED_CELL(hgrn_bf16)
EMULATED_CELL(diagonal_ssm_f32)
EMULATED_CELL(diagonal_ssm_bf16)
