#!/usr/bin/env python3
"""Measures the peers that Sconce is compared with. Writes one file with one JSON object per line.

    SCONCE_PEERS=FOLDER ./run.py peers.json                     # all rows, with 1 and 2 threads
    SCONCE_PEERS=FOLDER ./run.py peers.json --only "gru" --budget 5 --threads 2

SCONCE_PEERS holds the shared benchmarks (common, heads, seqmodels, temporal, policy, quant, envs, ppo). PEERS_DIR is
their environment, which their run.sh makes if it is missing. This script needs only the standard library.
"""
import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
CANDLE = HERE / "candle-nn"
MODELS = ["mlp", "lstm", "gru", "mamba", "attn"]
PEERS = ["torch-eager", "torch-eager-nn", "torch-compile", "jax", "jax-unroll6", "jax-assoc", "onnxruntime",
         "torch-eager-host", "torch-jit", "torch-compile-frozen", "jax-host", "jax-closed", "openvino", "openvino-f32",
         "openvino-bf16", "torch-f32", "torch-bf16", "torch-int_mm", "torch-dynamic-int8-onednn",
         "torch-dynamic-int8-fbgemm", "onnxruntime-f32", "onnxruntime-int8", "onnxruntime-int8-per-channel",
         "onnxruntime-uint8", "threads-nobatch", "threads-batch", "threads-batch-intra1", "asyncio-batch",
         "asyncio-batch-intra1", "gymnasium-sync", "gymnasium-vector", "envpool", "c-struct", "gymnax", "jax-own",
         "jax-own-rbg", "jax-fused", "sb3-zoo", "sb3-default"]
TRAIN = [f"{what}_{m} {256 if m == 'mlp' else 32}" for what in ("train", "memory") for m in MODELS]
FORWARD = [f"{m}_full {b}" for m in MODELS if m != "mlp" for b in (1, 32)]
# One decision on one thread.
STEP = [f"{m}_step 1" for m in MODELS if m != "mlp"]
SERVE = [f"serve_{m} 64" for m in ("mlp", "gru")]
# Steps of environments on one thread. `_scan128` is 128 steps in one compiled call.
SIZES = (1, 64, 4096)
CARTPOLE = [f"{case} {n}" for case in ("cartpole", "cartpole_scan128") for n in SIZES]
ENVS = [f"{case} {n}" for case in ("mountain_car", "pendulum") for n in SIZES]
# The shared script names these cases `ppo SEED`, and prints a row for each seed.
PPO = ["ppo_update 32", "ppo_solve_475 32"]
ROLLOUT = 2048
# Compiling a loop over 60 frames takes minutes each time. These rows need --slow, which is used
# occasionally to check whether one of them has become the fastest.
# Stable-Baselines3 learns for half a minute per seed, with other settings than Sconce.
SLOW = r"^torch-compile \w*(lstm|gru|mamba)(?!_step)|^sb3-"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", type=Path)
    p.add_argument("--only", default="", help="a regular expression on 'peer case batch'")
    p.add_argument("--threads", default="1,2", help="thread counts; memory and serving use the last one")
    p.add_argument("--budget", default="1.0", help="seconds per row, and at least five calls")
    p.add_argument("--limit", type=float, default=900, help="maximum seconds per script")
    p.add_argument("--slow", action="store_true", help="also rows that take minutes to compile")
    p.add_argument("--candle", action="store_true", help="also candle-nn; cargo first builds it, which takes minutes")
    return p.parse_args()


def environment():
    if "SCONCE_PEERS" not in os.environ:
        sys.exit("SCONCE_PEERS is not set; it must name the folder of the shared benchmarks")
    shared = Path(os.environ["SCONCE_PEERS"])
    home = Path(os.environ.setdefault("PEERS_DIR", str(Path.home() / ".cache" / "sconce-peers")))
    python = home / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([shared / "run.sh", "--setup-only"], check=True)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return shared, python


def jobs(shared, threads):
    """Yields (script, its cases, threads); each is one process."""
    for t in threads:
        yield HERE / "train.py", [c for c in TRAIN if c.startswith("train") or t == threads[-1]], t
        yield CANDLE, [c for c in TRAIN if re.match("train_(mlp|lstm|gru) ", c)], t
        yield shared / "temporal.py", FORWARD + (STEP if t == "1" else []), t
        if t == "1":
            yield shared / "policy.py", ["policy_fused 1"], t
            yield shared / "quant.py", ["quant 1"], t
            yield shared / "envs.py", CARTPOLE, t
            yield HERE / "envs.py", ENVS, t
        yield shared / "ppo.py", PPO, t
        if t == threads[-1]:
            yield HERE / "serve.py", SERVE, t


