"""Evolution and holographic vectors beside their peers, in turns on one machine.

    python evolve.py --threads 1 [--archive EXAMPLE] [--only REGEX] [--rounds 9]

needs the packages of requirements-evolve.txt, and the Elixir of this project (`evolve.exs` is started in `bench`). EXAMPLE is
target/release/examples/archive, for MAP-Elites on the arm. A round measures Sconce, then each peer, each for about 200 ms. The
table has the rate of the fastest call of a round, as the median of the rounds, because other programs interrupt many calls on a
shared machine. Each ratio is the median of the rounds' ratios, of the fastest calls with the least and the largest in brackets,
and then of the median calls. All data is resident on both sides. Sconce is called from Elixir, but for the arm.
"""
import argparse
import os
import re
import statistics
import subprocess
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--archive")
parser.add_argument("--only", default="")
parser.add_argument("--rounds", type=int, default=9)
A = parser.parse_args()
T = A.threads
# Libraries read these when they are loaded.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = str(T)
os.environ["JAX_PLATFORMS"] = "cpu"
if T == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import scipy.fft  # noqa: E402
import torch  # noqa: E402
from ribs.archives import GridArchive  # noqa: E402
from ribs.emitters import IsoLineEmitter  # noqa: E402
from ribs.schedulers import Scheduler  # noqa: E402

torch.set_num_threads(T)
torch.set_grad_enabled(False)
MS, N, D = 200, 4800, 8192
rng = np.random.default_rng(1234)


class Sconce:
    """The process of evolve.exs."""

    def __init__(self):
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen(["mix", "run", "peers/evolve.exs"], cwd=os.path.join(here, ".."), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
                                        env={**os.environ, "SCONCE_THREADS": str(T)})
        self.answer()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("=> "):
                return line.split()[1:]
        raise SystemExit("Sconce has ended")

    def measure(self, case):
        print(case, MS, file=self.process.stdin, flush=True)
        name, best, median, check = self.answer()
        assert name == case
        return (float(best), float(median)), float(check)


def measure(work):
    times, until = [], time.perf_counter() + MS / 1000
    while len(times) < 2 or time.perf_counter() < until:
        start = time.perf_counter()
        work()
        times.append(1e6 * (time.perf_counter() - start))
    return min(times), statistics.median(times)


# -- populations
def network(sizes, genomes):
    """Layers of genomes: weights [n, in, out] and biases [n, out]."""
    out, at = [], 0
    for a, b in zip(sizes, sizes[1:]):
        weights = genomes[:, at:at + a * b].reshape(-1, b, a).transpose(0, 2, 1)
        out.append((np.ascontiguousarray(weights), np.ascontiguousarray(genomes[:, at + a * b:at + a * b + b])))
        at += a * b + b
    return out


def genomes(sizes):
    return (0.5 * rng.standard_normal((N, sum(a * b + b for a, b in zip(sizes, sizes[1:]))))).astype(np.float32)


def np_forward(layers, x):
    for i, (w, b) in enumerate(layers):
        x = np.matmul(x[:, None], w)[:, 0] + b
        x = np.tanh(x) if i < 2 else x
    return x


def one_forward(layers, x):
    """A genome; `jax.vmap` makes it all of them."""
    for i, (w, b) in enumerate(layers):
        x = x @ w + b
        x = jnp.tanh(x) if i < 2 else x
    return x


def on_jax(layers):
    return [(jnp.asarray(w), jnp.asarray(b)) for w, b in layers]


def forward():
    layers = network((8, 32, 16, 3), genomes((8, 32, 16, 3)))
    x = rng.standard_normal(8).astype(np.float32)
    xs = np.tile(x, (N, 1))
    own = [(torch.tensor(w), torch.tensor(b)) for w, b in layers]
    tx, jl, jx = torch.tensor(xs), on_jax(layers), jnp.asarray(x)
    fast = jax.jit(jax.vmap(one_forward, (0, None)))

    def by_torch():
        x = tx
        for i, (w, b) in enumerate(own):
            x = torch.baddbmm(b[:, None], x[:, None], w)[:, 0]
            x = torch.tanh(x) if i < 2 else x
        return x
    ref = np_forward(layers, xs)
    assert np.allclose(ref, by_torch().numpy(), atol=1e-4) and np.allclose(ref, np.asarray(fast(jl, jx)), atol=1e-4)
    return {"NumPy": lambda: np_forward(layers, xs), "torch baddbmm": by_torch,
            "JAX vmap": lambda: fast(jl, jx).block_until_ready()}


