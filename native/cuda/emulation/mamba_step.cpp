#include "emulate.h"
#include "../kernels/mamba_step.cu"

EMULATED(mamba_step_inward)
EMULATED(mamba_step_scan)
