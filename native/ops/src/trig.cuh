// Sine and cosine of f32, and angles without full turns, by the operations of `native/tensor/src/trig.rs`. CUDA's own
// functions would put a table in local memory for large arguments.
#pragma once

namespace {

constexpr float PI = 3.14159274f, TAU = 6.28318548f;
// Adding 1.5 * 2^23 rounds to the nearest integer.
constexpr float ROUND = 12582912.0f;

struct SinCos {
  float sin, cos;
};

// The integer nearest to x * factor.
__device__ inline float nearest(float x, float factor) { return fmaf(x, factor, ROUND) - ROUND; }

// The remainder of x after n times pi/2, which three numbers add up to (Cody & Waite 1980).
__device__ inline float reduced(float x, float n) {
  const float r = fmaf(n, -1.57079637f, x);
  return fmaf(n, 1.71512451e-15f, fmaf(n, 4.37113900e-8f, r));
}

// For |x| up to 1e6, with an absolute error below 1e-7. The polynomials are those of Cephes.
__device__ inline SinCos sin_cos(float x) {
  const float n = nearest(x, 0.636619747f);
  const int quadrant = int(n);
  const float r = reduced(x, n), z = r * r;
  float s = fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
  s = fmaf(s, z, -1.6666654611e-1f);
  s = fmaf(s * z, r, r);
  float c = fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
  c = fmaf(c, z, 4.166664568298827e-2f);
  c = fmaf(c * z, z, fmaf(-0.5f, z, 1.0f));
  // Odd quadrants swap the two; the sine is negative in quadrants 2 and 3, the cosine in 1 and 2.
  const bool swap = quadrant & 1;
  const float sin = swap ? c : s, cos = swap ? s : c;
  return {quadrant & 2 ? -sin : sin, (quadrant + 1) & 2 ? -cos : cos};
}

// The angle in -pi..=pi that equals x up to full turns, for |x| up to 1e6.
__device__ inline float wrapped(float x) {
  const float angle = reduced(x, 4.0f * nearest(x, 0.159154937f));
  // Rounding may have chosen the other neighbour near a half turn.
  const float below = angle > PI ? angle - TAU : angle;
  return below < -PI ? below + TAU : below;
}

__device__ inline float clamped(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

} // namespace
