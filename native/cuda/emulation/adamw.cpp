#include "emulate.h"
#include "../kernels/adamw.cu"

EMULATED(adamw_squares)
EMULATED(adamw_begin)
EMULATED(adamw_update)
