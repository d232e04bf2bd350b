#include "emulate.h"
#include "holographic.cu"

EMULATED(hrr_spectrum)
EMULATED(hrr_time)
EMULATED(hrr_multiply)
EMULATED(hrr_superpose)
EMULATED(hrr_norms)
EMULATED(hrr_normalise)
EMULATED(hrr_encode)
EMULATED(hrr_similarity)
EMULATED(hrr_similarity_codes)
