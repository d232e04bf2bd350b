"""Transformers over a sliding window with a carried cache, alone and after an LSTM; residual LSTMs.

Keys and values are cached before rotation, in a ring: frame f of a game is in slot f % window. `seen` counts frames up
to `window`, and then stays in window..2*window, so that seen % window is always the next slot.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from recurrent import keep_biases


def rope(x, theta=10000.0):
    """x [heads, n, d] at positions 0..n; pairs (i, i + d/2) (Su et al. 2021, eq. 34)."""
    n, d = x.shape[-2:]
    freq = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : d // 2], x[..., d // 2:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, width, heads, head_dim, window, qk_norm):
        super().__init__()
        self.heads, self.head_dim, self.window = heads, head_dim, window
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.out = nn.Linear(heads * head_dim, width)
        if qk_norm:
            self.q_norm, self.k_norm = nn.LayerNorm(head_dim, eps=1e-5), nn.LayerNorm(head_dim, eps=1e-5)
        self.qk_norm = qk_norm

    def split(self, x):
        return x.reshape(-1, self.heads, self.head_dim).transpose(0, 1)

    def row(self, q, k, v, keys, values, seen):
        """One row: q, k, v [T, D], rings [window, D], frames seen."""
        past = min(seen, self.window)
        slots = [(seen - past + i) % self.window for i in range(past)]
        every_k, every_v = torch.cat([keys[slots], k]), torch.cat([values[slots], v])
        # Queries have the last positions of the remembered frames; earlier positions have none.
        every_q = torch.cat([torch.zeros_like(keys[slots]), q])
        score = rope(self.split(every_q)) @ rope(self.split(every_k)).transpose(-1, -2) / math.sqrt(self.head_dim)
        t = torch.arange(len(every_k))
        gap = t[:, None] - t[None, :]
        score = score.masked_fill(~((gap >= 0) & (gap < self.window)), float("-inf"))
        mixed = (torch.softmax(score, -1) @ self.split(every_v))[:, past:]
        keys, values = list(keys.unbind()), list(values.unbind())
        for i in range(len(k)):
            keys[(seen + i) % self.window], values[(seen + i) % self.window] = k[i], v[i]
        total = seen + len(k)
        after = total if total < self.window else self.window + total % self.window
        return mixed.transpose(0, 1).flatten(1), torch.stack(keys), torch.stack(values), after

    def forward(self, x, state):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.qk_norm:
            heads = lambda u: u.unflatten(-1, (self.heads, self.head_dim))
            q, k = self.q_norm(heads(q)).flatten(-2), self.k_norm(heads(k)).flatten(-2)
        keys, values, seen = state
        rows = [self.row(*r) for r in zip(q, k, v, keys, values, [int(n) for n in seen[:, 0]])]
        y, keys, values, seen = zip(*rows)
        seen = torch.tensor(seen, dtype=x.dtype)[:, None]
        return self.out(torch.stack(y)), (torch.stack(keys), torch.stack(values), seen)


class Block(nn.Module):
    def __init__(self, width, heads, head_dim, window, qk_norm):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        inner = Attention(width, heads, head_dim, window, qk_norm)
        # Exposes the parameters beside those of the block.
        self.qkv, self.out = inner.qkv, inner.out
        if qk_norm:
            self.q_norm, self.k_norm = inner.q_norm, inner.k_norm
        self.ffn1, self.ffn2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attend = [inner]

    def forward(self, x, state):
        y, state = self.attend[0](self.norm1(x), state)
        x = x + y
        return x + self.ffn2(F.gelu(self.ffn1(self.norm2(x)), approximate="tanh")), state


class Transformer(nn.Module):
    def __init__(self, layers, inputs, width, *attention):
        super().__init__()
        self.input = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(Block(width, *attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-5)

    def forward(self, x, states):
        x, after = self.input(x), []
        for layer, state in zip(self.layers, states):
            x, state = layer(x, state)
            after.append(state)
        return self.norm(x), after


class LstmHybrid(nn.Module):
    def __init__(self, layers, inputs, width, *attention):
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, layers, batch_first=True)
        self.dense = nn.Linear(width, width)
        inner = Attention(width, *attention)
        self.qkv, self.out = inner.qkv, inner.out
        if inner.qk_norm:
            self.q_norm, self.k_norm = inner.q_norm, inner.k_norm
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.attend = [inner]

    def forward(self, x, hc, state):
        h, hc = self.lstm(x, hc)
        u = self.dense(h)
        y, state = self.attend[0](u, state)
        return self.norm(u + y), hc, state


class ResidualLstm(nn.Module):
    """A layer of slippi-ai's res_lstm; with an inner width, a layer of its tx_like."""

    def __init__(self, width, inner):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-5)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, width, bias=False)
        self.inner = inner
        if inner:
            self.norm2 = nn.LayerNorm(width, eps=1e-5)
            self.ffn1, self.ffn2 = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)

    def forward(self, x, h, c):
        y, hc = self.lstm(self.norm1(x), (h[None], c[None]))
        x = x + self.out(y)
        if self.inner:
            x = x + self.ffn2(F.gelu(self.ffn1(self.norm2(x)), approximate="tanh"))
        return x, hc[0][0], hc[1][0]


class ResidualLstms(nn.Module):
    def __init__(self, layers, inputs, width, inner):
        super().__init__()
        self.input = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(ResidualLstm(width, inner) for _ in range(layers))

    def forward(self, x, states):
        x, after = self.input(x), []
        for layer, (h, c) in zip(self.layers, states):
            x, h, c = layer(x, h, c)
            after.append((h, c))
        return x, after


