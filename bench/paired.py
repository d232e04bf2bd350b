#!/usr/bin/env python3
"""Compares the speed of two checkouts: runs `mix bench` alternately in each, and prints a ratio for each row.

    git worktree add ../before main
    (cd ../before && mix compile)
    bench/paired.py ../before . --only "^act .*one frame|^train" --pairs 9

A ratio is the median time of a row after the change divided by the one before it, from two runs in sequence. The table
shows the median of the ratios and a 95 % interval for it from order statistics (for 9 pairs the second smallest and the
second largest: 96 %). A row fails if its whole interval lies above 1 + `--within`. Failed rows are measured once more
with twice the pairs, and the exit status is 1 if one fails again.
"""

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    options = parse()
    checkouts = [Path(options.before), Path(options.after)]
    print(f"before {commit(checkouts[0])}, after {commit(checkouts[1])}", flush=True)
    failed = compare(checkouts, options.only, options.pairs, options)
    if failed:
        print(f"\nRepeated with {2 * options.pairs} pairs:", flush=True)
        only = "|".join(f"^{re.escape(title)}$" for title, _batch, _threads in failed)
        failed = compare(checkouts, only, 2 * options.pairs, options)
    names = ", ".join(text(row) for row in failed)
    print(f"\nFAILED: {names}" if failed else f"\nNo row is slower by {options.within:.0%}.")
    sys.exit(1 if failed else 0)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the checkout before the change, compiled")
    parser.add_argument("after", help="the checkout after it, compiled")
    parser.add_argument("--only", default="^act .*one frame|^train", help="rows, as for mix bench")
    parser.add_argument("--pairs", type=int, default=9, help="number of pairs, at least 6 (default 9)")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds per row (default 1)")
    parser.add_argument("--within", type=float, default=0.02, help="tolerated slowdown of a row (default 0.02)")
    options = parser.parse_args()
    if options.pairs < 6:
        parser.error("fewer than 6 pairs have no interval of 95 %")
    return options


def compare(checkouts, only, pairs, options):
    """Prints a table and returns the rows that failed."""
    ratios = {}
    for pair in range(pairs):
        # The order alternates with each pair, so that a machine that warms up affects both checkouts equally.
        order = checkouts if pair % 2 == 0 else checkouts[::-1]
        times = {checkout: measure(checkout, only, options.budget) for checkout in order}
        before, after = (times[checkout] for checkout in checkouts)
        for row in before.keys() & after.keys():
            ratios.setdefault(row, []).append(after[row] / before[row])
    if not ratios:
        sys.exit("no row was measured in both checkouts")
    return [row for row in sorted(ratios) if is_slower(row, ratios[row], options.within)]


def measure(checkout, only, budget):
    """Returns the median microseconds by row."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = ["mix", "bench", "--only", only, "--budget", str(budget), "--json", file.name]
        subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(file.name).read_text().splitlines()]
    bad = [row["case"] for row in rows if not row["ok"]]
    if bad:
        sys.exit(f"{checkout}: wrong output in {', '.join(bad)}")
    return {(f"{row['name']} {row['case']}", row["batch"], row["threads"]): row["median_us"] for row in rows}


def text(row):
    title, batch, threads = row
    return f"{title}, batch {batch}, {threads} threads"


def is_slower(row, ratios, within):
    ratios = sorted(ratios)
    skip = order(len(ratios))
    low, high = ratios[skip], ratios[-1 - skip]
    slower = low > 1 + within
    verdict = "  SLOWER" if slower else ""
    print(f"{text(row):64} {statistics.median(ratios):6.3f}  {low:.3f} to {high:.3f}{verdict}", flush=True)
    return slower


def order(n):
    """Ratios to leave out on each side, so that the rest contains the median in 95 % of samples."""
    tail, skip = 0.0, -1
    while True:
        tail += math.comb(n, skip + 1) / 2**n
        if tail > 0.025:
            return max(skip, 0)
        skip += 1


def commit(checkout):
    command = ["git", "-C", checkout, "describe", "--always", "--dirty", "--abbrev=9"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
