"""RetNet, Sun et al. 2023: rotation by absolute positions (eq. 5), the recurrent form (eq. 6), norm and gate (eq. 8)."""

import torch
from torch import nn
from torch.nn import functional as F


def head_norm(x, weight, center=False, eps=1e-5):
    """x [.., heads, d]: norm of each head; weight [heads * d]."""
    if center:
        x = x - x.mean(-1, keepdim=True)
    y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return y.flatten(-2) * weight


def retention(q, k, v, log_decay, s):
    """S_t = diag(decay_t) S_{t-1} + k_t^T v_t, o_t = q_t S_t (eq. 6), kept as its transpose.

    q, k [B,T,H,K]; v [B,T,H,V]; log_decay broadcastable to [B,T,H,K]; s [B,H,V,K].
    """
    log_decay, ys = log_decay.expand(k.shape), []
    for t in range(q.shape[1]):
        s = torch.exp(log_decay[:, t])[:, :, None, :] * s + v[:, t, :, :, None] * k[:, t, :, None, :]
        ys.append((s * q[:, t, :, None, :]).sum(-1))
    return torch.stack(ys, 1), s


# Position of the first frame. No result and no returned state depends on it.
START = 1000


def rotate(x, position, theta=10000.0):
    """Theta_n of eq. 5 on the last axis of x: the pairs (i, i + K/2) by the angles position * theta^(-2i/K)."""
    half = x.shape[-1] // 2
    freq = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.as_tensor(position, dtype=torch.float64)[..., None] * freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Mixer(nn.Module):
    def __init__(self, width, heads, expand):
        super().__init__()
        self.width, self.inner, self.heads = width, expand * width, heads
        self.qkvg_proj = nn.Linear(width, 2 * width + 2 * self.inner, bias=False)
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, width, bias=False)

    def forward(self, x, s):
        parts = self.qkvg_proj(x).split([self.width, self.width, self.inner, self.inner], -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in parts[:3])
        gamma = 1 - 2.0 ** (-5 - torch.arange(self.heads, dtype=x.dtype))
        # Given and returned states are rotated relative to the next query; here they are absolute.
        n = START + torch.arange(x.shape[1])[:, None]
        q, k, s = rotate(q, n), rotate(k, n), rotate(s, START)
        y, s = retention(q, k / q.shape[-1] ** 0.5, v, gamma.log()[:, None], s)
        s = rotate(s, -(START + x.shape[1]))
        return self.out_proj(head_norm(y, self.norm.weight) * F.silu(parts[3])), s


class FeedForward(nn.Module):
    def __init__(self, width, expand, activation):
        super().__init__()
        self.up, self.down = nn.Linear(width, expand * width), nn.Linear(expand * width, width)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


def gelu(x):
    return F.gelu(x, approximate="tanh")


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + ffn(ffn_norm(x))."""

    def __init__(self, width, mixer, ffn):
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(width), mixer
        if ffn is not None:
            self.ffn_norm, self.ffn = nn.LayerNorm(width), ffn

    def forward(self, x, *state):
        y, *state = self.mixer(self.norm(x), *state)
        x = x + y
        return (x + self.ffn(self.ffn_norm(x)) if hasattr(self, "ffn") else x), state


class Net(nn.Module):
    """Layers in sequence, then a norm. State: a list for each layer."""

    def __init__(self, width, layers):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(width)

    def forward(self, x, states):
        after = []
        for layer, state in zip(self.layers, states):
            x, state = layer(x, *state)
            after += state
        return self.norm(x), after


def case(source, batch, window, width, make, state_shapes, given, config, init=None, detached=(), scale=None):
    """Records one case: make() returns the layers; state_shapes holds the shapes of each layer's state parts."""

    def run(c):
        c.describe(source, dict(batch=batch, window=window, width=width,
                                initial_state="given" if given else "zero", **config), grad=1e-4)
        net = Net(width, make())
        c.module(net, {k: f(c) for k, f in (init or {}).items()})
        x = c.input("x", c.randn(batch, window, width), grad=True)
        states, i = [], 0
        for shapes in state_shapes:
            parts = []
            for shape in shapes:
                value = c.randn(batch, *shape, scale=0.5)
                if scale and i in scale:
                    value = scale[i](value)
                zero = torch.zeros(batch, *shape, dtype=c.dtype)
                parts.append(c.input(f"state.{i}", value, grad=i not in detached) if given else zero)
                i += 1
            states.append(parts)
        y, after = net(x, states)
        c.output("y", y)
        for i, part in enumerate(after):
            c.output(f"state.{i}", part)
        if c.verify:
            cut = max(1, window // 3)
            a, middle = net(x[:, :cut], states)
            sizes = [len(s) for s in states]
            it = iter(middle)
            b, end = net(x[:, cut:], [[next(it) for _ in range(n)] for n in sizes])
            c.same(torch.cat([a, b], 1), y, what="outputs of two parts and of the whole")
            for p, q in zip(end, after):
                c.same(p, q, what="states of two parts and of the whole")
        c.backward_outputs("y")

    return run


def _retnet(batch, window, width, heads, layers, given):
    make = lambda: [Layer(width, Mixer(width, heads, 2), FeedForward(width, 2, gelu)) for _ in range(layers)]
    shapes = [[(heads, 2 * width // heads, width // heads)] for _ in range(layers)]
    return case("Sun et al. 2023 (RetNet), eq. 5, 6 and 8", batch, window, width, make, shapes, given,
                dict(heads=heads, layers=layers, expand=2, theta=10000.0, start=START))


CASES = {
    "retnet_w7": _retnet(3, 7, 24, 3, 2, False),
    "retnet_w60_state": _retnet(3, 60, 16, 2, 2, True),
    "retnet_w512": _retnet(1, 512, 12, 2, 1, True),
}
