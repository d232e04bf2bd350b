"""xLSTM, Beck et al. 2024: sLSTM (eq. 8 to 18) and mLSTM (eq. 19 to 27) as defined, without a stabiliser.

float64 holds their exponentials. States are given and stored in stabilised form, multiplied by e^-m, with m from eq. 15
rounded up to a multiple of 1/64. h does not depend on m, so gradients are those of y, and m has none.
"""

import torch
from torch import nn
from torch.nn import functional as F

from retnet import FeedForward, Layer, case, gelu, head_norm


def causal_conv(x, weight, bias, state):
    """x [B,T,C]; state [B,C,kernel - 1]: earlier inputs, oldest first."""
    padded = torch.cat([state, x.transpose(1, 2)], -1)
    y = F.conv1d(padded, weight, bias, groups=x.shape[-1]).transpose(1, 2)
    return y, padded[..., x.shape[1]:]


def unit(m):
    return (torch.ceil(m * 64) / 64).detach()


def mlstm(q, k, v, i, f, c, m):
    """C = f C + i v k^T, n = f n + i k, h = C q / max(|n q|, 1); q, k, v [B,T,H,D], i, f [B,T,H], c [B,H,D+1,D], m [B,H]."""
    one = torch.ones_like(v[..., :1])
    v = torch.cat([v, one], -1)
    c = c * torch.exp(m)[..., None, None]
    hs = []
    for t in range(q.shape[1]):
        decay, gate = torch.sigmoid(f[:, t]), torch.exp(i[:, t])
        c = decay[..., None, None] * c + gate[..., None, None] * v[:, t, :, :, None] * k[:, t, :, None, :]
        read = (c * q[:, t, :, None, :]).sum(-1)
        hs.append(read[..., :-1] / read[..., -1:].abs().clamp(min=1.0))
        m = unit(torch.maximum(F.logsigmoid(f[:, t]) + m, i[:, t]))
    return torch.stack(hs, 1), c * torch.exp(-m)[..., None, None], m


class Mlstm(nn.Module):
    def __init__(self, width, heads, expand):
        super().__init__()
        inner = expand * width
        self.heads = heads
        self.up_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner)
        self.qk_proj = nn.Linear(inner, 2 * inner, bias=False)
        self.v_proj = nn.Linear(inner, inner, bias=False)
        self.igate, self.fgate = nn.Linear(inner, heads), nn.Linear(inner, heads)
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(inner))
        self.skip = nn.Parameter(torch.ones(inner))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, u, conv, c, m):
        x, z = self.up_proj(u).chunk(2, -1)
        a, conv = causal_conv(x, self.conv1d.weight, self.conv1d.bias, conv)
        a = F.silu(a)
        q, k = (p.unflatten(-1, (self.heads, -1)) for p in self.qk_proj(a).chunk(2, -1))
        v = self.v_proj(x).unflatten(-1, (self.heads, -1))
        h, c, m = mlstm(q, k / k.shape[-1] ** 0.5, v, self.igate(a), self.fgate(a), c, m)
        h = head_norm(h, self.norm.weight, center=True) + self.skip * a
        return self.down_proj(h * F.silu(z)), conv, c, m


def slstm(x, weight, h, c, n, m):
    """x [B,T,4W] in the order i, f, z, o; weight [4W, W / heads] block-diagonal; h, c, n, m [B,W]."""
    width, head = h.shape[-1], weight.shape[-1]
    r = weight.unflatten(0, (4, -1, head))  # gate, head, row, column
    fresh = (n == 0).all()
    c, n, hs = c * torch.exp(m), n * torch.exp(m), []
    for t in range(x.shape[1]):
        back = torch.einsum("ghrk,bhk->bghr", r, h.unflatten(-1, (-1, head))).flatten(1)
        i, f, z, o = (x[:, t] + back).chunk(4, -1)
        m = unit(i if fresh else torch.maximum(F.logsigmoid(f) + m, i))
        fresh = False
        c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        n = torch.sigmoid(f) * n + torch.exp(i)
        h = torch.sigmoid(o) * c / n
        hs.append(h)
    return torch.stack(hs, 1), h, c * torch.exp(-m), n * torch.exp(-m), m


class Slstm(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.input = nn.Linear(width, 4 * width)
        self.weight_hh = nn.Parameter(torch.zeros(4 * width, width // heads))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(width))

    def forward(self, u, h, c, n, m):
        y, *state = slstm(self.input(u), self.weight_hh, h, c, n, m)
        return head_norm(y.unflatten(-1, (self.heads, -1)), self.norm.weight, center=True), *state


def _xlstm(batch, window, width, heads, layers, given, strong):
    inner = 2 * width
    def make():
        return [Layer(width, Mlstm(width, heads, 2), None) if i % 2 == 0
                else Layer(width, Slstm(width, heads), FeedForward(width, 2, gelu)) for i in range(layers)]
    shapes, detached, scale, init, at = [], set(), {}, {}, 0
    for i in range(layers):
        if i % 2 == 0:
            shapes.append([(inner, 3), (heads, inner // heads + 1, inner // heads), (heads,)])
            detached.add(at + 2)
            low = -100.0 if strong else 0.0
            init[f"layers.{i}.mixer.fgate.bias"] = lambda c, low=low: c.uniform(heads, lo=low, hi=6.0)
            init[f"layers.{i}.mixer.igate.bias"] = lambda c: c.uniform(heads, lo=-8.0, hi=1.0)
            at += 3
        else:
            shapes.append([(width,)] * 4)
            detached.add(at + 3)
            scale[at + 2] = lambda n: n.abs() + 0.5
            def bias(c):
                low = -100.0 if strong else 0.0
                forget = c.uniform(width, lo=low, hi=6.0)
                return torch.cat([c.uniform(width, lo=-8.0, hi=8.0), forget, c.randn(2 * width, scale=0.1)])
            init[f"layers.{i}.mixer.input.bias"] = bias
            at += 4
    return case("Beck et al. 2024 (xLSTM), eq. 8 to 27", batch, window, width, make, shapes, given,
                dict(heads=heads, layers=layers, expand=2), init, detached, scale)


CASES = {
    "xlstm_w7": _xlstm(3, 7, 16, 2, 2, False, False),
    "xlstm_w60_state": _xlstm(3, 60, 12, 2, 2, True, False),
    "xlstm_w512_strong": _xlstm(1, 512, 12, 2, 2, True, True),
}
