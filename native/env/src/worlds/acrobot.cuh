// The rules of `acrobot.rs` on a card.
#pragma once
#include "world.cuh"

struct Acrobot {
  static constexpr int STATE = 4, INPUT = 1, SHOWN = 6, TERMS = 1, SEATS = 1;

  struct Angles {
    float theta_1, theta_2, dot_1, dot_2;

    __device__ Angles moved(const Angles &slope, float h) const {
      return {theta_1 + h * slope.theta_1, theta_2 + h * slope.theta_2, dot_1 + h * slope.dot_1,
              dot_2 + h * slope.dot_2};
    }

    // The derivative by time. Masses, lengths and inertias are 1, and centres of mass are at 1/2.
    __device__ Angles rate(float torque) const {
      constexpr float CENTRE = 0.5f, GRAVITY = 9.8f, OWN = CENTRE * CENTRE;
      const SinCos second = sin_cos(theta_2);
      const float sin_1 = sin_cos(theta_1).sin, sin_2 = second.sin, cos_2 = second.cos;
      const float sin_12 = sin_cos(theta_1 + theta_2).sin;
      const float d1 = OWN + (1.0f + CENTRE * CENTRE + 2.0f * CENTRE * cos_2) + 1.0f + 1.0f;
      const float d2 = (CENTRE * CENTRE + CENTRE * cos_2) + 1.0f;
      const float phi_2 = CENTRE * GRAVITY * sin_12;
      const float phi_1 = -CENTRE * (dot_2 * dot_2) * sin_2 - 2.0f * CENTRE * dot_2 * dot_1 * sin_2 +
                          (CENTRE + 1.0f) * GRAVITY * sin_1 + phi_2;
      const float acc_2 = (torque + d2 / d1 * phi_1 - CENTRE * (dot_1 * dot_1) * sin_2 - phi_2) /
                          (OWN + 1.0f - d2 * d2 / d1);
      const float acc_1 = -(d2 * acc_2 + phi_1) / d1;
      return {dot_1, dot_2, acc_1, acc_2};
    }
  };

  __device__ static void start(const Words &words, float *state) {
    for (int i = 0; i < STATE; i++) state[i] = uniform(words.of[i], -0.1f, 0.1f);
  }

  __device__ static float mean(float a, float b, float c, float d) { return a + 2.0f * b + 2.0f * c + d; }

  // The classical Runge-Kutta method of order 4.
  __device__ static bool step(float *state, const float *input, float, float *terms) {
    constexpr float STEP = 0.2f;
    const float torque = input[0] - 1.0f;
    const Angles at = {state[0], state[1], state[2], state[3]};
    const Angles a = at.rate(torque), b = at.moved(a, STEP / 2.0f).rate(torque);
    const Angles c = at.moved(b, STEP / 2.0f).rate(torque), d = at.moved(c, STEP).rate(torque);
    const Angles slope = {mean(a.theta_1, b.theta_1, c.theta_1, d.theta_1),
                          mean(a.theta_2, b.theta_2, c.theta_2, d.theta_2),
                          mean(a.dot_1, b.dot_1, c.dot_1, d.dot_1), mean(a.dot_2, b.dot_2, c.dot_2, d.dot_2)};
    const Angles next = at.moved(slope, STEP / 6.0f);
    state[0] = wrapped(next.theta_1);
    state[1] = wrapped(next.theta_2);
    state[2] = clamped(next.dot_1, -4.0f * PI, 4.0f * PI);
    state[3] = clamped(next.dot_2, -9.0f * PI, 9.0f * PI);
    const bool terminated = -sin_cos(state[0]).cos - sin_cos(state[1] + state[0]).cos > 1.0f;
    terms[0] = terminated ? 0.0f : -1.0f;
    return terminated;
  }

  __device__ static void observe(const float *state, int, float *seen) {
    const SinCos first = sin_cos(state[0]), second = sin_cos(state[1]);
    seen[0] = first.cos;
    seen[1] = first.sin;
    seen[2] = second.cos;
    seen[3] = second.sin;
    seen[4] = state[2];
    seen[5] = state[3];
  }
};
