"""Holographic vectors of 8192 numbers with NumPy and SciPy: binding, similarity and projection.

    python hrr.py --threads 1

Each row is the best and the median of many short runs, in millions a second. `cargo run --release -p sconce-hrr --example
hrr` prints the same work of Sconce.
"""
import argparse
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
threads = parser.parse_args().threads
# Libraries read these when they are loaded.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(threads)
import numpy as np  # noqa: E402
import scipy.fft  # noqa: E402

D = 8192
SECONDS = 1.0
rng = np.random.default_rng(7)


def vectors(count):
    return (rng.standard_normal((count, D)) / np.sqrt(D)).astype(np.float32)


def report(name, units, work):
    rates = []
    until = time.perf_counter() + SECONDS
    while len(rates) < 9 or time.perf_counter() < until:
        start = time.perf_counter()
        work()
        rates.append(units / (time.perf_counter() - start) / 1e6)
    print(f"{name}: {max(rates):.4f}, median {statistics.median(rates):.4f}")


def agree(one, other):
    assert np.allclose(one, other, rtol=1e-3, atol=1e-4), "results differ"


def scipy_bind(a, b):
    a, b = scipy.fft.rfft(a, workers=threads), scipy.fft.rfft(b, workers=threads)
    return scipy.fft.irfft(a * b, D, workers=threads)


def numpy_bind(a, b):
    return np.fft.irfft(np.fft.rfft(a) * np.fft.rfft(b), D)


def cosines(queries, items, lengths):
    return queries @ items.T / np.linalg.norm(queries, axis=1)[:, None] / lengths


def hadamard(x):
    """Hadamard transforms of rows."""
    width = 1
    while width < x.shape[1]:
        parts = x.reshape(len(x), -1, 2, width)
        x = np.stack([parts[:, :, 0] + parts[:, :, 1], parts[:, :, 0] - parts[:, :, 1]], 2)
        x = x.reshape(len(x), -1)
        width *= 2
    return x


print(f"{threads} thread(s), NumPy {np.__version__}, SciPy {scipy.__version__}; millions a second")
for count in (1, 64):
    a, b = vectors(count), vectors(count)
    agree(scipy_bind(a, b), numpy_bind(a.astype(np.float64), b.astype(np.float64)))
    report(f"scipy bind {count} in time", count, lambda: scipy_bind(a, b))
    report(f"numpy bind {count} in time", count, lambda: numpy_bind(a, b))
for count in (4, 64, 1000):
    a, b = (scipy.fft.rfft(vectors(count)) for _ in range(2))
    out = np.empty_like(a)
    report(f"numpy bind {count} in the spectrum", count, lambda: np.multiply(a, b, out=out))
for queries, count in ((1, 64), (1, 256), (1, 1000), (64, 1000)):
    q, items = vectors(queries), vectors(count)
    lengths = np.linalg.norm(items, axis=1)
    agree(cosines(q, items, lengths)[0, 0], (q[0] @ items[0]) / np.linalg.norm(q[0]) / lengths[0])
    report(f"numpy similarity of {queries} with {count}", queries * count, lambda: cosines(q, items, lengths))
signs = rng.choice(np.float32([-1, 1]), (3, D))
row = np.zeros((1, D), np.float32)
row[:, :4096] = 0.5


def sorf(x):
    for sign in signs:
        x = hadamard(x * sign)
    return x * np.float32(D ** -1.5)


agree(np.linalg.norm(sorf(row)), np.linalg.norm(row))
report("numpy project 1 of 4096, Hadamard", 1, lambda: sorf(row))
weights = rng.standard_normal((D, 4096)).astype(np.float32)
report("numpy project 1 of 4096, dense matrix", 1, lambda: weights @ row[0, :4096])
