#include "emulate.h"
#include "selective_scan.cu"

#define EMULATED_SCAN(name, size)                                                                                     \
  EMULATED(selective_scan_##name##_forward_##size) EMULATED(selective_scan_##name##_backward_##size)

EMULATED_SCAN(f32, 16)
EMULATED_SCAN(f32, 32)
EMULATED_SCAN(f32, 64)
EMULATED_SCAN(bf16, 16)
EMULATED_SCAN(bf16, 32)
EMULATED_SCAN(bf16, 64)
