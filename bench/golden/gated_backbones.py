"""Stacks of backbones over the gated linear recurrence, with their state: Hawk, Griffin, HGRN, RWKV-4, S5.

The state is given as `input.state.I` and returned as `output.state.I`, in the order of the parts. Cases of 512 frames
have some decays that erase a state within one frame, and some near 1.
"""

import torch
from torch import nn
from torch.nn import functional as F

from transformer import Attention


def scan(a, b, h):
    """h_t = a_t h_{t-1} + b_t; a, b [B,T,C]; h [B,C]."""
    hs = []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        hs.append(h)
    return torch.stack(hs, 1)


def gelu(x):
    return F.gelu(x, approximate="tanh")


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


class RGLRU(nn.Module):
    """De et al. 2024, eq. 1-4: a = sigmoid(Lambda)^(8 r), h = a h + sqrt(1 - a^2) (i x)."""

    def __init__(self, width):
        super().__init__()
        self.gate_a, self.gate_x = nn.Linear(width, width), nn.Linear(width, width)
        self.Lambda = nn.Parameter(torch.zeros(width))

    def forward(self, x, h):
        log_a = -8.0 * torch.sigmoid(self.gate_a(x)) * F.softplus(-self.Lambda, threshold=1e9)
        keep = torch.sqrt(-torch.expm1(2.0 * log_a))
        return scan(torch.exp(log_a), keep * torch.sigmoid(self.gate_x(x)) * x, h)


class Recurrent(nn.Module):
    """linear_out(gelu(linear_gate x) * rglru(conv(linear_value x))) (De et al. 2024, fig. 2c)."""

    parts = 2

    def __init__(self, width, inner, kernel):
        super().__init__()
        self.linear_gate, self.linear_value = nn.Linear(width, inner), nn.Linear(width, inner)
        self.conv1d = nn.Conv1d(inner, inner, kernel, groups=inner)
        self.rglru = RGLRU(inner)
        self.linear_out = nn.Linear(inner, width)

    def forward(self, x, conv, h):
        v = torch.cat([conv, self.linear_value(x).transpose(1, 2)], 2)
        conv = v[:, :, v.shape[2] - conv.shape[2]:]
        v = F.conv1d(v, self.conv1d.weight, self.conv1d.bias, groups=v.shape[1]).transpose(1, 2)
        hs = self.rglru(v, h)
        return self.linear_out(gelu(self.linear_gate(x)) * hs), conv, hs[:, -1]


class GatedMlp(nn.Module):
    parts = 0

    def __init__(self, width, inner):
        super().__init__()
        self.mlp_gate, self.mlp_up = nn.Linear(width, inner), nn.Linear(width, inner)
        self.mlp_down = nn.Linear(inner, width)

    def forward(self, x):
        return (self.mlp_down(gelu(self.mlp_gate(x)) * self.mlp_up(x)),)


class Ffn(nn.Module):
    parts = 0

    def __init__(self, width, inner, act):
        super().__init__()
        self.ffn1, self.ffn2, self.act = nn.Linear(width, inner), nn.Linear(inner, width), act

    def forward(self, x):
        return (self.ffn2(self.act(self.ffn1(x))),)


class LocalAttention(Attention):
    """The memory is stored as parts of the stack's state: keys, values, and the count of frames seen."""

    parts = 3

    def forward(self, x, *state):
        y, state = super().forward(x, state)
        return (y, *state)


class Hgrn(nn.Module):
    """f = l + (1 - l) sigmoid(Wf x), h = f h + sigmoid(Wi x) silu(Wv x), out = Wo (rmsnorm(h) silu(Wg x))."""

    parts = 1

    def __init__(self, width, inner):
        super().__init__()
        self.linear_f, self.linear_i = nn.Linear(width, inner), nn.Linear(width, inner)
        self.linear_v, self.linear_gate = nn.Linear(width, inner), nn.Linear(width, inner)
        self.norm, self.linear_out = RMSNorm(inner), nn.Linear(inner, width)
        self.bound = None

    def forward(self, x, h):
        f = self.bound + (1 - self.bound) * torch.sigmoid(self.linear_f(x))
        hs = scan(f, torch.sigmoid(self.linear_i(x)) * F.silu(self.linear_v(x)), h)
        return self.linear_out(self.norm(hs) * F.silu(self.linear_gate(x))), hs[:, -1]


