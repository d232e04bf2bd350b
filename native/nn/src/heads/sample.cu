// Choices of independent heads that stay on a card, with the random numbers of `choose.rs`: labels, log-likelihoods in
// nats, and values.

#include "categorical.cuh"
#include "gaussian.cuh"
#include "philox.cuh"

namespace {

// A stream of random numbers: its key, and the step of the first row. Each row has a step of its own.
struct Stream {
  unsigned key0, key1;
  unsigned long long step;
};

constexpr int CLASSES = 1, NUMBERS = 2, VALUE = 3;

} // namespace

// logits [n, num_logits]; `places` and `terms` of the heads are the structs of head.cuh. Writes labels [n, num_labels],
// log_likelihoods [n] and values [n]. A logit that is not finite is written to `fault`. The grid has a thread for each
// row.
extern "C" __global__ void sample(const float *__restrict__ logits, const Place *__restrict__ places,
                                  const Terms *__restrict__ terms, float *__restrict__ labels,
                                  float *__restrict__ log_likelihoods, float *__restrict__ values,
                                  float *__restrict__ fault, long long n, int heads, int num_logits, int num_labels,
                                  int key0, int key1, long long step) {
  const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (row >= n) return;
  const Stream of = {unsigned(key0), unsigned(key1), (unsigned long long)(step + row)};
  const unsigned step0 = unsigned(of.step), step1 = unsigned(of.step >> 32);
  const float *own = logits + row * num_logits;
  // Concurrent writers write numbers that are not finite.
  for (int i = 0; i < num_logits; i++)
    if (!(fabsf(own[i]) < INFINITY)) *fault = own[i];
  double nll = 0.0;
  for (int h = 0; h < heads; h++) {
    const Place place = places[h];
    const Terms bounds = terms[h];
    const float *x = own + place.logits;
    float *chosen = labels + row * num_labels + place.labels;
    if (place.kind == CLASSES) {
      const float uniform = uniform_at(unsigned(place.labels), of.key0, of.key1, step0, step1);
      const int drew = class_at(x, place.count, uniform);
      *chosen = float(drew);
      nll += nll_of_class(x, place.count, drew);
    } else if (place.kind == NUMBERS) {
      const int count = place.count / 2;
      for (int i = 0; i < count; i++) {
        const float normal = normal_at(unsigned(place.labels + i), of.key0, of.key1, step0, step1);
        chosen[i] = number_of(x[i], x[count + i], normal, bounds);
        nll += nll_of_number(x[i], x[count + i], chosen[i], bounds);
      }
    } else if (place.kind == VALUE) {
      values[row] = *x;
    }
  }
  log_likelihoods[row] = float(-nll);
}
