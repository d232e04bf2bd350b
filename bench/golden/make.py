"""Writes the reference files of backbones and optimisers into test/golden.

    python make.py                 every case
    python make.py 'hgrn_*'        some cases (shell patterns allowed)
    python make.py --list
    python make.py --check         compare gradients with finite differences; writes nothing
    python make.py --f32           error of the same formulas run in float32; writes nothing
"""

import argparse
import fnmatch
import importlib
import sys

import torch

from common import HERE, build

FAMILIES = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("common", "make"))


def cases(patterns):
    table = {}
    for family in FAMILIES:
        for name, fn in importlib.import_module(family).CASES.items():
            if name in table:
                raise KeyError(name)
            table[name] = (family, fn)
    if not patterns:
        return table
    chosen = {n: v for n, v in table.items() if any(v[0] == p or fnmatch.fnmatch(n, p) for p in patterns)}
    if not chosen:
        sys.exit(f"no case matches {patterns}")
    return chosen


def check(name, fn, eps=1e-6, points=2):
    """Central differences at a few entries of every differentiated tensor."""
    case = build(name, fn)
    if case.loss is None or not case.fd:
        return None
    worst, gen = 0.0, torch.Generator().manual_seed(1)
    for key, leaf in case.leaves.items():
        grad = case.grads[key]
        for i in torch.randint(leaf.numel(), (points,), generator=gen).tolist():
            step = eps * max(1.0, leaf.detach().reshape(-1)[i].abs().item())
            up = build(name, fn, perturb=(key, i, step), verify=False).loss.item()
            down = build(name, fn, perturb=(key, i, -step), verify=False).loss.item()
            err = abs((up - down) / (2 * step) - grad.reshape(-1)[i].item())
            worst = max(worst, err / (grad.abs().max().item() + 1e-3))
    return worst


def f32_error(name, fn):
    """Largest |f32 - f64| / max|f64| over outputs and over gradients."""
    want, got = build(name, fn), build(name, fn, dtype=torch.float32, verify=False)
    worst = {"output": (0.0, ""), "grad": (0.0, "")}
    for key, w in want.tensors.items():
        kind = key.split(".")[0]
        if kind not in worst or not w.is_floating_point():
            continue
        err = (got.tensors[key].double() - w.double()).abs()
        scaled = want.tolerance["rule"] == "scaled"
        err = (err - want.tolerance["floor"]).clamp(min=0) if scaled else err
        scale = w.abs().max().double() if scaled else w.double().abs().clamp(min=1.0)
        rel = (err / scale).max().item() if err.max() > 0 else 0.0
        worst[kind] = max(worst[kind], (rel, key))
    return want.tolerance, worst


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("case", nargs="*")
    p.add_argument("--list", action="store_true")
    p.add_argument("--check", action="store_true")
    p.add_argument("--f32", action="store_true")
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    failed = 0
    for name, (family, fn) in cases(args.case).items():
        if args.list:
            print(f"{family:10} {name}")
        elif args.check:
            worst = check(name, fn)
            bad = worst is not None and not worst < 1e-5
            failed += bad
            print(f"{name:36} {'-' if worst is None else f'{worst:.1e}'}{'  BAD' if bad else ''}", flush=True)
        elif args.f32:
            tol, worst = f32_error(name, fn)
            bad = any(tol["rule"] != "exact" and not worst[k][0] <= tol[k] for k in worst)
            failed += bad
            print(f"{name:36} out {worst['output'][0]:.1e}/{tol['output']:.0e} grad {worst['grad'][0]:.1e}"
                  f"/{tol['grad']:.0e}{'  BAD ' + str([w[1] for w in worst.values()]) if bad else ''}", flush=True)
        else:
            path = build(name, fn).save()
            print(f"{path.name:44} {path.stat().st_size}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
