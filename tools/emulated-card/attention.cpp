#include "emulate.h"
#include "attention.cu"

#define EMULATED_HEADS(name)                                                                                          \
  EMULATED(name##_forward) EMULATED(name##_backward_queries) EMULATED(name##_backward_keys) EMULATED(name##_last)

#define EMULATED_ATTENTION(name)                                                                                      \
  EMULATED_HEADS(name##_32) EMULATED_HEADS(name##_64) EMULATED_HEADS(name##_128)                                      \
  EMULATED(name##_append) EMULATED(name##_append_backward)

EMULATED_ATTENTION(attention_f32)
EMULATED_ATTENTION(attention_bf16)
