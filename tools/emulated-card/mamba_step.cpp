#include "emulate.h"
#include "mamba_step.cu"

EMULATED(mamba_step_inward)
EMULATED(mamba_step_scan)
