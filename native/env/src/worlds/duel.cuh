// The rules and the scripted players of `duel.rs` on a card.
#pragma once
#include "world.cuh"

struct Duel {
  static constexpr int STATE = 16, INPUT = 4, SHOWN = 19, TERMS = 2, SEATS = 2;
  // Acts.
  static constexpr float WAIT = 0.0f, STRIKE = 1.0f, GUARD = 2.0f, THROW = 3.0f;
  static constexpr float SPEED = 0.05f, BODY = 0.1f, REACH = 0.3f, PLACE = 0.3f, TOUCHES = 3.0f;
  // Numbers of a seat in the state. The frame and the share of time elapsed follow those of both seats.
  static constexpr int SEAT = 7, FRAME = 14, TIME = 15;

  // Entry `at` of a table of four.
  __device__ static float pick(float at, float wait, float strike, float guard, float thrown) {
    const float upper = at == THROW ? thrown : guard, lower = at == STRIKE ? strike : wait;
    return at >= GUARD ? upper : lower;
  }

  // A player in its own view: the opponent is in front of it, in the direction of positive numbers.
  struct Seat {
    float position, velocity, stamina, act, remaining, shown, touches;

    __device__ static Seat read(const float *s) { return {s[0], s[1], s[2], s[3], s[4], s[5], s[6]}; }

    __device__ void write(float *s) const {
      s[0] = position;
      s[1] = velocity;
      s[2] = stamina;
      s[3] = act;
      s[4] = remaining;
      s[5] = shown;
      s[6] = touches;
    }

    // Begins an act or continues the one in progress. Returns whether an act lands or ends in this frame.
    __device__ bool commit(float chosen) {
      const bool is_free = remaining <= 0.0f;
      const float cost = pick(chosen, 0.0f, 0.25f, 0.2f, 0.3f);
      const bool begins = is_free && chosen != WAIT && stamina >= cost;
      const bool ends = !is_free && remaining <= 1.0f && act != WAIT;
      act = begins ? chosen : is_free ? WAIT : act;
      remaining = begins ? pick(chosen, 0.0f, 5.0f, 15.0f, 8.0f) : fmaxf(remaining - 1.0f, 0.0f);
      stamina = fminf(stamina - (begins ? cost : 0.0f) + 0.012f, 1.0f);
      return ends;
    }

    // Moves, before players push each other apart. Committed players move at half speed.
    __device__ void walk(float share) {
      velocity = clamped(share, -1.0f, 1.0f) * (remaining > 0.0f ? 0.5f * SPEED : SPEED);
      position = clamped(position + velocity, -1.0f, 1.0f);
    }

    // The position at half the smallest distance from the middle of the two players, or behind it.
    __device__ float parted(const Seat &other) const {
      constexpr float MOST = 1.0f - BODY / 2.0f;
      const float middle = clamped((position - other.position) / 2.0f, -MOST, MOST);
      return fminf(position, middle - BODY / 2.0f);
    }

    // Whether the player scores a touch: by an act that lands, or by a guard that is struck.
    __device__ bool scores(bool lands, const Seat &other, bool other_lands, bool reaches) const {
      const bool guarded = other.act == GUARD && !other_lands;
      const bool strikes = act == STRIKE && !guarded && !(other.act == STRIKE && other_lands);
      const bool throws = act == THROW && other.act != STRIKE && !(other.act == THROW && other_lands);
      const bool counters = act == GUARD && !lands && other.act == STRIKE && other_lands;
      return reaches && ((lands && (strikes || throws)) || counters);
    }

    __device__ void settle(bool ends, bool touch, bool scored) {
      if ((ends || touch) && act != WAIT) shown = act;
      // Frames in which a player is committed after its act.
      if (ends) remaining = act == GUARD ? 3.0f : 8.0f;
      if (touch) remaining = 0.0f;
      if (ends || touch) act = WAIT;
      if (touch) {
        position = -PLACE;
        velocity = 0.0f;
      }
      if (scored) touches += 1.0f;
    }
  };

