#include "emulate.h"
#include "../kernels/columns.cu"

EMULATED(column_sums_f32)
EMULATED(column_sums_bf16)
