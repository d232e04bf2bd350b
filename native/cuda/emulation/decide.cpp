#include "emulate.h"
#include "../kernels/decide.cu"

EMULATED(decide)
