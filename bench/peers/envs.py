"""Steps of MountainCar-v0 and Pendulum-v1 with random actions: one call steps 1, 64 or 4,096 environments.

    SCONCE_PEERS=... python envs.py --threads 1 --only "gymnasium-sync pendulum 64"

The shared envs.py has the same rows for CartPole-v1. Episodes that end begin again in the same or in the next call.
"""
import os
import sys

sys.path.insert(0, os.environ["SCONCE_PEERS"])
from common import T, SEED, guard, measure, only  # noqa: E402
import numpy as np  # noqa: E402

SIZES = (1, 64, 4096)
# Random actions that are drawn before the clock starts, used in turn.
DRAWN = 64
rng = np.random.default_rng(SEED)
WORLDS = {
    "mountain_car": ("MountainCar-v0", lambda n: rng.integers(0, 3, n)),
    "pendulum": ("Pendulum-v1", lambda n: rng.uniform(-2, 2, (n, 1)).astype(np.float32)),
}


def gymnasium_sync(name, n):
    import gymnasium
    return gymnasium.make_vec(name, n, vectorization_mode="sync")


def envpool(name, n):
    import envpool
    return envpool.make(name, env_type="gymnasium", num_envs=n, num_threads=T, seed=SEED)


def row(peer, make, case, n):
    name, draw = WORLDS[case]
    with guard(peer, case):
        env = make(name, n)
        env.reset(**({"seed": SEED} if peer == "gymnasium-sync" else {}))
        actions, count = [draw(n) for _ in range(DRAWN)], [0]

        def step():
            count[0] += 1
            return env.step(actions[count[0] % DRAWN])[0]
        measure(peer, case, n, step, per=n, min_n=20)


for case in WORLDS:
    for n in SIZES:
        for peer, make in (("gymnasium-sync", gymnasium_sync), ("envpool", envpool)):
            if only(peer, case, n):
                row(peer, make, case, n)