def shift(x, before):
    return torch.cat([before[:, None], x[:, :-1]], 1)


class TimeMix(nn.Module):
    """Peng et al. 2023, eq. 11-17, from the published sums. The state is their ratio and the log of the denominator."""

    parts = 3

    def __init__(self, width):
        super().__init__()
        self.mix = nn.Parameter(torch.zeros(3, width))
        self.decay, self.bonus = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.linear_r, self.linear_k, self.linear_v, self.linear_out = (
            nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, before, mean, weight):
        r, k, v = (f(m * x + (1 - m) * shift(x, before))
                   for f, m in zip((self.linear_r, self.linear_k, self.linear_v), self.mix))
        decay, ys = torch.exp(self.decay), []
        # Sums are in units of exp(top). `top` is detached, so results and gradients do not depend on it.
        top = weight.detach()
        num, den = mean * torch.exp(weight - top), torch.exp(weight - top)
        for t in range(x.shape[1]):
            kt, vt = k[:, t], v[:, t]
            now = torch.maximum(top, (self.bonus + kt).detach())
            a, b = torch.exp(top - now), torch.exp(self.bonus + kt - now)
            ys.append((a * num + b * vt) / (a * den + b))
            now = torch.maximum((top - decay).detach(), kt.detach())
            a, b = torch.exp(top - decay - now), torch.exp(kt - now)
            num, den, top = a * num + b * vt, a * den + b, now
        out = self.linear_out(torch.sigmoid(r) * torch.stack(ys, 1))
        return out, x[:, -1], num / den, top + torch.log(den)


class ChannelMix(nn.Module):
    """Peng et al. 2023, eq. 18-20: sigmoid(Wr x_r) * Wv relu(Wk x_k)^2."""

    parts = 1

    def __init__(self, width, inner):
        super().__init__()
        self.mix = nn.Parameter(torch.zeros(2, width))
        self.linear_r = nn.Linear(width, width, bias=False)
        self.linear_k, self.linear_v = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, before):
        r, k = (m * x + (1 - m) * shift(x, before) for m in self.mix)
        y = torch.sigmoid(self.linear_r(r)) * self.linear_v(F.relu(self.linear_k(k)) ** 2)
        return y, x[:, -1]


class S5(nn.Module):
    """Real diagonal states (Smith et al. 2023, eq. 6): h = a h + (1 - a) / rate (B x), y = C h + D x, u sigmoid(W u)."""

    parts = 1

    def __init__(self, width, state):
        super().__init__()
        self.linear_b, self.linear_c = nn.Linear(width, state, bias=False), nn.Linear(state, width, bias=False)
        self.a_log, self.dt_log = nn.Parameter(torch.zeros(state)), nn.Parameter(torch.zeros(state))
        self.d, self.gate = nn.Parameter(torch.zeros(width)), nn.Linear(width, width)

    def forward(self, x, h):
        rate = torch.exp(self.a_log)
        log_a = -rate * torch.exp(self.dt_log)
        b = -torch.expm1(log_a) / rate * self.linear_b(x)
        hs = scan(torch.exp(log_a).expand_as(b), b, h)
        u = gelu(self.linear_c(hs) + self.d * x)
        return u * torch.sigmoid(self.gate(u)), hs[:, -1]


