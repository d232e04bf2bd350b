#include "emulate.h"
#include "sample.cu"

EMULATED(sample)
