"""Archives of pyribs 0.12.0 on streams of candidates, for `archives.exs`.

    python archives.py DIR                       # writes the streams and what pyribs makes of them
    mix run peers/archives.exs DIR               # in `bench`: gives the same streams to Sconce and compares

A stream has 200 batches of 300 candidates with measures that also lie outside of the ranges. Two streams have few different
objectives, so that many candidates tie. `single` are the answers of `add_single`, candidate by candidate: Sconce's rule for a
batch. `batch` is the archive of `add`, batch by batch, whose rule is the same without a learning rate. With one, `add` moves a
threshold once by the mean of a batch, so winners may differ; their share is printed.
"""
import importlib.metadata
import os
import sys

import numpy as np
from ribs.archives import CVTArchive, GridArchive

VERSION = "0.12.0"
BATCHES, BATCH, SIZE = 200, 300, 3
RANGES = [(-1.0, 1.0), (0.0, 6.0)]
WIDE = [(-1.0, 1.0), (0.0, 2.0), (-3.0, 0.0)]
MAE = dict(learning_rate=0.1, threshold_min=-2.0)


def grid(**own):
    return GridArchive(solution_dim=SIZE, dims=[20, 15], ranges=RANGES, epsilon=0.0, dtype=np.float64, **own)


def cvt(centroids, **own):
    return CVTArchive(solution_dim=SIZE, centroids=centroids, ranges=WIDE, dtype=np.float64, seed=5, **own)


def stream(rng, ranges, ties):
    low, high = np.array(ranges).T
    measures = low + (high - low) * (1.2 * rng.random((BATCHES, BATCH, len(ranges))) - 0.1)
    # Objectives rise, so that elites are replaced until the end.
    objectives = rng.standard_normal((BATCHES, BATCH)) + 3.0 * np.arange(BATCHES)[:, None] / BATCHES
    if ties:
        objectives = np.round(2 * objectives) / 2
    solutions = rng.standard_normal((BATCHES, BATCH, SIZE)).astype(np.float32).astype(np.float64)
    # The first number of a solution is the number of its candidate, so that a winner can be named.
    solutions[:, :, 0] = np.arange(BATCHES * BATCH).reshape(BATCHES, BATCH)
    return solutions, objectives, measures


def winners(archive):
    out = np.full(archive.cells, -1, np.int32)
    data = archive.data(["index", "solution"])
    out[data["index"]] = data["solution"][:, 0]
    return out


def main(folder):
    if importlib.metadata.version("ribs") != VERSION:
        sys.exit(f"ribs {VERSION} is needed")
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(11)
    centroids = cvt(250).centroids
    cases = [("grid", grid, RANGES, {}, False), ("grid_ties", grid, RANGES, {}, True), ("grid_mae", grid, RANGES, MAE, False),
             ("cvt", lambda **own: cvt(centroids, **own), WIDE, {}, False),
             ("cvt_ties", lambda **own: cvt(centroids, **own), WIDE, {}, True),
             ("cvt_mae", lambda **own: cvt(centroids, **own), WIDE, MAE, False)]
    with open(os.path.join(folder, "cases"), "w") as out:
        for name, make, ranges, own, ties in cases:
            solutions, objectives, measures = stream(rng, ranges, ties)
            single, batch = make(**own), make(**own)
            status, value, won, batch_won = [], [], [], []
            for b in range(BATCHES):
                for s, o, m in zip(solutions[b], objectives[b], measures[b]):
                    info = single.add_single(s, o, m)
                    status.append(info["status"])
                    value.append(info["value"])
                batch.add(solutions[b], objectives[b], measures[b])
                won.append(winners(single))
                batch_won.append(winners(batch))
            columns = dict(solutions=solutions.astype("<f4"), objectives=objectives.astype("<f8"), measures=measures.astype("<f8"),
                           cells=single.index_of(measures.reshape(-1, len(ranges))).astype("<i4"),
                           status=np.array(status, "<i4"), value=np.array(value, "<f8"), won=np.array(won, "<i4"),
                           batch_won=np.array(batch_won, "<i4"))
            for column, data in columns.items():
                data.tofile(os.path.join(folder, f"{name}.{column}"))
            space = "centroids" if name.startswith("cvt") else "grid"
            text = (f"#{{name => {name}, space => {space}, batches => {BATCHES}, batch => {BATCH}, size => {SIZE}, "
                    f"measures => {len(ranges)}, ties => {str(ties).lower()}, mae => {str(bool(own)).lower()}, "
                    f"qd_score => {float(single.stats.qd_score)!r}, best => {float(single.stats.obj_max)!r}, "
                    f"elites => {single.stats.num_elites}}}.")
            print(text, file=out)
            print(text, flush=True)
    centroids.astype("<f8").tofile(os.path.join(folder, "centroids"))


main(*sys.argv[1:])