class Stack(nn.Module):
    """x + layer(norm(x)) for each layer, then a norm; layers.I.norm1, .., norm2, ..."""

    def __init__(self, norm, layers, width):
        super().__init__()
        self.layers = nn.ModuleList()
        for first, second in layers:
            block = nn.ModuleDict({"norm1": norm(width), "mixer": first, "norm2": norm(width)})
            if isinstance(second, ChannelMix):
                block["channel"] = second
            else:
                block.update(dict(second.named_children()))
            self.layers.append(block)
        # A plain list, so that these modules are not registered twice; the block owns their weights.
        self.seconds = [second for _, second in layers]
        self.norm = norm(width)

    def prepare(self):
        pass

    def forward(self, x, state):
        self.prepare()
        out, rest = [], list(state)
        for block, second in zip(self.layers, self.seconds):
            for norm, layer in ((block["norm1"], block["mixer"]), (block["norm2"], second)):
                own, rest = rest[:layer.parts], rest[layer.parts:]
                y, *after = layer(norm(x), *own)
                out += after
                x = x + y
        return self.norm(x), out


class HgrnStack(Stack):
    """Lower bounds of the forget gates: P_2 + .. + P_layer, where P is a softmax over the layers; 0 in layer 1."""

    def __init__(self, norm, layers, width, inner):
        super().__init__(norm, layers, width)
        self.lower_bounds = nn.Parameter(torch.zeros(len(layers), inner))

    def prepare(self):
        p = torch.softmax(self.lower_bounds, 0)
        bounds = torch.cumsum(p, 0) - p[:1]
        for block, bound in zip(self.layers, bounds):
            block["mixer"].bound = bound


# Replaces a shape for the part of a state that counts the frames in an attention cache.
SEEN = "seen"


def _part(c, i, shape, batch):
    """A part of the initial state. As a count of frames seen, it is 3, 6, .. for the rows of a batch."""
    if shape == SEEN:
        return c.input(f"state.{i}", 3.0 * torch.arange(1, batch + 1)[:, None])
    return c.input(f"state.{i}", c.randn(batch, *shape, scale=0.5), grad=True)


def _run(source, make, states, batch, window, width, init=None, **config):
    def run(c):
        c.describe(source, dict(batch=batch, window=window, width=width, eps=1e-5, **config), output=2e-5, grad=1e-4)
        net = make()
        net = c.module(net, init(c, net) if init else None)
        x = c.input("x", c.randn(batch, window, width), grad=True)
        state = [_part(c, i, shape, batch) for i, shape in enumerate(states)]
        y, after = net(x, state)
        c.output("y", y)
        for i, part in enumerate(after):
            c.output(f"state.{i}", part)
        if c.verify:
            s, steps = state, []
            for t in range(window):
                v, s = net(x[:, t:t + 1], s)
                steps.append(v)
            c.same(torch.cat(steps, 1), y, what="steps and sequence")
            cut = window // 3
            first, s = net(x[:, :cut], state)
            second, s = net(x[:, cut:], s)
            c.same(torch.cat([first, second], 1), y, what="two parts")
        c.backward_outputs("y", *(f"state.{i}" for i, shape in enumerate(states) if shape != SEEN))

    return run


def _logit(a):
    return torch.log(a) - torch.log1p(-a)


def _hawk(batch, window, width, layers, lo, hi):
    def make():
        return Stack(RMSNorm, [(Recurrent(width, width, 4), GatedMlp(width, 3 * width)) for _ in range(layers)], width)

    def init(c, net):
        return {f"layers.{i}.mixer.rglru.Lambda": _logit(c.uniform(width, lo=lo, hi=hi).double()) for i in range(layers)}

    return _run("De et al. 2024 (Hawk), eq. 1-4 and fig. 2", make, [(width, 3), (width,)] * layers, batch, window, width,
                init, layers=layers, expand=3, kernel=4)


