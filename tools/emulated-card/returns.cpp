#include "emulate.h"
#include "returns.cu"

EMULATED(advantages)
EMULATED(place_values)
EMULATED(explained)
