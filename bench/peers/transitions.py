#!/usr/bin/env python3
"""Compares steps of the worlds with those of Gymnasium. Exits with status 1 if one of them differs.

    cargo build --release --locked -p sconce-env --example transitions
    python bench/peers/transitions.py target/release/examples/transitions

Needs gymnasium. Gymnasium plays 1,000 environments of each world for 200 steps with random inputs. Half of them start
where Gymnasium starts, and half anywhere in the world; an episode that terminates is followed by another one. Before
each step the state here is set to Gymnasium's, rounded to f32. In the free run of MountainCar the state is set once,
so that errors add up; there a row ends with its first episode, by the goal or by the limit of 200 steps.

The table has the largest error of each number of the next state, the observation and the reward: from Gymnasium's own
starts, from anywhere, and, from anywhere too, that of Gymnasium itself if its state is rounded to f32 before each step.
An error must be below 1e-5 of the range of its number. Only where the rounding of the state shows that a step magnifies
errors, it may be ten times that of the rounding. The links of Acrobot reach 28 rad/s, at which one step of 0.2 s takes
them nearly around, and the free run adds up 200 steps.

Flags must agree, unless the next state is closer to the threshold than 1e-5 of the range of the deciding number.
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
    """Begins an episode from a state in f32; those of odd environments are anywhere."""
    env.reset(seed=int(rng.integers(1 << 31)))
    put(env, env.unwrapped.state if index % 2 == 0 else rng.uniform(world.low, world.high))


def put(env, state):
    """Sets the state, rounded to f32, in the type that the environment has it in."""
    inner = env.unwrapped
    kind = np.asarray(inner.state).dtype
    rounded = np.asarray(state, np.float32).astype(kind)
    inner.state = tuple(rounded.tolist()) if isinstance(inner.state, tuple) else rounded


def step(world, env, number):
    """The next state, the observation, the reward and the flags, with the limit on steps if the environment has one."""
    observation, reward, *flags, _ = env.step(world.input(number))
    return np.array(env.unwrapped.state, np.float64), observation, reward, *flags


def play(world, inputs, rng, free):
    """Gymnasium's states before the steps, what the steps return, and what they return from rounded states.

    All are `[step, env, ..]`. In a free run, rounded states follow each other.
    """
    made = [gymnasium.make(world.reference, disable_env_checker=True, max_episode_steps=STEPS) for _ in range(COUNT)]
    envs = made if free else [env.unwrapped for env in made]
    spares = [gymnasium.make(world.reference, disable_env_checker=True).unwrapped for _ in range(COUNT)]
    for i, (env, spare) in enumerate(zip(envs, spares)):
        begin(world, env, i, rng)
        spare.reset()
        put(spare, env.unwrapped.state)
    starts, want, rounded = [], [], []
    for given in inputs:
        starts.append([np.array(env.unwrapped.state, np.float64) for env in envs])
        for env, spare in zip(envs, spares):
            put(spare, (spare if free else env).unwrapped.state)
        want.append([step(world, env, number) for env, number in zip(envs, given)])
        rounded.append([step(world, env, number) for env, number in zip(spares, given)])
        for i, (env, *rows) in enumerate(zip(envs, want[-1], rounded[-1])):
            if rows[1][3]:
                spares[i].reset()
            if rows[0][3] and not free:
                begin(world, env, i, rng)
    columns = [[np.array([[s[k] for s in row] for row in rows], np.float64) for k in range(5)]
               for rows in (want, rounded)]
    return np.array(starts), *columns


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


def compare(world, free, want, rounded, got, live):
    """Prints a row for each number and one for the flags, over the steps that are live. Returns whether all agree."""
    good = True
    names = ([("next " + n, 0, i) for i, n in enumerate(world.state)] +
             [("sees " + n, 1, i) for i, n in enumerate(world.observation)] + [("reward", 2, None)])
    own = np.arange(COUNT) % 2 == 0
    for name, part, i in names:
        def errors(of, live):
            w, g = (all[part][live] if i is None else all[part][live][:, i] for all in (want, of))
            error = np.abs(g - w)
            if part == 0 and i in world.angles:
                error = np.minimum(error, np.abs(error - 2 * PI))
            # A reward of another flag differs with it. The flags are judged below.
            return (error[want[3][live] == of[3][live]] if part == 2 else error).max()
        span = np.ptp(want[part][live] if i is None else want[part][live][:, i])
        near, far = errors(got, live & own), errors(got, live & ~own)
        rounding = errors(rounded, live & ~own)
        fits = max(far, near if free else 0) <= max(BOUND * span, 10 * rounding) and (free or near <= BOUND * span)
        good &= bool(fits)
        print(f"  {name:<16}{span:10.4g}{near:10.1e}{far:10.1e}{rounding:10.1e}{'' if fits else '  TOO FAR'}")
    for name, part in (("terminated", 3), ("truncated", 4)):
        differ = want[part][live] != got[part][live]
        line = f"  {name} in {int(want[part][live].sum())} steps; {int(differ.sum())} flags differ"
        if part == 3 and world.inside:
            distance = np.abs(world.inside(want[0][live]))
            line += (f", at most {distance[differ].max(initial=0.0):.1e} of the range from the threshold"
                     f" (the nearest of all steps: {distance.min():.1e})")
            differ &= distance > BOUND
        good &= not differ.any()
        print(line)
    return good


def main():
    program = sys.argv[1]
    print(f"gymnasium {gymnasium.__version__}, numpy {np.__version__}; {COUNT} starts, {STEPS} steps, largest errors")
    print(f"  {'number':<16}{'range':>10}{'own start':>10}{'anywhere':>10}{'rounding':>10}")
    good = True
    for k, (world, free) in enumerate([(world, False) for world in WORLDS] + [(WORLDS[1], True)]):
        rng = np.random.default_rng([SEED, k])
        inputs = world.inputs(rng)
        starts, want, rounded = play(world, inputs, rng, free)
        if free:
            got = ours(program, world, starts[0], inputs)
            ended = np.maximum(want[3], want[4])
            live = np.cumsum(ended, 0) - ended == 0
        else:
            flat = ours(program, world, starts.reshape(-1, starts.shape[-1]), inputs.reshape(1, -1))
            got = [part.reshape(w.shape) for part, w in zip(flat, want)]
            live = np.ones(inputs.shape, bool)
        print(f"{world.reference}, {int(live.sum())} {'steps of a free run' if free else 'single steps'}")
        good &= compare(world, free, want, rounded, got, live)
    print("all agree" if good else "NOT all agree")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
