"""CMA-ES and its separable form in `cma` 4.5.0 on three functions, for `strategies.exs`.

    python strategies.py FILE                # minutes; Erlang terms, one for each case
    mix run peers/strategies.exs FILE        # in `bench`: the same cases by Sconce, and both beside each other

Each case has 25 seeds. A run ends when the best value is below 1e-8 or the evaluations of the case are over; the number of
evaluations is that of the first such candidate. `active` is cma's default, which also learns from the worst candidates by
negative weights; `positive` has the positive weights of Hansen 2016, as Sconce.
"""
import importlib.metadata
import os
import sys
import warnings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
import numpy as np  # noqa: E402

warnings.filterwarnings("ignore")
import cma  # noqa: E402

VERSION = "4.5.0"
GOAL, SEEDS = 1e-8, range(1, 26)

FUNCTIONS = {
    "sphere": lambda x: (x * x).sum(1),
    "rosenbrock": lambda x: (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1),
    "rastrigin": lambda x: (10 + x * x - 10 * np.cos(2 * np.pi * x)).sum(1),
}
# Function, candidates of a generation (0: the usual number), first sigma, most evaluations of the full and the separable form.
CASES = [("sphere", 0, 1.0, 10_000, 10_000), ("rosenbrock", 0, 0.5, 40_000, 20_000),
         ("rastrigin", 0, 2.0, 10_000, 10_000)]


def start(function, size, seed):
    if function == "rosenbrock":
        return np.zeros(size)
    return 3 * np.sin(np.arange(size) + seed)


def run(function, size, population, sigma, most, separable, active, seed):
    options = {"seed": seed, "verbose": -9, "CMA_active": active, "CMA_diagonal": separable}
    if population:
        options["popsize"] = population
    es = cma.CMAEvolutionStrategy(start(function, size, seed), sigma, options)
    done, best = 0, np.inf
    while done < most:
        candidates = es.ask()
        values = FUNCTIONS[function](np.array(candidates))
        for value in values:
            done, best = done + 1, min(best, value)
            if best < GOAL:
                return done, best
        es.tell(candidates, values.tolist())
    return None, best


def main(path):
    if importlib.metadata.version("cma") != VERSION:
        sys.exit(f"cma {VERSION} is needed")
    with open(path, "w") as out:
        for function, population, sigma, full_most, sep_most in CASES:
            for size in (10, 20):
                for separable in (False, True):
                    most = sep_most if separable else full_most
                    found = {}
                    for rule, active in (("active", True), ("positive", False)):
                        runs = [run(function, size, population, sigma, most, separable, active, seed) for seed in SEEDS]
                        found[rule] = ", ".join(f"{{{n or 'none'}, {float(v)!r}}}" for n, v in runs)
                    print(f"#{{function => {function}, size => {size}, population => {population}, sigma => {sigma}, "
                          f"most => {most}, separable => {str(separable).lower()}, active => [{found['active']}], "
                          f"positive => [{found['positive']}]}}.", file=out, flush=True)


main(*sys.argv[1:])
