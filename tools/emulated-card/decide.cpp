#include "emulate.h"
#include "decide.cu"

EMULATED(decide)
