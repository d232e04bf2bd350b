// The rules of `mountain_car.rs` and `mountain_car_continuous.rs` on a card.
#pragma once
#include "world.cuh"

struct Hill {
  static constexpr int STATE = 2, INPUT = 1, SHOWN = 2, SEATS = 1;

  __device__ static void start(const Words &words, float *state) {
    state[0] = uniform(words.of[0], -0.6f, -0.4f);
    state[1] = 0.0f;
  }

  // Position and velocity after a step with an acceleration. The car stops at the left wall.
  __device__ static void drive(float *state, float acceleration) {
    const SinCos of = sin_cos(3.0f * state[0]);
    const float v = clamped(state[1] + (acceleration - 0.0025f * of.cos), -0.07f, 0.07f);
    state[0] = clamped(state[0] + v, -1.2f, 0.6f);
    state[1] = state[0] == -1.2f && v < 0.0f ? 0.0f : v;
  }

  __device__ static void observe(const float *state, int, float *seen) {
    seen[0] = state[0];
    seen[1] = state[1];
  }
};

struct MountainCar : Hill {
  static constexpr int TERMS = 1;

  __device__ static bool step(float *state, const float *input, float, float *terms) {
    drive(state, (input[0] - 1.0f) * 0.001f);
    terms[0] = -1.0f;
    return state[0] >= 0.5f && state[1] >= 0.0f;
  }
};

struct MountainCarContinuous : Hill {
  static constexpr int TERMS = 2;

  __device__ static bool step(float *state, const float *input, float, float *terms) {
    drive(state, clamped(input[0], -1.0f, 1.0f) * 0.0015f);
    const bool terminated = state[0] >= 0.45f && state[1] >= 0.0f;
    terms[0] = terminated ? 100.0f : 0.0f;
    terms[1] = -0.1f * (input[0] * input[0]);
    return terminated;
  }
};