def pendulum(sconce_mean):
    """200 steps of each of 4,800 policies 3-32-16-2 of which the first output is the torque, cut to -2..2."""
    layers = network((3, 32, 16, 2), genomes((3, 32, 16, 2)))
    starts = rng.uniform([-np.pi, -1.0], [np.pi, 1.0], (N, 2)).astype(np.float32)

    def step(xp, angle, speed, torque):
        normal = (angle + np.float32(np.pi)) % np.float32(2 * np.pi) - np.float32(np.pi)
        cost = normal * normal + 0.1 * speed * speed + 0.001 * torque * torque
        speed = xp.clip(speed + (15.0 * xp.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        return angle + 0.05 * speed, speed, cost

    def by_numpy():
        angle, speed, total = starts[:, 0], starts[:, 1], np.zeros(N, np.float32)
        for _ in range(200):
            x = np.stack([np.cos(angle), np.sin(angle), speed], 1)
            torque = np.clip(np_forward(layers, x)[:, 0], -2.0, 2.0)
            angle, speed, cost = step(np, angle, speed, torque)
            total -= cost
        return total

    @jax.jit
    def rollout(layers, starts):
        def once(state, _):
            angle, speed, total = state
            x = jnp.stack([jnp.cos(angle), jnp.sin(angle), speed], 1)
            torque = jnp.clip(jax.vmap(one_forward)(layers, x)[:, 0], -2.0, 2.0)
            angle, speed, cost = step(jnp, angle, speed, torque)
            return (angle, speed, total - cost), None
        return jax.lax.scan(once, (starts[:, 0], starts[:, 1], jnp.zeros(N)), None, 200)[0][2]
    jl, js = on_jax(layers), jnp.asarray(starts)
    means = [float(by_numpy().mean()), float(rollout(jl, js).mean())]
    assert all(abs(mean - sconce_mean) < 0.05 * abs(sconce_mean) for mean in means), (means, sconce_mean)
    return {"NumPy": by_numpy, "JAX vmap": lambda: rollout(jl, js).block_until_ready()}


# -- archives
def archive(side):
    made = GridArchive(solution_dim=867, dims=[side, side], ranges=[(0, 1), (0, 1)], seed=1)
    solutions = rng.standard_normal((N, 867)).astype(np.float32)
    objectives, measures = rng.random((16, N)), rng.random((16, N, 2))
    at = [0]

    def add():
        at[0] += 1
        return made.add(solutions, objectives[at[0] % 16], measures[at[0] % 16])
    return {"pyribs": add}


def arm():
    """A generation of MAP-Elites on the arm of ten joints, 64x64 cells, batch 4096."""
    made = GridArchive(solution_dim=10, dims=[64, 64], ranges=[(-1, 1), (-1, 1)], seed=1)
    emitter = IsoLineEmitter(made, iso_sigma=0.1, line_sigma=0.3, x0=np.zeros(10), batch_size=4096, seed=1,
                             lower_bounds=np.full(10, -np.pi), upper_bounds=np.full(10, np.pi))
    scheduler = Scheduler(made, [emitter])

    def generation():
        angles = scheduler.ask()
        sums = np.cumsum(angles, axis=1)
        measures = np.stack([np.cos(sums).mean(1), np.sin(sums).mean(1)], 1)
        scheduler.tell(-angles.var(1), measures)
    return {"pyribs": generation}


# -- NEAT
def neat_python():
    import importlib.util
    import sys
    path, sys.path = sys.path, [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]
    import neat
    sys.path = path
    text = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "neat.py")).read()
    own = {"__file__": __file__, "__name__": "neat_bench"}
    exec(compile(text.replace("\nmain(sys.argv[1:])", ""), "neat.py", "exec"), own)
    assert importlib.util and neat

    def generations():
        config = own["config"]()
        config.genome_config.node_add_prob, config.genome_config.conn_add_prob = 0.03, 0.2
        neat.Population(config).run(own["evaluate"], 100)
    return {"neat-python": generations}


# -- holographic vectors
def vectors(count):
    return (rng.standard_normal((count, D)) / np.sqrt(D)).astype(np.float32)


def bind(count):
    a, b = vectors(count), vectors(count)
    ta, tb, ja, jb = torch.tensor(a), torch.tensor(b), jnp.asarray(a), jnp.asarray(b)
    fast = jax.jit(lambda x, y: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(y), D))

    def by_scipy():
        x, y = scipy.fft.rfft(a, workers=T), scipy.fft.rfft(b, workers=T)
        return scipy.fft.irfft(x * y, D, workers=T)
    by = {"SciPy": by_scipy, "torch": lambda: torch.fft.irfft(torch.fft.rfft(ta) * torch.fft.rfft(tb), D),
          "JAX": lambda: fast(ja, jb).block_until_ready()}
    ref = np.fft.irfft(np.fft.rfft(a) * np.fft.rfft(b), D)
    assert all(np.allclose(ref, np.asarray(work()), atol=1e-4) for work in by.values())
    return by


