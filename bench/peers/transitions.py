#!/usr/bin/env python3
"""Compares steps of the worlds with those of Gymnasium. Exits with status 1 if one of them differs.

    cargo build --release --locked -p sconce-env --example transitions
    python bench/peers/transitions.py target/release/examples/transitions

Needs gymnasium. Gymnasium plays 1,000 environments of each world for 200 steps with random inputs. Half of them start
where Gymnasium starts, and half anywhere in the world; an episode that terminates is followed by another one. Before
each step the state here is set to Gymnasium's, rounded to f32.

The largest error of each number of the next state, the observation and the reward must be below 1e-5 of the range of
that number in all steps. Flags must agree, unless the next state is closer to the threshold than 1e-5 of the range of
the deciding number.

In the free run of MountainCar the state is set once, so that errors add up. A row ends with its first episode, by the
goal or by the limit of 200 steps.
"""
import math
import subprocess
import sys
from dataclasses import dataclass, field

import gymnasium
import numpy as np

COUNT, STEPS, SEED, BOUND = 1000, 200, 20, 1e-5
PI, LEAN = math.pi, 12 * 2 * math.pi / 360


@dataclass
class World:
    name: str  # here
    reference: str  # in Gymnasium
    state: list
    observation: list
    low: list  # the states from which half of the environments start
    high: list
    reach: float  # the largest input, or the number of choices
    inside: object = None  # how far a state lies in the region where episodes terminate, in ranges of the number
    angles: list = field(default_factory=list)  # numbers of the state that are compared without whole turns

    def inputs(self, rng):
        choices = isinstance(self.reach, int)
        shape = (STEPS, COUNT)
        return (rng.integers(self.reach, size=shape) if choices
                else rng.uniform(-self.reach, self.reach, shape)).astype(np.float32)

    def input(self, number):
        return int(number) if isinstance(self.reach, int) else np.array([number], np.float32)


def car(goal):
    return lambda s: np.minimum((s[..., 0] - goal) / 1.8, s[..., 1] / 0.14)


WORLDS = [
    World("cart_pole", "CartPole-v1", ["x", "x'", "angle", "angle'"], ["x", "x'", "angle", "angle'"],
          [-2.4, -3, -LEAN, -3], [2.4, 3, LEAN, 3], 2,
          lambda s: np.maximum((np.abs(s[..., 0]) - 2.4) / 4.8, (np.abs(s[..., 2]) - LEAN) / (2 * LEAN))),
    World("mountain_car", "MountainCar-v0", ["x", "x'"], ["x", "x'"], [-1.2, -0.07], [0.5, 0.07], 3, car(0.5)),
    # The car clips its input to 1, and the reward does not.
    World("mountain_car_continuous", "MountainCarContinuous-v0", ["x", "x'"], ["x", "x'"], [-1.2, -0.07], [0.45, 0.07],
          1.2, car(0.45)),
    World("acrobot", "Acrobot-v1", ["angle 1", "angle 2", "angle 1'", "angle 2'"],
          ["cos 1", "sin 1", "cos 2", "sin 2", "angle 1'", "angle 2'"], [-PI, -PI, -4 * PI, -9 * PI],
          [PI, PI, 4 * PI, 9 * PI], 3,
          lambda s: (-np.cos(s[..., 0]) - np.cos(s[..., 1] + s[..., 0]) - 1) / 4, [0, 1]),
    World("pendulum", "Pendulum-v1", ["angle", "angle'"], ["cos", "sin", "angle'"], [-PI, -8], [PI, 8], 2.4),
]


def begin(world, env, index, rng):
    """Begins an episode, from a state in f32."""
    env.reset(seed=int(rng.integers(1 << 31)))
    inner = env.unwrapped
    start = inner.state if index % 2 == 0 else rng.uniform(world.low, world.high)
    start = np.asarray(start, np.float32).astype(type(np.asarray(inner.state).flat[0]))
    inner.state = tuple(start) if isinstance(inner.state, tuple) else start


