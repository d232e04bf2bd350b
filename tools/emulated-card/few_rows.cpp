#include "emulate.h"
#include "few_rows.cu"

EMULATED(few_rows_f32)
EMULATED(few_rows_bf16)
EMULATED(tile_of_rows_f32)
EMULATED(tile_of_rows_bf16)