def bind_spectra(count):
    a, b = np.fft.rfft(vectors(count)).astype(np.complex64), np.fft.rfft(vectors(count)).astype(np.complex64)
    out = np.empty_like(a)
    ta, tb = torch.tensor(a), torch.tensor(b)
    ja, jb, fast = jnp.asarray(a), jnp.asarray(b), jax.jit(jnp.multiply)
    return {"NumPy": lambda: np.multiply(a, b, out=out), "torch": lambda: ta * tb,
            "JAX": lambda: fast(ja, jb).block_until_ready()}


def similarity():
    query, items = vectors(1), vectors(1000)
    lengths = np.linalg.norm(items, axis=1)
    tq, ti, tl = torch.tensor(query[0]), torch.tensor(items), torch.tensor(lengths)
    jq, ji, jl = jnp.asarray(query[0]), jnp.asarray(items), jnp.asarray(lengths)
    fast = jax.jit(lambda q, m, n: (m @ q) / (n * jnp.linalg.norm(q)))
    return {"NumPy": lambda: (items @ query[0]) / (lengths * np.linalg.norm(query[0])),
            "torch": lambda: torch.mv(ti, tq) / (tl * tq.norm()), "JAX": lambda: fast(jq, ji, jl).block_until_ready()}


# Case of Sconce, title, units of a call, name of a unit, peers.
ROWS = [
    ("forward_f32", "forward of 4,800 policies of 867 numbers, f32", N, "M/s", forward),
    ("forward_bf16", "the same, weights of Sconce in bf16", N, "M/s", forward),
    ("forward_int8", "the same, weights of Sconce in int8", N, "M/s", forward),
    ("pendulum", "Pendulum, 4,800 policies 3-32-16-2, 200 steps", N * 200, "M decisions/s", pendulum),
    ("archive_10", "archive 10x10, 4,800 candidates of 867, few win", N, "M/s", lambda: archive(10)),
    ("archive_100", "archive 100x100, 4,800 candidates of 867, few win", N, "M/s", lambda: archive(100)),
    ("arm", "MAP-Elites on the arm, 64x64, batch 4,096", 4096, "M evaluations/s", arm),
    ("neat", "NEAT, 100 generations of 150 on XOR", 100e6, "generations/s", neat_python),
    ("bind_64_time", "bind 64 pairs of 8,192 in time", 64, "M/s", lambda: bind(64)),
    ("bind_1_time", "bind one pair of 8,192 in time", 1, "M/s", lambda: bind(1)),
    ("bind_4_spectrum", "bind 4 spectra of 8,192", 4, "M/s", lambda: bind_spectra(4)),
    ("bind_64_spectrum", "bind 64 spectra of 8,192", 64, "M/s", lambda: bind_spectra(64)),
    ("similarity_f32", "cosines of one with 1,000 of 8,192, f32", 1000, "M/s", similarity),
    ("similarity_int8", "the same, items of Sconce in int8", 1000, "M/s", similarity),
]


def arm_of_sconce():
    text = subprocess.run([A.archive, "100", "400000"], capture_output=True, text=True, check=True,
                          env={**os.environ, "SCONCE_THREADS": str(T)}).stdout
    best, median = re.search(r"arm.*best ([0-9.]+), median ([0-9.]+) million", text).groups()
    return (4096 / float(best), 4096 / float(median)), 0.0


def main():
    load = os.getloadavg()[0]
    print(f"{T} thread(s), {A.rounds} rounds; load {load:.1f} at the start")
    print(f"{'case':52} {'Sconce':>24}   peer, its rate: Sconce's speed over it (least to largest), of median calls")
    sconce = Sconce()
    for case, title, units, unit, peers in ROWS:
        if not re.search(A.only, case) or (case == "arm" and not A.archive):
            continue
        ours = arm_of_sconce if case == "arm" else lambda: sconce.measure(case)
        _, check = ours()
        by = peers(check) if case == "pendulum" else peers()
        # Compilers and caches.
        for work in by.values():
            for _ in range(2):
                work()
        times, theirs = [], {name: [] for name in by}
        for _ in range(A.rounds):
            times.append(ours()[0])
            for name, work in by.items():
                theirs[name].append(measure(work))
        rate = lambda calls: f"{units / statistics.median(best for best, _ in calls):,.3g} {unit}"
        print(f"{title:52} {rate(times):>24}", flush=True)
        for name, calls in theirs.items():
            best, typical = [[t[i] / o[i] for t, o in zip(calls, times)] for i in (0, 1)]
            print(f"{'':79} {name}, {rate(calls)}: {statistics.median(best):.2f} ({min(best):.2f} to {max(best):.2f}), "
                  f"{statistics.median(typical):.2f}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


main()
