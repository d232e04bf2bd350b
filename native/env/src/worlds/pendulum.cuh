// The rules of `pendulum.rs` on a card.
#pragma once
#include "world.cuh"

struct Pendulum {
  static constexpr int STATE = 2, INPUT = 1, SHOWN = 3, TERMS = 3, SEATS = 1;

  __device__ static void start(const Words &words, float *state) {
    state[0] = uniform(words.of[0], -PI, PI);
    state[1] = uniform(words.of[1], -1.0f, 1.0f);
  }

  __device__ static bool step(float *state, const float *input, float, float *terms) {
    constexpr float STEP = 0.05f;
    const float theta = state[0], theta_dot = state[1], torque = clamped(input[0], -2.0f, 2.0f);
    const float angle = wrapped(theta);
    terms[0] = -(angle * angle);
    terms[1] = -0.1f * (theta_dot * theta_dot);
    terms[2] = -0.001f * (torque * torque);
    const float acceleration = 3.0f * 10.0f / 2.0f * sin_cos(theta).sin + 3.0f * torque;
    state[1] = clamped(theta_dot + acceleration * STEP, -8.0f, 8.0f);
    const float next = theta + state[1] * STEP;
    // A larger angle would have fewer digits after the point.
    state[0] = fabsf(next) > 4096.0f ? wrapped(next) : next;
    return false;
  }

  __device__ static void observe(const float *state, int, float *seen) {
    const SinCos of = sin_cos(state[0]);
    seen[0] = of.cos;
    seen[1] = of.sin;
    seen[2] = state[1];
  }
};
