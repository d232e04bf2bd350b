#include "emulate.h"
#include "rows.cu"

EMULATED(copy_words)
EMULATED(copy_columns_32)
EMULATED(copy_columns_16)
EMULATED(begin_step)
EMULATED(end_step)