def play(world, inputs, rng, again=True):
    """Gymnasium's states before and after each step, observations, rewards and flags, `[step, env, ..]`."""
    make = {} if again else {"max_episode_steps": STEPS}
    envs = [gymnasium.make(world.reference, disable_env_checker=True, **make) for _ in range(COUNT)]
    for i, env in enumerate(envs):
        begin(world, env, i, rng)
    rows = []
    for given in inputs:
        row = []
        for i, (env, number) in enumerate(zip(envs, given)):
            inner = env.unwrapped
            before = np.array(inner.state, np.float64)
            step = (inner if again else env).step(world.input(number))
            row.append((before, np.array(inner.state, np.float64), *step[:4]))
            if step[2] and again:
                begin(world, env, i, rng)
        rows.append(row)
    return [np.array([[step[k] for step in row] for row in rows], np.float64) for k in range(6)]


def ours(program, world, states, inputs):
    """The same by the program, without the states before each step: `inputs` are `[step, env]`."""
    steps, count = inputs.shape
    given = states.astype("<f4").tobytes() + inputs.astype("<f4").tobytes()
    command = [program, world.name, str(count), str(steps)]
    got = np.frombuffer(subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout, "<f4")
    parts, at = [], 0
    got = got.reshape(steps, -1)
    for width in (len(world.state), len(world.observation), 1, 1, 1):
        part = got[:, at:at + count * width].reshape(steps, count, width).astype(np.float64)
        parts.append(part if len(parts) < 2 else part[..., 0])
        at += count * width
    return parts


def compare(world, want, got, live):
    """Prints a row for each number and one for the flags, over the steps that are live. Returns whether all agree."""
    good = True
    names = ([("next " + n, 0, i) for i, n in enumerate(world.state)] +
             [("sees " + n, 1, i) for i, n in enumerate(world.observation)] + [("reward", 2, None)])
    for name, part, i in names:
        w, g = (all[part][live] if i is None else all[part][live][:, i] for all in (want, got))
        error = np.abs(g - w)
        if part == 0 and i in world.angles:
            error = np.minimum(error, np.abs(error - 2 * PI))
        # At the threshold the rewards differ as the flags do, which are judged below.
        if part == 2:
            error = error[want[3][live] == got[3][live]]
        span, worst = np.ptp(w), error.max()
        fits = worst <= BOUND * span
        good &= bool(fits)
        share = f"{worst / span:9.1e}" if span > 0 else "        -"
        print(f"  {name:<16}{span:12.4g}{worst:12.2e}{share}{'' if fits else '  TOO FAR'}")
    terminated = want[3][live] != got[3][live]
    distance = np.abs(world.inside(want[0][live])) if world.inside else np.full(terminated.shape, np.inf)
    far = distance[terminated].max(initial=0.0)
    cut = int((want[4][live] != got[4][live]).sum())
    print(f"  terminated in {int(want[3][live].sum())} steps; {int(terminated.sum())} flags differ, farthest from the "
          f"threshold {far:.1e} of the range" + (f"; nearest step {distance.min():.1e}" if world.inside else ""))
    print(f"  truncated in {int(want[4][live].sum())} steps; {cut} flags differ")
    return good and far <= BOUND and cut == 0


def main():
    program = sys.argv[1]
    print(f"gymnasium {gymnasium.__version__}, numpy {np.__version__}; {COUNT} starts, {STEPS} steps")
    print(f"  {'number':<16}{'range':>12}{'error':>12}{'share':>9}")
    good = True
    for k, world in enumerate(WORLDS):
        rng = np.random.default_rng([SEED, k])
        inputs = world.inputs(rng)
        before, *want = play(world, inputs, rng)
        flat = ours(program, world, before.reshape(-1, before.shape[-1]), inputs.reshape(1, -1))
        got = [part.reshape(w.shape) for part, w in zip(flat, want)]
        print(f"{world.reference}, {inputs.size} single steps")
        good &= compare(world, want, got, np.ones(inputs.shape, bool))
    world, rng = WORLDS[1], np.random.default_rng([SEED, len(WORLDS)])
    inputs = world.inputs(rng)
    before, *want = play(world, inputs, rng, again=False)
    got = ours(program, world, before[0], inputs)
    ended = np.maximum(want[3], want[4])
    live = np.cumsum(ended, 0) - ended == 0
    print(f"{world.reference}, free run, {int(live.sum())} steps")
    good &= compare(world, want, got, live)
    print("all agree" if good else "NOT all agree")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