  __device__ static void start(const Words &words, float *state) {
    for (int i = 0; i < STATE; i++) state[i] = 0.0f;
    state[0] = state[SEAT] = -PLACE + uniform(words.of[0], -0.05f, 0.05f);
    state[2] = state[SEAT + 2] = 1.0f;
  }

  __device__ static bool step(float *state, const float *input, float limit, float *terms) {
    Seat a = Seat::read(state), b = Seat::read(state + SEAT);
    const bool a_ends = a.commit(input[1]), b_ends = b.commit(input[3]);
    a.walk(input[0]);
    b.walk(input[2]);
    const float a_position = a.parted(b), b_position = b.parted(a);
    a.position = a_position;
    b.position = b_position;
    const bool reaches = -(a.position + b.position) <= REACH;
    const bool a_scored = a.scores(a_ends, b, b_ends, reaches), b_scored = b.scores(b_ends, a, a_ends, reaches);
    const bool touch = a_scored || b_scored;
    a.settle(a_ends, touch, a_scored);
    b.settle(b_ends, touch, b_scored);
    a.write(state);
    b.write(state + SEAT);
    state[FRAME] += 1.0f;
    state[TIME] = state[FRAME] / limit;
    const bool over = a.touches >= TOUCHES || b.touches >= TOUCHES || state[FRAME] >= limit;
    terms[0] = float(a_scored) - float(b_scored);
    terms[1] = over ? float(a.touches > b.touches) - float(a.touches < b.touches) : 0.0f;
    return over;
  }

  __device__ static void one_hot(float act, float *seen) {
    seen[0] = act == WAIT ? 1.0f : 0.0f;
    seen[1] = act == STRIKE ? 1.0f : 0.0f;
    seen[2] = act == GUARD ? 1.0f : 0.0f;
    seen[3] = act == THROW ? 1.0f : 0.0f;
  }

  __device__ static void observe(const float *state, int seat, float *seen) {
    const Seat a = Seat::read(state), b = Seat::read(state + SEAT);
    const Seat own = seat == 0 ? a : b, other = seat == 0 ? b : a;
    seen[0] = own.position;
    seen[1] = 0.0f - other.position;
    seen[2] = 0.0f - (own.position + other.position);
    seen[3] = own.velocity / SPEED;
    seen[4] = 0.0f - other.velocity / SPEED;
    seen[5] = own.stamina;
    one_hot(own.act, seen + 6);
    seen[10] = own.remaining / 15.0f;
    seen[11] = other.remaining > 0.0f ? 1.0f : 0.0f;
    one_hot(other.shown, seen + 12);
    seen[16] = own.touches / TOUCHES;
    seen[17] = other.touches / TOUCHES;
    seen[18] = state[TIME];
  }

  // The input of a scripted player, by its place in the list of `duel.rs`.
  __device__ static void play(int player, const float *seen, const Words &words, float *input) {
    constexpr int STRIKER = 0, GUARDER = 1, THROWER = 2, MIXER = 3, IDLE = 4;
    const bool reaches = seen[2] <= REACH - uniform(words.of[0], 0.0f, 0.05f);
    const bool bold = uniform(words.of[1], 0.0f, 1.0f) < 0.05f;
    const unsigned third = words.of[2] % 3;
    if (player == MIXER) player = third == 0 ? STRIKER : third == 1 ? GUARDER : THROWER;
    input[0] = player == IDLE ? 0.0f : 1.0f;
    input[1] = WAIT;
    if (player == STRIKER && reaches) input[1] = STRIKE;
    if (player == THROWER && reaches) input[1] = THROW;
    if (player == GUARDER && seen[2] <= REACH + 0.1f) {
      if (seen[11] > 0.0f) input[1] = GUARD;
      else if (bold && reaches) input[1] = STRIKE;
    }
  }
};
