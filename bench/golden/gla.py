"""Gated linear attention, Yang et al. 2023: eq. 3, gates and block of section 4.4."""

from torch import nn
from torch.nn import functional as F

from retnet import FeedForward, Layer, case, head_norm, retention


class Mixer(nn.Module):
    def __init__(self, width, heads, key, expand, rank=16):
        super().__init__()
        self.inner, self.heads, self.keys = expand * width, heads, heads * key
        self.qkvg_proj = nn.Linear(width, 2 * self.keys + 2 * self.inner, bias=False)
        self.gate_low = nn.Linear(width, rank, bias=False)
        self.gate_high = nn.Linear(rank, self.keys)
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(self.qkvg_proj.weight.new_ones(self.inner))
        self.out_proj = nn.Linear(self.inner, width, bias=False)

    def forward(self, x, s):
        parts = self.qkvg_proj(x).split([self.keys, self.keys, self.inner, self.inner], -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in parts[:3])
        decay = (F.logsigmoid(self.gate_high(self.gate_low(x))) / 16).unflatten(-1, (self.heads, -1))
        y, s = retention(q, k / q.shape[-1] ** 0.5, v, decay, s)
        return self.out_proj(head_norm(y, self.norm.weight) * F.silu(parts[3])), s


def _gla(batch, window, width, heads, key, layers, given, strong):
    make = lambda: [Layer(width, Mixer(width, heads, key, 2), FeedForward(width, 2, F.silu)) for _ in range(layers)]
    shapes = [[(heads, 2 * width // heads, key)] for _ in range(layers)]
    # With `strong`, log alpha falls to -100 per step.
    low, high = (-1600.0, 60.0) if strong else (-4.0, 4.0)
    init = {f"layers.{i}.mixer.gate_high.bias": lambda c: c.uniform(heads * key, lo=low, hi=high)
            for i in range(layers)}
    return case("Yang et al. 2023 (GLA), eq. 3 and section 4.4", batch, window, width, make, shapes, given,
                dict(heads=heads, head_dim=key, layers=layers, expand=2), init)


CASES = {
    "gla_w7": _gla(3, 7, 24, 3, 8, 2, False, False),
    "gla_w60_state": _gla(3, 60, 16, 2, 5, 2, True, False),
    "gla_w512_strong": _gla(1, 512, 12, 2, 17, 1, True, True),
}
