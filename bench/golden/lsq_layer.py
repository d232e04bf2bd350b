"""Two dense layers with learned steps of the weights (LSQ) and inputs on the grid of packed steps."""

import torch

# Least distance of the ratio of a weight and of an input from a tie, so that float32 rounds it as float64 does.
CLEAR = {"weight": 1e-4, "input": 5e-4}


class Straight(torch.autograd.Function):
    """A value in the forward pass, and the gradient of x in the backward pass."""

    @staticmethod
    def forward(ctx, x, value):
        return value

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Lsq(torch.autograd.Function):
    """Esser et al. 2020, eq. 1 to 3, with the gradient scale of section 2.2."""

    @staticmethod
    def forward(ctx, v, s, hi, n):
        ctx.save_for_backward(v, s)
        ctx.hi, ctx.n = hi, n
        return torch.round((v / s).clamp(-hi, hi)) * s

    @staticmethod
    def backward(ctx, dy):
        v, s = ctx.saved_tensors
        ratio, hi = v / s, ctx.hi
        inside = (ratio > -hi) & (ratio < hi)
        slope = torch.where(inside, torch.round(ratio) - ratio, ratio.clamp(-hi, hi))
        return dy * inside, dy * slope / (ctx.n * hi) ** 0.5, None, None


def is_clear(ratio, of):
    return ((ratio - ratio.floor() - 0.5).abs().min() > CLEAR[of]).item()


def rounded(x, bits):
    """Multiples of max|x| / 32512 of a row before 8 bits, of max|x| / 127 of each 32 values before 4 bits."""
    width, most = (32, 127) if bits == 4 else (x.shape[1], 127 * 256)
    parts = []
    for part in x.split(width, 1):
        scale = part.abs().amax(1, keepdim=True) / most
        parts.append((torch.round(part / scale) * scale, part / scale))
    value = torch.cat([p[0] for p in parts], 1).detach()
    ratio = torch.cat([p[1] for p in parts], 1).detach()
    return Straight.apply(x, value), bits == 8 or is_clear(ratio, "input")


def weight(v, s, bits):
    hi, cols = 2 ** (bits - 1) - 1, v.shape[1]
    width = 32 if bits == 4 else cols
    parts = [Lsq.apply(part, s[:, i : i + 1], hi, part.shape[1]) for i, part in enumerate(v.split(width, 1))]
    wide = s.repeat_interleave(width, 1)[:, :cols]
    return torch.cat(parts, 1), is_clear((v / wide).detach(), "weight")


def network(x, v1, s1, b1, v2, s2, b2, bits):
    (w1, a), (w2, b) = weight(v1, s1, bits), weight(v2, s2, bits)
    x, c = rounded(x, bits)
    h, d = rounded(torch.tanh(x @ w1.T + b1), bits)
    return h @ w2.T + b2, a and b and c and d


def _lsq_layers(bits, rows, inputs, hidden, outputs):
    def first(c, v):
        hi, width = 2 ** (bits - 1) - 1, 32 if bits == 4 else v.shape[1]
        largest = torch.stack([part.abs().amax(1) for part in v.split(width, 1)], 1) / hi
        return c.cast(largest * c.uniform(*largest.shape, lo=0.6, hi=1.1))  # some weights are clipped

    def run(c):
        c.describe(
            "Esser et al. 2020 (LSQ), eq. 1 to 3 and section 2.2; inputs straight through (Bengio et al. 2013)",
            dict(bits=bits, group=32 if bits == 4 else None, inputs="16 bits a row" if bits == 8 else
                 "8 bits in blocks of 32", activation="tanh"), grad=1e-4, output=1e-5 if bits == 4 else 5e-5, fd=False)
        while True:
            x, v1, v2 = c.randn(rows, inputs), c.randn(hidden, inputs, scale=0.2), c.randn(outputs, hidden, scale=0.2)
            b1, b2, s1, s2 = c.randn(hidden, scale=0.1), c.randn(outputs, scale=0.1), first(c, v1), first(c, v2)
            if network(x, v1, s1, b1, v2, s2, b2, bits)[1]:
                break
        x = c.input("x", x, grad=True)
        given = {name: c.param(name, value) for name, value in
                 [("up.weight", v1), ("up.step", s1), ("up.bias", b1), ("down.weight", v2), ("down.step", s2), ("down.bias", b2)]}
        c.output("y", network(x, *given.values(), bits)[0])
        c.backward_outputs("y")

    return run


CASES = {
    "lsq_layers_int8": _lsq_layers(8, 5, 40, 36, 7),
    "lsq_layers_int4": _lsq_layers(4, 3, 70, 40, 7),
}
