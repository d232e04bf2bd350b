// Functions of one value, in f32, and their slopes, numbered as in `ops::Activation`.
#pragma once

enum Activation { NONE, RELU, SIGMOID, TANH, SILU, GELU, SOFTPLUS, SQUARED_RELU, GELU_ERF };

// sqrt(2 / pi)
constexpr float ROOT = 0.7978846f;
constexpr float CUBE = 0.044715f;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The distribution function of the standard normal.
__device__ inline float normal(float x) { return 0.5f * erfcf(-0.70710678f * x); }

// Keeps NaN, where fmaxf would return 0.
__device__ inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

__device__ inline float value(int activation, float x) {
  switch (activation) {
  case RELU: return relu(x);
  case SIGMOID: return sigmoid(x);
  case TANH: return tanhf(x);
  case SILU: return x * sigmoid(x);
  // x / 2 (1 + tanh u) is x sigmoid(2 u).
  case GELU: return x * sigmoid(2.0f * ROOT * (x + CUBE * x * x * x));
  case SOFTPLUS: return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
  case SQUARED_RELU: return relu(x) * relu(x);
  case GELU_ERF: return x * normal(x);
  default: return x;
  }
}

__device__ inline float slope(int activation, float x) {
  if (activation == NONE) return 1.0f;
  if (activation == RELU) return x > 0.0f ? 1.0f : 0.0f;
  if (activation == SQUARED_RELU) return 2.0f * relu(x);
  if (activation == TANH) {
    const float t = tanhf(x);
    return 1.0f - t * t;
  }
  // 0.39894228 is 1 / sqrt(2 pi).
  if (activation == GELU_ERF) return normal(x) + x * 0.39894228f * expf(-0.5f * x * x);
  const float s = sigmoid(activation == GELU ? 2.0f * ROOT * (x + CUBE * x * x * x) : x);
  switch (activation) {
  case SIGMOID: return s * (1.0f - s);
  case SILU: return s * (1.0f + x * (1.0f - s));
  case GELU: return s + x * s * (1.0f - s) * 2.0f * ROOT * (1.0f + 3.0f * CUBE * x * x);
  default: return s;
  }
}
