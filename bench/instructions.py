#!/usr/bin/env python3
"""Counts the instructions of a decision in two checkouts, on one thread under valgrind, where times are too noisy.

    git worktree add ../before COMMIT
    bench/instructions.py ../before . --within 0.02

The example `act` of sconce-serve is built in both, from the source of the second one, and the example `metrics` of
sconce-tensor in the second. A count is the difference between two runs with different numbers of decisions, so that
the start of the program falls out. A call from Elixir updates metrics beside those of a session: a histogram, and five
numbers of its own session's figures; their instructions are added to the second count. A decision fails if it then
has more than 1 + `--within` of the instructions of before, and the exit status is 1.

Valgrind has no AVX-512, so the products run on AVX2.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Updates of a call from Elixir: of the histogram of decisions, and of one session's figures.
HISTOGRAMS, NUMBERS = 1, 5
EXAMPLE = Path("native/serve/examples/act.rs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the checkout before the change")
    parser.add_argument("after", type=Path, help="the checkout after it")
    parser.add_argument("--decisions", type=int, default=500, help="decisions of the longer run (default 500)")
    parser.add_argument("--within", type=float, default=0.02, help="tolerated growth of a decision (default 0.02)")
    options = parser.parse_args()

    if not (options.before / EXAMPLE).exists():
        (options.before / EXAMPLE).parent.mkdir(exist_ok=True)
        shutil.copy(options.after / EXAMPLE, options.before / EXAMPLE)
    before = built(options.before, "sconce-serve", "act")
    after = built(options.after, "sconce-serve", "act")
    metrics = built(options.after, "sconce-tensor", "metrics")
    number, histogram = (count(metrics, name, 100_000, 200_000) for name in ("counter", "histogram"))
    added = HISTOGRAMS * histogram + NUMBERS * number
    print(f"before {commit(options.before)}, after {commit(options.after)}")
    print(f"an addition {number:.1f} instructions, a histogram {histogram:.1f}, those of a call {added:.0f}")
    print(f"{'decision':<10} {'before':>12} {'after':>12} {'with a call':>12} {'ratio':>8}")
    failed = False
    for backbone in ("mlp", "gru"):
        one, two = (count(of, backbone, options.decisions // 2, options.decisions) for of in (before, after))
        ratio = (two + added) / one
        failed |= ratio > 1 + options.within
        print(f"{backbone:<10} {one:>12,.0f} {two:>12,.0f} {two + added:>12,.0f} {ratio:>8.4f}")
    print(f"FAILED: more than {options.within:.0%}" if failed else f"All are within {options.within:.0%}.")
    sys.exit(failed)


def built(checkout, package, example):
    command = ["cargo", "build", "--release", "-q", "-p", package, "--example", example]
    subprocess.run(command, cwd=checkout, check=True)
    return checkout.resolve() / "target" / "release" / "examples" / example


def count(program, name, fewer, more):
    few, many = instructions(program, name, fewer), instructions(program, name, more)
    return (many - few) / (more - fewer)


def instructions(program, name, times):
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    ran = subprocess.run([*command, program, name, str(times)], capture_output=True, text=True)
    found = re.search(r"I\s+refs:\s+([\d,]+)", ran.stderr)
    if ran.returncode != 0 or not found:
        sys.exit(f"{program} {name} {times} under valgrind:\n{ran.stderr}")
    return int(found[1].replace(",", ""))


def commit(checkout):
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


main()