def candle(cases, threads, a):
    """Builds the candle-nn program. Returns the command that runs it on as many processors as threads."""
    folder = Path(os.environ["PEERS_DIR"]) / "candle-nn"
    built = ["cargo", "build", "--release", "--locked", "--manifest-path", CANDLE / "Cargo.toml", "--target-dir", folder]
    if not shutil.which("cargo") or subprocess.run(built).returncode:
        print("candle-nn: cargo is missing, or the build failed", file=sys.stderr)
        return None
    names = ",".join(case.split()[0] for case in cases)
    return ["taskset", "-c", f"0-{int(threads) - 1}", "env", f"RAYON_NUM_THREADS={threads}",
            folder / "release" / "candle-nn-peer", "--threads", threads, "--budget", a.budget, "--cases", names]


def measure(python, script, cases, threads, a):
    """Runs a script for the selected cases. Yields the rows as they are printed."""
    peers = ["candle-nn"] if script == CANDLE else PEERS
    cases = [c for c in cases if any(re.search(a.only, f"{peer} {c}") for peer in peers)]
    only = f"^(?=.*(?:{a.only})).* ({'|'.join(cases)})$"
    if cases and cases[0] in PPO:
        learners = [peer for peer in PEERS if any(re.search(a.only, f"{peer} {c}") for c in cases)]
        only = f"^({'|'.join(learners)}) ppo "
    command = [python, script, "--threads", threads, "--budget", a.budget, "--only", only]
    command += [] if a.slow else ["--skip", SLOW]
    if cases and script == CANDLE:
        command = candle(cases, threads, a) if a.candle else None
    if not cases or not command:
        return
    if not script.exists():
        print(f"{script}: no such file", file=sys.stderr)
        return
    # In a new session, so that all processes of a script can be killed together.
    with subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True, cwd=script.parent,
                          start_new_session=True) as run:
        late = threading.Timer(a.limit, os.killpg, (run.pid, signal.SIGKILL))
        late.start()
        try:
            yield from (json.loads(line) for line in run.stdout if line.startswith("{"))
        except BaseException:
            os.killpg(run.pid, signal.SIGKILL)
            raise
        finally:
            late.cancel()
    if run.returncode:
        print(f"{script.name} --threads {threads}: exit status {run.returncode}", file=sys.stderr)


def learned(rows):
    """Medians over the seeds of each peer: of the time to the return, and of an update."""
    for row in rows:
        if not row.get("solved"):
            reason = row.get("skipped", f"seed {row.get('seed')} ended with a return of {row.get('mean_reward')}")
            yield dict(peer=row["peer"], case=row["case"], threads=row["threads"], skipped=reason)
    for peer in sorted({row["peer"] for row in rows if row.get("solved")}):
        runs = [row for row in rows if row["peer"] == peer and row.get("solved")]
        times = {"ppo_solve_475": [row["median_us"] for row in runs]}
        if runs[0]["batch"] == 32:
            times["ppo_update"] = [ROLLOUT / row["sps"] * 1e6 for row in runs]
        for case, us in times.items():
            yield dict(peer=peer, case=case, batch=runs[0]["batch"], threads=runs[0]["threads"],
                       median_us=round(statistics.median(us), 2), p95_us=round(max(us), 2), n=len(us),
                       steps=statistics.median(row["steps"] for row in runs),
                       sps=statistics.median(row["sps"] for row in runs),
                       compile_s=max(row.get("compile_s", 0) for row in runs), other=max(row["other"] for row in runs))


def main():
    a = arguments()
    shared, python = environment()
    rows = []
    with open(a.results, "w") as out:
        for script, cases, threads in jobs(shared, a.threads.split(",")):
            measured = measure(python, script, cases, threads, a)
            for row in learned(list(measured)) if script.name == "ppo.py" else measured:
                rows.append(row)
                print(json.dumps(row), file=out, flush=True)
    measured = [r for r in rows if "skipped" not in r]
    print(f"{len(measured)} rows, {len(rows) - len(measured)} skipped", file=sys.stderr)
    sys.exit(0 if measured else 1)


if __name__ == "__main__":
    main()
