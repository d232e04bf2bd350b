"""Backbones of selective state spaces: Jamba, Zamba, a gated recurrence, S4D-Real."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from transformer import Block as AttentionBlock


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, eq. 4)."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def convolve(x, conv, state):
    """Causal depthwise convolution of x [B,T,C]; state [B,C,K-1], oldest first."""
    full = torch.cat([state, x.transpose(1, 2)], -1)
    y = F.conv1d(full, conv.weight, conv.bias, groups=conv.groups).transpose(1, 2)
    return y, full[..., full.shape[-1] - state.shape[-1]:]


def scan(u, dt, A, B, C, D, h):
    """h_t = exp(dt A) h_{t-1} + dt B_t u_t; y_t = C_t h_t + D u_t, step by step."""
    ys = []
    for t in range(u.shape[1]):
        d = dt[:, t, :, None]
        h = torch.exp(d * A) * h + d * B[:, t, None, :] * u[:, t, :, None]
        ys.append((h * C[:, t, None, :]).sum(-1) + D * u[:, t])
    return torch.stack(ys, 1), h


class Mamba(nn.Module):
    def __init__(self, width, expand=2, state=4, kernel=4):
        super().__init__()
        c, self.rank, self.state = expand * width, math.ceil(width / 16), state
        self.in_proj = nn.Linear(width, 2 * c, bias=False)
        self.conv1d = nn.Conv1d(c, c, kernel, groups=c)
        self.x_proj = nn.Linear(c, self.rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(self.rank, c)
        self.A_log = nn.Parameter(torch.zeros(c, state))
        self.D = nn.Parameter(torch.ones(c))
        self.out_proj = nn.Linear(c, width, bias=False)

    def zero(self, batch):
        c, k = self.conv1d.groups, self.conv1d.kernel_size[0]
        return [torch.zeros(batch, c, k - 1), torch.zeros(batch, c, self.state)]

    def forward(self, u, state):
        x, z = self.in_proj(u).chunk(2, -1)
        x, conv = convolve(x, self.conv1d, state[0])
        x = F.silu(x)
        dt, B, C = self.x_proj(x).split([self.rank, self.state, self.state], -1)
        dt = F.softplus(self.dt_proj(dt), threshold=1e9)
        y, ssm = scan(x, dt, -torch.exp(self.A_log), B, C, self.D, state[1])
        return self.out_proj(y * F.silu(z)), [conv, ssm]


class GatedSsm(nn.Module):
    def __init__(self, width, expand=2, kernel=4):
        super().__init__()
        c, self.rank = expand * width, math.ceil(width / 16)
        self.in_proj = nn.Linear(width, 2 * c, bias=False)
        self.conv1d = nn.Conv1d(c, c, kernel, groups=c)
        self.x_proj = nn.Linear(c, 2 * self.rank, bias=False)
        self.decay_proj, self.input_proj = nn.Linear(self.rank, c), nn.Linear(self.rank, c)
        self.out_proj = nn.Linear(c, width, bias=False)

    def zero(self, batch):
        c, k = self.conv1d.groups, self.conv1d.kernel_size[0]
        return [torch.zeros(batch, c, k - 1), torch.zeros(batch, c)]

    def forward(self, u, state):
        x, z = self.in_proj(u).chunk(2, -1)
        x, conv = convolve(x, self.conv1d, state[0])
        x = F.silu(x)
        f, i = self.x_proj(x).chunk(2, -1)
        a, g = torch.sigmoid(self.decay_proj(f)), torch.sigmoid(self.input_proj(i))
        s, ys = state[1], []
        for t in range(x.shape[1]):
            s = a[:, t] * s + (1 - a[:, t]) * g[:, t] * x[:, t]
            ys.append(s)
        return self.out_proj(torch.stack(ys, 1) * F.silu(z)), [conv, s]


class S4d(nn.Module):
    def __init__(self, width, state):
        super().__init__()
        self.state = state
        self.bc_proj = nn.Linear(width, 2 * state, bias=False)
        self.A_log = nn.Parameter(torch.zeros(width, state))
        self.log_dt = nn.Parameter(torch.zeros(width))
        self.D = nn.Parameter(torch.ones(width))
        self.out_proj = nn.Linear(width, width)

    def zero(self, batch):
        return [torch.zeros(batch, self.A_log.shape[0], self.state)]

    def forward(self, x, state):
        B, C = self.bc_proj(x).chunk(2, -1)
        dt = torch.exp(self.log_dt).expand_as(x)
        y, s = scan(x, dt, -torch.exp(self.A_log), B, C, self.D, state[0])
        return self.out_proj(F.gelu(y, approximate="tanh")), [s]


class GatedFeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        x, gate = self.up(x).chunk(2, -1)
        return self.down(x * F.silu(gate))


class Residual(nn.Module):
    """x + mixer(norm(x))"""

    def __init__(self, width, mixer):
        super().__init__()
        self.norm, self.mixer = RMSNorm(width), mixer
        self.zero = mixer.zero

    def forward(self, x, state):
        y, state = self.mixer(self.norm(x), state)
        return x + y, state


class S4dLayer(nn.Module):
    def __init__(self, width, state):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        self.mixer, self.ffn = S4d(width, state), GatedFeedForward(width, 4 * width)
        self.zero = self.mixer.zero

    def forward(self, x, state):
        y, state = self.mixer(self.norm1(x), state)
        x = x + y
        return x + self.ffn(self.norm2(x)), state


class Transformer(nn.Module):
    """A transformer block whose memory is a list: keys, values, and the count of frames seen."""

    def __init__(self, width, heads, head_dim, window):
        super().__init__()
        self.block = [AttentionBlock(width, heads, head_dim, window, True)]
        # Exposes the block's parameters directly, without a prefix.
        for name, part in self.block[0].named_children():
            self.add_module(name, part)
        self.zero = lambda n: [torch.zeros(n, window, heads * head_dim) for _ in range(2)] + [torch.zeros(n, 1)]

    def forward(self, x, state):
        x, state = self.block[0](x, state)
        return x, list(state)


class Net(nn.Module):
    """input -> layers in a given order, where a layer may repeat -> norm"""

    def __init__(self, inputs, width, layers, order, norm, shared=None):
        super().__init__()
        self.input = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(layers)
        if shared is not None:
            self.shared = shared
        if norm:
            self.norm = nn.LayerNorm(width, eps=1e-5)
        self.order, self.last = order, norm

    def walk(self):
        return [self.shared if i == "shared" else self.layers[i] for i in self.order]

    def zero(self, batch):
        return [layer.zero(batch) for layer in self.walk()]

    def forward(self, x, states):
        x, after = self.input(x), []
        for layer, state in zip(self.walk(), states):
            x, state = layer(x, state)
            after.append(state)
        return (self.norm(x) if self.last else x), after


def inverse_softplus(x):
    return x + torch.log(-torch.expm1(-x))


def starts(c, net, strong):
    """Decay parameters: the usual initial values, or with `strong`, ones whose product over a window is 0 in float32."""
    init = {}
    for name, p in net.named_parameters():
        if name.endswith("dt_proj.bias"):
            dt = c.uniform(*p.shape, lo=math.log(1e-3), hi=math.log(0.1)).double().exp()
            init[name] = inverse_softplus(torch.logspace(-4, 1.3, len(p)) if strong else dt)
        elif name.endswith("log_dt"):
            init[name] = c.uniform(*p.shape, lo=-6.0, hi=1.5 if strong else -2.3)
        elif name.endswith("A_log"):
            a = torch.arange(1, p.shape[1] + 1, dtype=torch.float64)
            init[name] = a.log() + c.randn(*p.shape, scale=0.1)
        elif name.endswith("decay_proj.bias"):
            init[name] = c.uniform(*p.shape, lo=-9.0 if strong else 1.0, hi=9.0 if strong else 6.0)
        elif name.endswith("mixer.D"):
            init[name] = c.randn(*p.shape, scale=0.2, shift=1.0)
    return init


def noise(c, zero):
    """Random values of an initial state. A state with a third part is an attention cache that has seen 4 frames."""
    i = iter(range(1000))
    drawn = lambda part: c.input(f"state.{next(i)}", c.randn(*part.shape, scale=0.5), grad=True)
    seen = lambda part: c.input(f"state.{next(i)}", part + 4.0)
    return [[drawn(part) for part in state[:2]] + [seen(part) for part in state[2:]] for state in zero]


def case(source, make, batch, window, inputs, given=False, strong=False):
    def run(c):
        net = make(inputs)
        c.describe(source, dict(batch=batch, window=window, inputs=inputs, strong=strong), grad=1e-4)
        c.module(net, starts(c, net, strong))
        x = c.input("x", c.randn(batch, window, inputs), grad=True)
        states = [[part.to(c.dtype) for part in state] for state in net.zero(batch)]
        if given:
            states = noise(c, states)
        y, after = net(x, states)
        c.output("y", y)
        flat = [part for state in after for part in state]
        for i, part in enumerate(flat):
            c.output(f"state.{i}", part)
        with torch.no_grad():
            cut = window // 3
            a, between = net(x[:, :cut], states)
            b, _ = net(x[:, cut:], between)
            c.same(torch.cat([a, b], 1), y, what="two parts and whole")
        c.backward_outputs("y", *(f"state.{i}" for i, part in enumerate(flat) if part.requires_grad))

    return run


def jamba(width):
    def make(inputs):
        layers = [Residual(width, Mamba(width)), Transformer(width, 2, 4, 9), Residual(width, Mamba(width))]
        return Net(inputs, width, layers, [0, 1, 2], True)

    return make


def zamba(width, order):
    def make(inputs):
        layers = [Residual(width, Mamba(width)) for _ in range(len(order) - order.count("shared"))]
        return Net(inputs, width, layers, order, True, Transformer(width, 2, 4, 9))

    return make


def gated(width):
    return lambda inputs: Net(inputs, width, [Residual(width, GatedSsm(width)) for _ in range(2)], [0, 1], False)


def s4d(width, state):
    return lambda inputs: Net(inputs, width, [S4dLayer(width, state) for _ in range(2)], [0, 1], True)


GATED = "Gu & Dao 2023 (Mamba), fig. 3, with a gated recurrence of one state a channel"
S4D = "Gu et al. 2022 (S4D-Real), section 4, with B and C read off the input; Shazeer 2020 (SwiGLU)"

JAMBA = "Lieber et al. 2024 (Jamba)"
ZAMBA = "Glorioso et al. 2024 (Zamba), without the concatenated input"

CASES = {
    "jamba": case(JAMBA, jamba(12), 2, 23, 7),
    "jamba_w512_strong": case(JAMBA, jamba(6), 1, 512, 5, given=True, strong=True),
    "zamba": case(ZAMBA, zamba(12, [0, 1, "shared", 2, 3, "shared"]), 2, 23, 7),
    "zamba_w512_strong": case(ZAMBA, zamba(6, [0, "shared", 1, "shared"]), 1, 512, 5, given=True, strong=True),
    "gated_ssm_w60": case(GATED, gated(18), 2, 60, 7, given=True),
    "gated_ssm_w512_strong": case(GATED, gated(6), 1, 512, 5, given=True, strong=True),
    "s4d_w60": case(S4D, s4d(12, 17), 2, 60, 7, given=True),
    "s4d_w512_strong": case(S4D, s4d(6, 4), 1, 512, 5, given=True, strong=True),
}
