#include "emulate.h"
#include "recurrent.cu"

#define EMULATED_CELL(name) EMULATED(name##_forward) EMULATED(name##_backward)

EMULATED_CELL(lstm_f32)
EMULATED_CELL(lstm_bf16)
EMULATED_CELL(lstm_mixed)
EMULATED_CELL(lstm_f32_whole)
EMULATED_CELL(lstm_bf16_whole)
EMULATED_CELL(lstm_mixed_whole)
EMULATED_CELL(gru_f32)
EMULATED_CELL(gru_bf16)
EMULATED_CELL(gru_mixed)
EMULATED_CELL(gru_f32_whole)
EMULATED_CELL(gru_bf16_whole)
EMULATED_CELL(gru_mixed_whole)
EMULATED_CELL(slstm_f32)
EMULATED_CELL(slstm_bf16)
EMULATED_CELL(slstm_mixed)
