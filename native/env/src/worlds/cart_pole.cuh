// The rules of `cart_pole.rs` on a card.
#pragma once
#include "world.cuh"

struct CartPole {
  static constexpr int STATE = 4, INPUT = 1, SHOWN = 4, TERMS = 1, SEATS = 1;

  __device__ static void start(const Words &words, float *state) {
    for (int i = 0; i < STATE; i++) state[i] = uniform(words.of[i], -0.05f, 0.05f);
  }

  __device__ static bool step(float *state, const float *input, float, float *terms) {
    constexpr float PER_MASS = 1.0f / 1.1f, LENGTH = 0.5f, POLE_MASS = 0.1f, STEP = 0.02f;
    constexpr float POLE_MASS_LENGTH = POLE_MASS * LENGTH;
    const float x = state[0], x_dot = state[1], theta = state[2], theta_dot = state[3];
    const float force = input[0] == 1.0f ? 10.0f : -10.0f;
    const SinCos of = sin_cos(theta);
    const float pushed = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * of.sin) * PER_MASS;
    const float inertia = LENGTH * (4.0f / 3.0f - POLE_MASS * (of.cos * of.cos) * PER_MASS);
    const float theta_acc = (9.8f * of.sin - of.cos * pushed) / inertia;
    const float x_acc = pushed - POLE_MASS_LENGTH * theta_acc * of.cos * PER_MASS;
    state[0] = x + STEP * x_dot;
    state[1] = x_dot + STEP * x_acc;
    state[2] = theta + STEP * theta_dot;
    state[3] = theta_dot + STEP * theta_acc;
    terms[0] = 1.0f;
    return fabsf(state[0]) > 2.4f || fabsf(state[2]) > 0.209439516f;
  }

  __device__ static void observe(const float *state, int, float *seen) {
    for (int i = 0; i < SHOWN; i++) seen[i] = state[i];
  }
};

// Shows position and angle only.
struct VelocityLess : CartPole {
  static constexpr int SHOWN = 2;

  __device__ static void observe(const float *state, int, float *seen) {
    seen[0] = state[0];
    seen[1] = state[2];
  }
};
