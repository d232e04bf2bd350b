#include "emulate.h"
#include "few_rows.cu"

EMULATED(few_rows_f32)
EMULATED(few_rows_bf16)