def _griffin(batch, window, width, heads, local, strong=False):
    def make():
        attention = LocalAttention(width, heads, width // heads, local, False)
        mixers = [Recurrent(width, width, 4), Recurrent(width, width, 4), attention]
        return Stack(RMSNorm, [(mixer, GatedMlp(width, 3 * width)) for mixer in mixers], width)

    def init(c, net):
        learned = lambda: _logit(c.uniform(width, lo=0.9, hi=0.999).double())
        return {f"layers.{i}.mixer.rglru.Lambda": torch.linspace(-9, 9, width) if strong else learned() for i in range(2)}

    states = [(width, 3), (width,)] * 2 + [(local, width)] * 2 + [SEEN]
    return _run("De et al. 2024 (Griffin), fig. 2", make, states, batch, window, width, init, layers=3, expand=3, kernel=4,
                heads=heads, local_window=local)


def _hgrn(batch, window, width, layers, strong):
    inner = 2 * width

    def make():
        return HgrnStack(nn.LayerNorm, [(Hgrn(width, inner), Ffn(width, 4 * width, F.silu)) for _ in range(layers)],
                         width, inner)

    def init(c, net):
        if not strong:
            return {"lower_bounds": c.randn(layers, inner)}
        return {"lower_bounds": c.randn(layers, inner),
                "layers.0.mixer.linear_f.bias": torch.linspace(-30, 8, inner),
                "layers.1.mixer.linear_f.bias": torch.linspace(-30, 8, inner)}

    return _run("Qin et al. 2023 (HGRN), eq. 3-8 on the real line", make, [(inner,)] * layers, batch, window, width, init,
                layers=layers, state_expansion=2, bounds="softmax over layers, cumulative, without the first")


def _rwkv(batch, window, width, layers, strong):
    def make():
        return Stack(nn.LayerNorm, [(TimeMix(width), ChannelMix(width, 4 * width)) for _ in range(layers)], width)

    def init(c, net):
        init = {}
        for i in range(layers):
            at = f"layers.{i}."
            init[at + "mixer.mix"], init[at + "channel.mix"] = c.uniform(3, width), c.uniform(2, width)
            init[at + "mixer.decay"] = torch.linspace(-9, 4, width) if strong else c.uniform(width, lo=-4, hi=1)
            init[at + "mixer.bonus"] = c.randn(width)
            if strong:
                init[at + "mixer.linear_k.weight"] = c.randn(width, width, scale=6.0)
        return init

    return _run("Peng et al. 2023 (RWKV), eq. 11-20", make, [(width,)] * (4 * layers), batch, window, width, init,
                layers=layers, expand=4, decay="exp(decay) nats a frame", state="x, mean, log weight, x")


def _s5(batch, window, width, state, layers, strong):
    def make():
        return Stack(nn.LayerNorm, [(S5(width, state), Ffn(width, 4 * width, gelu)) for _ in range(layers)], width)

    def init(c, net):
        init = {}
        for i in range(layers):
            at = f"layers.{i}.mixer."
            init[at + "a_log"] = torch.log(torch.arange(1.0, state + 1, dtype=torch.float64))
            low, high = (-9.0, 3.0) if strong else (-7.0, -2.0)
            init[at + "dt_log"] = c.uniform(state, lo=low, hi=high)
            init[at + "d"] = c.randn(width)
        return init

    return _run("Smith et al. 2023 (S5), eq. 6, real diagonal", make, [(state,)] * layers, batch, window, width, init,
                layers=layers, state_size=state, ffn=4)


CASES = {
    "hawk_stack_w60": _hawk(3, 60, 16, 2, 0.9, 0.999),
    "hawk_stack_w512": _hawk(2, 512, 8, 1, 1e-4, 0.99999),
    "griffin_stack_w60": _griffin(3, 60, 16, 2, 20),
    "griffin_stack_w512": _griffin(1, 512, 8, 2, 7, True),
    "hgrn_stack_w60": _hgrn(3, 60, 12, 2, False),
    "hgrn_stack_w512": _hgrn(2, 512, 8, 2, True),
    "rwkv_stack_w60": _rwkv(3, 60, 16, 2, False),
    "rwkv_stack_w512": _rwkv(2, 512, 8, 1, True),
    "s5_stack_w60": _s5(3, 60, 16, 12, 2, False),
    "s5_stack_w512": _s5(2, 512, 8, 24, 1, True),
}
