#include "emulate.h"
#include "columns.cu"

EMULATED(column_sums_f32)
EMULATED(column_sums_bf16)
