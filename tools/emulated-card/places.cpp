#include "emulate.h"
#include "places.cu"

EMULATED(wanted_places)
