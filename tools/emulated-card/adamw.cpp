#include "emulate.h"
#include "adamw.cu"

EMULATED(adamw_squares)
EMULATED(adamw_begin)
EMULATED(adamw_update)
