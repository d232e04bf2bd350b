"""Shared tools: seeded tensors, case recorder, deterministic safetensors writer.

Everything is computed in float64. Parameters and inputs are rounded to float32
*before* they are used, so the reference is the exact answer for the stored values.
"""

import json
import math
import struct
import zlib
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parents[1] / "test" / "golden"
_CODES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}


def write_safetensors(path, tensors, metadata):
    """Write one file with a fixed key order, so equal content gives equal bytes."""
    # Wide items first keeps every tensor aligned to its item size.
    names = sorted(tensors, key=lambda n: (-tensors[n].element_size(), n))
    header, offset = {"__metadata__": dict(sorted(metadata.items()))}, 0
    for name in names:
        t = tensors[name]
        size = t.numel() * t.element_size()
        header[name] = {
            "dtype": _CODES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for name in names:
            f.write(tensors[name].contiguous().numpy().tobytes())


class Case:
    """Collects the tensors of one reference file.

    `perturb` is (key, flat index, delta) and moves one stored value after rounding;
    it is used only by the finite-difference check.
    """

    def __init__(self, name, dtype=torch.float64, perturb=None, verify=True):
        self.name, self.dtype, self.perturb, self.verify = name, dtype, perturb, verify
        self.gen = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        self.tensors, self.leaves, self.live = {}, {}, {}
        self.grads, self.loss, self.fd = {}, None, True
        self.config, self.source, self.tolerance = {}, "", {}

    def describe(self, source, config=None, output=1e-5, grad=5e-5, rule="scaled", floor=1e-7, fd=True):
        self.source, self.config, self.fd = source, dict(config or {}), fd
        self.tolerance = {"rule": rule, "output": output, "grad": grad, "floor": floor}

    # -- random values (float32 grid) ------------------------------------------------
    def cast(self, value):
        value = torch.as_tensor(value)
        return value.to(torch.float32).to(self.dtype) if value.is_floating_point() else value

    def randn(self, *shape, scale=1.0, shift=0.0):
        x = torch.randn(*shape, generator=self.gen, dtype=torch.float64)
        return self.cast(x * scale + shift)

    def uniform(self, *shape, lo=0.0, hi=1.0):
        x = torch.rand(*shape, generator=self.gen, dtype=torch.float64)
        return self.cast(lo + (hi - lo) * x)

    def randint(self, high, *shape):
        return torch.randint(high, shape, generator=self.gen)

    def perm(self, n):
        return torch.randperm(n, generator=self.gen)

    # -- recording -------------------------------------------------------------------
    def _leaf(self, key, value, grad):
        value = self.cast(value).detach().clone()
        if self.perturb and self.perturb[0] == key:
            value.view(-1)[self.perturb[1]] += self.perturb[2]
        if grad:
            value.requires_grad_(True)
            self.leaves[key] = value
        self.store(key, value)
        return value

    def param(self, name, value, grad=True):
        return self._leaf(f"param.{name}", value, grad)

    def input(self, name, value, grad=False):
        return self._leaf(f"input.{name}", value, grad)

    def input64(self, name, value):
        """An input that is stored in float64."""
        value = torch.as_tensor(value, dtype=torch.float64)
        self.tensors[f"input.{name}"] = value
        return value

    def output(self, name, value, f64=False):
        value = torch.as_tensor(value)
        self.live[name] = value
        if f64:
            self.tensors[f"output.{name}"] = value.detach().to(torch.float64).clone()
        else:
            self.store(f"output.{name}", value)
        return value

    def store(self, key, value):
        value = value.detach().clone()
        if value.dtype in (torch.bool, torch.int8):
            value = value.to(torch.uint8 if value.dtype == torch.bool else torch.int64)
        if key in self.tensors:
            raise KeyError(f"{self.name}: {key} stored twice")
        if value.is_floating_point() and self.dtype == torch.float64:
            value = value.to(torch.float32)
        self.tensors[key] = value

    def module(self, module, init=None):
        """Seed every parameter of a module and record it under its own name."""
        module.to(self.dtype)
        for name, p in module.named_parameters():
            if init and name in init:
                value = init[name]
            elif "norm" in name and name.endswith("weight"):
                value = self.randn(*p.shape, scale=0.1, shift=1.0)
            elif p.dim() >= 2:
                value = self.randn(*p.shape, scale=1.0 / math.sqrt(p[0].numel()))
            else:
                value = self.randn(*p.shape, scale=0.1)
            leaf = self.param(name, value)
            p.data = leaf.detach()
            self.leaves[f"param.{name}"] = p
        return module

    # -- gradients -------------------------------------------------------------------
    def backward_outputs(self, *names):
        """loss = sum over the named outputs of sum(output * cotangent)."""
        total = 0.0
        for name in names:
            y = self.live[name]
            ct = self.input(f"cotangent.{name}", self.randn(*y.shape))
            total = total + (y * ct).sum()
        self.backward(total)

    def backward(self, loss):
        self.loss = loss
        keys = list(self.leaves)
        grads = torch.autograd.grad(loss, [self.leaves[k] for k in keys], allow_unused=True)
        for key, g in zip(keys, grads):
            if g is None:
                raise ValueError(f"{self.name}: no gradient reaches {key}")
            self.grads[key] = g
            self.store(f"grad.{key}", g)

    # -- self checks -----------------------------------------------------------------
    def same(self, a, b, tol=1e-10, what=""):
        if not self.verify or self.dtype != torch.float64:
            return
        err = (a - b).abs().max().item()
        if not err <= tol * (1.0 + b.abs().max().item()):
            raise AssertionError(f"{self.name}: {what} differ by {err:.3e}")

    def save(self, folder=GOLDEN):
        meta = {
            "config": json.dumps(self.config, sort_keys=True),
            "source": self.source,
            "tolerance": json.dumps(self.tolerance, sort_keys=True),
        }
        path = folder / f"{self.name}.safetensors"
        write_safetensors(path, self.tensors, meta)
        return path


def build(name, fn, **kw):
    torch.set_default_dtype(kw.get("dtype", torch.float64))
    case = Case(name, **kw)
    fn(case)
    return case