ROPE = "Vaswani et al. 2017 (eq. 1); Su et al. 2021 RoPE (eq. 34); Beltagy et al. 2020 (sliding window)"


def _cache(c, name, batch, window, width, seen):
    """A cache after `seen` frames, filled with noise."""
    keys = c.input(f"keys{name}", c.randn(batch, window, width), grad=True)
    values = c.input(f"values{name}", c.randn(batch, window, width), grad=True)
    wrapped = [n if n < window else window + n % window for n in seen]
    return keys, values, c.input(f"seen{name}", torch.tensor(wrapped, dtype=c.dtype)[:, None])


def _outputs(c, **named):
    """Records outputs. The loss includes all of them except counts."""
    for name, value in named.items():
        c.output(name, value)
    c.backward_outputs(*(n for n in named if not n.startswith("seen")))


def _transformer(layers, length, inputs, width, heads, head_dim, window, qk_norm, seen):
    def run(c):
        c.describe(ROPE, dict(layers=layers, length=length, inputs=inputs, width=width, heads=heads, head_dim=head_dim,
                              window=window, qk_norm=qk_norm, ffn=4 * width, eps=1e-5, rope="half", theta=10000.0))
        net = c.module(Transformer(layers, inputs, width, heads, head_dim, window, qk_norm))
        x = c.input("x", c.randn(len(seen), length, inputs), grad=True)
        states = [_cache(c, i, len(seen), window, heads * head_dim, seen) for i in range(layers)]
        y, after = net(x, states)
        with torch.no_grad():
            now, steps = states, []
            for t in range(length):
                step, now = net(x[:, t:t + 1], now)
                steps.append(step)
            c.same(torch.cat(steps, 1), y, what="steps and sequence")
            for (a, b) in zip(sum(now, ()), sum(after, ())):
                c.same(a, b, what="caches of steps and sequence")
        rings = {}
        for i, (keys, values, count) in enumerate(after):
            rings |= {f"keys{i}": keys, f"values{i}": values, f"seen{i}": count}
        _outputs(c, y=y, **rings)

    return run


def _hybrid(layers, length, inputs, width, heads, head_dim, window, qk_norm, seen, strong=False):
    def run(c):
        c.describe(ROPE, dict(layers=layers, length=length, inputs=inputs, width=width, heads=heads, head_dim=head_dim,
                              window=window, qk_norm=qk_norm, eps=1e-5, rope="half", gates="i,f,g,o"))
        net = LstmHybrid(layers, inputs, width, heads, head_dim, window, qk_norm)
        net = c.module(net, keep_biases(c, net) if strong else None)
        batch = len(seen)
        x = c.input("x", c.randn(batch, length, inputs), grad=True)
        h0, c0 = (c.input(n, c.randn(layers, batch, width), grad=True) for n in ("h0", "c0"))
        cache = _cache(c, 0, batch, window, heads * head_dim, seen)
        y, (h, cell), (keys, values, count) = net(x, (h0, c0), cache)
        _outputs(c, y=y, h_n=h, c_n=cell, keys0=keys, values0=values, seen0=count)

    return run


def _residual(layers, batch, length, inputs, width, inner, strong=False):
    def run(c):
        c.describe("slippi-ai (vladfi1), networks.py: res_lstm, tx_like; Hochreiter & Schmidhuber 1997",
                   dict(layers=layers, batch=batch, length=length, inputs=inputs, width=width, inner=inner, eps=1e-5,
                        gates="i,f,g,o", gelu="tanh"))
        net = ResidualLstms(layers, inputs, width, inner)
        net = c.module(net, keep_biases(c, net) if strong else None)
        x = c.input("x", c.randn(batch, length, inputs), grad=True)
        h0, c0 = (c.input(n, c.randn(layers, batch, width), grad=True) for n in ("h0", "c0"))
        y, after = net(x, list(zip(h0, c0)))
        h, cell = (torch.stack(part) for part in zip(*after))
        _outputs(c, y=y, h_n=h, c_n=cell)

    return run


CASES = {
    "transformer_state": _transformer(2, 7, 10, 12, 2, 6, 5, True, [0, 3, 9]),
    "transformer_w60_state": _transformer(1, 60, 8, 10, 2, 4, 60, False, [0, 160]),
    "decision_transformer": _transformer(3, 30, 6, 12, 3, 4, 20, False, [0, 7]),
    "lstm_hybrid": _hybrid(2, 9, 7, 10, 2, 4, 4, True, [0, 2, 11]),
    "lstm_hybrid_w60": _hybrid(1, 60, 6, 8, 2, 4, 13, False, [5, 0]),
    "lstm_hybrid_w512_strong": _hybrid(1, 512, 5, 6, 2, 4, 9, True, [3], True),
    "res_lstm": _residual(2, 3, 7, 6, 10, 0),
    "res_lstm_w60": _residual(1, 2, 60, 6, 8, 0),
    "res_lstm_w512_strong": _residual(2, 1, 512, 5, 6, 0, True),
    "tx_like": _residual(2, 3, 7, 6, 10, 20),
    "tx_like_w60": _residual(1, 2, 60, 6, 8, 16),
    "tx_like_w512_strong": _residual(2, 1, 512, 5, 6, 12, True),
}
