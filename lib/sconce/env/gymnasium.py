"""Steps environments of Gymnasium for Sconce.Env.Gymnasium.

A request comes on descriptor 3 and its answer goes to descriptor 4, each behind its length in 4 bytes, big-endian.
An answer begins with a byte: 1 for a result, 0 for the text of an error. Numbers are 32-bit floats, little-endian.

    b"d" id          describe: lines of text
    b"o" count id    open environments
    b"r" entries     reset: index (4 bytes) and seed (8 bytes) of each; answers observations
    b"s" active inputs  step; answers observations, rewards and flags (1 terminated, 2 truncated)
"""
import json
import os
import struct
import sys
import traceback

import gymnasium
import numpy as np
from gymnasium import spaces

LIMIT = 2**24


def parts(space, name="action"):
    """The parts of an action as lines, and a function from their numbers to the action."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return [f"choice {name} {int(space.n)}"], lambda x: start + int(x[0])
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec)
        lines = [f"choice {name}_{i} {n}" for i, n in enumerate(sizes.ravel())]
        start = np.asarray(getattr(space, "start", 0))
        return lines, lambda x: start + x.astype(space.dtype).reshape(sizes.shape)
    if isinstance(space, spaces.MultiBinary):
        n = int(np.prod(space.shape))
        return [f"flags {name} {n}"], lambda x: x.astype(space.dtype).reshape(space.shape)
    if isinstance(space, spaces.Box):
        low, high = float(space.low.min()), float(space.high.max())
        if not (np.all(space.low == low) and np.all(space.high == high) and np.isfinite([low, high]).all()):
            raise ValueError(f"the numbers of {name} have several ranges: {space}")
        n = int(np.prod(space.shape))
        return [f"continuous {name} {n} {low:.17e} {high:.17e}"], lambda x: x.astype(space.dtype).reshape(space.shape)
    raise ValueError(f"no form for {name}, which is {space}")


class World:
    def __init__(self, options):
        self.options = options
        self.envs, self.input = [], None

    def make(self, name):
        return gymnasium.make(name, **self.options)

    def describe(self, name):
        env = self.make(name)
        lines, _ = parts(env.action_space)
        size = spaces.flatdim(env.observation_space)
        limit = env.spec.max_episode_steps if env.spec else None
        env.close()
        return "\n".join([f"observation {size}", f"limit {limit or LIMIT}"] + lines).encode()

    def open(self, request):
        count, name = struct.unpack("<I", request[:4])[0], request[4:].decode()
        self.envs = [self.make(name) for _ in range(count)]
        self.space = self.envs[0].observation_space
        self.width = spaces.flatdim(self.space)
        # The general form takes four times as long.
        box = isinstance(self.space, spaces.Box)
        self.flat = np.ravel if box else lambda seen: spaces.flatten(self.space, seen)
        _, self.input = parts(self.envs[0].action_space)
        return b""

    def reset(self, request):
        entries = np.frombuffer(request, dtype=[("at", "<u4"), ("seed", "<u8")])
        seen = np.empty((len(entries), self.width), dtype="<f4")
        for row, (at, seed) in zip(seen, entries):
            row[:] = self.flat(self.envs[at].reset(seed=int(seed) >> 1)[0])
        return seen.tobytes()

    def step(self, request):
        count = len(self.envs)
        active = np.frombuffer(request[:count], dtype=np.uint8)
        inputs = np.frombuffer(request[count:], dtype="<f4").reshape(count, -1)
        seen = np.zeros((count, self.width), dtype="<f4")
        rewards, flags = np.zeros(count, dtype="<f4"), np.zeros(count, dtype=np.uint8)
        for i in np.flatnonzero(active):
            observation, rewards[i], terminated, truncated, _ = self.envs[i].step(self.input(inputs[i]))
            seen[i] = self.flat(observation)
            flags[i] = bool(terminated) + 2 * bool(truncated)
        return seen.tobytes() + rewards.tobytes() + flags.tobytes()

    def answer(self, request):
        kind, request = request[:1], request[1:]
        if kind == b"d":
            return self.describe(request.decode())
        return {b"o": self.open, b"r": self.reset, b"s": self.step}[kind](request)


def main():
    world = World(json.loads(sys.argv[1]))
    requests, answers = os.fdopen(3, "rb"), os.fdopen(4, "wb")
    while len(head := requests.read(4)) == 4:
        request = requests.read(struct.unpack(">I", head)[0])
        try:
            answer = b"\1" + world.answer(request)
        except Exception:
            answer = b"\0" + traceback.format_exc(limit=-3).encode()
        answers.write(struct.pack(">I", len(answer)) + answer)
        answers.flush()


main()
