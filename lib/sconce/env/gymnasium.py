"""Steps environments of Gymnasium for Sconce.Env.Gymnasium.

A request comes on descriptor 3 and its answer goes to descriptor 4, each behind its length in 4 bytes, big-endian.
An answer begins with a byte: 1 for a result, 0 for the text of an error. Numbers are 32-bit floats, little-endian.

    b"d" id          describe: lines of text
    b"o" count id    open environments
    b"r" entries     reset: index (4 bytes) and seed (8 bytes) of each; answers observations and masks
    b"s" active inputs  step; answers observations, rewards, flags (1 terminated, 2 truncated) and masks

Masks are those of all environments, a byte for each action; empty if the environment has none.
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


def sizes(space):
    """The number of entries in the mask of an action; 0 if it has numbers."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(np.sum(space.nvec))
    return int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else 0


def mask_of(env, info):
    """The mask of an environment as sb3-contrib has it, or None: of its method action_masks, else of its info."""
    size = sizes(env.action_space)
    if size == 0:
        # Numbers have no mask.
        return None
    try:
        method = env.get_wrapper_attr("action_masks")
    except AttributeError:
        mask = info.get("action_mask")
    else:
        mask = method()
    if mask is None:
        return None
    mask = np.asarray(mask, dtype=bool).ravel()
    if isinstance(env.action_space, spaces.MultiBinary) and mask.size == 2 * size:
        # Whether each flag may be 0, and whether it may be 1.
        if not mask[::2].all():
            raise ValueError(f"no form for a mask in which a flag must be 1: {mask}")
        mask = mask[1::2]
    if mask.size != size:
        raise ValueError(f"a mask of {env.action_space} has {size} entries, not {mask.size}")
    return mask


class World:
    def __init__(self, options):
        self.options = options
        self.envs, self.input, self.masks = [], None, np.zeros((0, 0), dtype=np.uint8)

    def make(self, name):
        return gymnasium.make(name, **self.options)

    def describe(self, name):
        env = self.make(name)
        lines, _ = parts(env.action_space)
        size = spaces.flatdim(env.observation_space)
        limit = env.spec.max_episode_steps if env.spec else None
        masked = mask_of(env, env.reset(seed=0)[1]) is not None
        env.close()
        own = [f"observation {size}", f"limit {limit or LIMIT}", f"masks {int(masked)}"]
        return "\n".join(own + lines).encode()

    def open(self, request):
        count, name = struct.unpack("<I", request[:4])[0], request[4:].decode()
        self.envs = [self.make(name) for _ in range(count)]
        self.space = self.envs[0].observation_space
        self.width = spaces.flatdim(self.space)
        # The general form takes four times as long.
        box = isinstance(self.space, spaces.Box)
        self.flat = np.ravel if box else lambda seen: spaces.flatten(self.space, seen)
        _, self.input = parts(self.envs[0].action_space)
        masked = mask_of(self.envs[0], self.envs[0].reset(seed=0)[1]) is not None
        size = sizes(self.envs[0].action_space) if masked else 0
        self.masks = np.ones((count, size), dtype=np.uint8)
        return struct.pack("<I", size)

    def look(self, i, info):
        """Updates the mask of environment i."""
        if self.masks.size:
            mask = mask_of(self.envs[i], info)
            if mask is None:
                raise ValueError("an action mask was given at the start, and is missing after a step")
            self.masks[i] = mask

    def reset(self, request):
        entries = np.frombuffer(request, dtype=[("at", "<u4"), ("seed", "<u8")])
        seen = np.empty((len(entries), self.width), dtype="<f4")
        for row, (at, seed) in zip(seen, entries):
            observation, info = self.envs[at].reset(seed=int(seed) >> 1)
            row[:] = self.flat(observation)
            self.look(at, info)
        return seen.tobytes() + self.masks.tobytes()

    def step(self, request):
        count = len(self.envs)
        active = np.frombuffer(request[:count], dtype=np.uint8)
        inputs = np.frombuffer(request[count:], dtype="<f4").reshape(count, -1)
        seen = np.zeros((count, self.width), dtype="<f4")
        rewards, flags = np.zeros(count, dtype="<f4"), np.zeros(count, dtype=np.uint8)
        for i in np.flatnonzero(active):
            observation, rewards[i], terminated, truncated, info = self.envs[i].step(self.input(inputs[i]))
            seen[i] = self.flat(observation)
            flags[i] = bool(terminated) + 2 * bool(truncated)
            if not flags[i]:
                self.look(i, info)
        return seen.tobytes() + rewards.tobytes() + flags.tobytes() + self.masks.tobytes()

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
