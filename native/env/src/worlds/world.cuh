// Declarations that the rules of all worlds share. A world is a struct with the functions of `dynamics.rs`.
#pragma once
#include "philox.cuh"
#include "trig.cuh"

namespace {

// A random number in low..high.
__device__ inline float uniform(unsigned word, float low, float high) { return low + (high - low) * unit(word); }

} // namespace
