// A step of environments whose states stay on a card, by the rules and the random numbers of `kernel.rs`. An environment
// whose episode ends begins the next one in the same step.
//
// A row is a player of an environment, row = env * seats + seat; with a scripted player for seat 1 there is one row each.
//
//   states    [STATE, envs] f32        counters  [2, envs] u32: steps of the episode, and episodes begun
//   returns   [envs] f32               terms     [envs, TERMS] f64, sums of the unweighted reward terms
//   inputs    [rows, labels] f32       before, after, finals [rows, SHOWN * stack] f32
//   rewards   [rows] f32               ends      [rows] u32: 1 for a termination, plus 2 for the time limit
//   lengths   [envs, time] u32 and totals [envs, time] f32: steps and return of an episode that ended at step `t`; the
//             highest bit of a length is set for a termination, and other lengths are 0
//
// `before` are the observations that the inputs answer, and `after` those of the next step. A row of `finals` is written
// where an episode ends: the last observation of that episode.

#include "acrobot.cuh"
#include "cart_pole.cuh"
#include "duel.cuh"
#include "mountain_car.cuh"
#include "pendulum.cuh"
#include "rules.cuh"

namespace {

struct Memory {
  float *states;
  unsigned *counters;
  float *returns;
  double *terms;
  const float *inputs, *before;
  float *after, *finals, *rewards;
  unsigned *ends, *lengths;
  float *totals;
  long long envs;
  int t, time;
};

// Writes a row of stacked observations: the last ones of `old`, then `seen`; or, with `fill`, copies of `seen`.
template <int SHOWN>
__device__ void show(const float *seen, const float *old, float *row, int stack, bool fill) {
  for (int slot = 0; slot + 1 < stack; slot++)
    for (int i = 0; i < SHOWN; i++) row[slot * SHOWN + i] = fill ? seen[i] : old[(slot + 1) * SHOWN + i];
  for (int i = 0; i < SHOWN; i++) row[(stack - 1) * SHOWN + i] = seen[i];
}

// Writes the observations of all rows of an environment.
template <typename W>
__device__ void observe(const float *state, const Rules &rules, const float *old, float *rows, int seats, bool fill) {
  const long long width = W::SHOWN * (long long)rules.stack;
#pragma unroll
  for (int seat = 0; seat < W::SEATS; seat++) {
    if (seat >= seats) break;
    float seen[W::SHOWN];
    W::observe(state, seat, seen);
    show<W::SHOWN>(seen, old + seat * width, rows + seat * width, rules.stack, fill);
  }
}

template <typename W> __device__ void step(const Memory &of, const Rules &rules) {
  const long long env = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (env >= of.envs) return;
  const int seats = rules.opponent < 0 ? W::SEATS : 1;
  const unsigned long long index = rules.first + env;
  float state[W::STATE], input[W::INPUT], sums[W::TERMS] = {};
  for (int i = 0; i < W::STATE; i++) state[i] = of.states[i * of.envs + env];
  constexpr int LABELS = W::INPUT / W::SEATS;
  for (int i = 0; i < W::INPUT; i++)
    if (i < seats * LABELS) input[i] = of.inputs[env * seats * LABELS + i];
  unsigned steps = of.counters[env], episodes = of.counters[of.envs + env], ended = 0;
  if (seats < W::SEATS)
    play<W>(rules.opponent, state, rules, index, (unsigned long long)episodes << 32 | steps, input + W::INPUT - LABELS);

  float reward = 0.0f, total = of.returns[env];
  for (unsigned turn = 0; turn < rules.repeat && !ended; turn++) {
    float paid[W::TERMS], own = 0.0f;
    const bool terminated = W::step(state, input, float(rules.limit), paid);
    for (int i = 0; i < W::TERMS; i++) {
      own += rules.weights[i] * paid[i];
      sums[i] += paid[i];
    }
    reward += own;
    total += own;
    steps++;
    ended = unsigned(terminated) | unsigned(steps >= rules.limit) << 1;
  }
  for (int i = 0; i < W::TERMS; i++) of.terms[env * W::TERMS + i] += sums[i];
  for (int seat = 0; seat < seats; seat++) {
    of.rewards[env * seats + seat] = seat == 0 ? reward : -reward;
    of.ends[env * seats + seat] = ended;
  }
  of.lengths[env * of.time + of.t] = ended ? steps | (ended & 1) << 31 : 0;
  of.totals[env * of.time + of.t] = total;
  const long long rows = env * seats * W::SHOWN * (long long)rules.stack;
  const float *before = of.before + rows;
  if (ended) {
    observe<W>(state, rules, before, of.finals + rows, seats, false);
    W::start(words_of(rules.starts, index, episodes), state);
    steps = 0;
    total = 0.0f;
    of.counters[of.envs + env] = episodes + 1;
  }
  observe<W>(state, rules, before, of.after + rows, seats, ended);
  for (int i = 0; i < W::STATE; i++) of.states[i * of.envs + env] = state[i];
  of.counters[env] = steps;
  of.returns[env] = total;
}

} // namespace

// The grid has a thread for each environment. `rules` is the struct above, as words.
#define WORLD(name, W)                                                                                                 \
  extern "C" __global__ void env_step_##name(                                                                          \
      float *states, unsigned *counters, float *returns, double *terms, const float *inputs, const float *before,      \
      float *after, float *finals, float *rewards, unsigned *ends, unsigned *lengths, float *totals,                   \
      const unsigned long long *rules, long long envs, int t, int time) {                                              \
    step<W>({states, counters, returns, terms, inputs, before, after, finals, rewards, ends, lengths, totals, envs, t, \
             time},                                                                                                    \
            *reinterpret_cast<const Rules *>(rules));                                                                  \
  }

WORLD(cart_pole, CartPole)
WORLD(cart_pole_velocity_less, VelocityLess)
WORLD(mountain_car, MountainCar)
WORLD(mountain_car_continuous, MountainCarContinuous)
WORLD(acrobot, Acrobot)
WORLD(pendulum, Pendulum)
WORLD(duel, Duel)
