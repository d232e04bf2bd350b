"""Trajectories of optimisers: AdaBelief, Yogi, and PyTorch's optimisers with weight decay added to the gradient.

Gradients are stored per step, so that a checker uses them instead of the problem itself.
"""

import torch

STEPS = 10
SHAPES = {"w": (5, 3), "b": (7,), "z": (4,)}  # z starts at zero


class Adaptive:
    """Adam's step with another second moment. Both moments are corrected for bias."""

    first = 0.0

    def __init__(self, params, lr, betas, eps, weight_decay=0.0):
        self.params, self.lr, self.betas, self.eps, self.wd, self.t = params, lr, betas, eps, weight_decay, 0
        begin = dict(zip(self.names, (0.0, self.first)))
        self.state = {p: {n: torch.full_like(p, x) for n, x in begin.items()} for p in params}

    def step(self):
        b1, b2 = self.betas
        self.t += 1
        for p in self.params:
            m, v = (self.state[p][n] for n in self.names)
            g = self.decayed(p)
            m.copy_(b1 * m + (1 - b1) * g)
            v.copy_(self.second(g, m, v, b2))
            p.data -= self.lr * m / (1 - b1 ** self.t) / ((v / (1 - b2 ** self.t)).sqrt() + self.eps)


class AdaBelief(Adaptive):
    """Zhuang et al. 2020 (AdaBelief, alg. 2), decoupled weight decay."""

    names = ("exp_avg", "exp_avg_var")

    def decayed(self, p):
        p.data *= 1 - self.lr * self.wd
        return p.grad

    def second(self, g, m, v, b2):
        return b2 * v + (1 - b2) * (g - m).square() + self.eps


class Yogi(Adaptive):
    """Zaheer et al. 2018 (Yogi, alg. 2), with corrections of bias, v from 1e-6; decay in the gradient."""

    names = ("exp_avg", "exp_avg_sq")
    first = 1e-6

    def decayed(self, p):
        return p.grad + self.wd * p.data

    def second(self, g, m, v, b2):
        return v - (1 - b2) * torch.sign(v - g.square()) * g.square()


def _trajectory(source, make, names, **config):
    def run(c):
        c.describe(source, dict(steps=STEPS, **config), output=1e-5, floor=1e-9)
        start = {n: torch.zeros(s) if n == "z" else c.randn(*s) for n, s in SHAPES.items()}
        params = {n: c.param(n, v, grad=False).clone() for n, v in start.items()}
        goal = {n: c.randn(*s) for n, s in SHAPES.items()}
        curve = {n: c.uniform(*s, lo=0.2, hi=3.0) for n, s in SHAPES.items()}
        noise = [{n: c.randn(*s, scale=0.3) for n, s in SHAPES.items()} for _ in range(STEPS)]
        opt = make(list(params.values()), **config)
        grads, after = {n: [] for n in SHAPES}, {n: [] for n in SHAPES}
        for t in range(STEPS):
            for n, p in params.items():
                p.grad = c.cast(curve[n] * (p.data - goal[n]) + noise[t][n])
                grads[n].append(p.grad.clone())
            opt.step()
            for n, p in params.items():
                after[n].append(p.data.clone())
        for n, p in params.items():
            c.input(f"grad.{n}", torch.stack(grads[n]))
            c.output(f"param.{n}", torch.stack(after[n]))
            for s in names:
                c.output(f"state.{s}.{n}", opt.state[p][s])

    return run


_T = torch.optim
_M2 = ("exp_avg", "exp_avg_sq")
_L2 = "; decay is added to the gradient"
_ADAM = dict(lr=1e-2, betas=(0.9, 0.999), weight_decay=0.1)

CASES = {
    "optim_adabelief": _trajectory(AdaBelief.__doc__, AdaBelief, AdaBelief.names, eps=1e-8, **_ADAM),
    "optim_yogi": _trajectory(Yogi.__doc__, Yogi, Yogi.names, eps=1e-3, **_ADAM),
    "optim_adam_decay": _trajectory("Kingma & Ba 2015 (Adam, alg. 1)" + _L2, _T.Adam, _M2, eps=1e-8, **_ADAM),
    "optim_radam_decay": _trajectory("Liu et al. 2020 (RAdam, alg. 2)" + _L2, _T.RAdam, _M2, eps=1e-8, **_ADAM),
    "optim_sgd_decay": _trajectory("Polyak 1964" + _L2, _T.SGD, ("momentum_buffer",), lr=1e-2, momentum=0.9,
                                   weight_decay=0.1),
    "optim_rmsprop_decay": _trajectory("Tieleman & Hinton 2012" + _L2, _T.RMSprop, ("square_avg",), lr=1e-2, alpha=0.99,
                                       eps=1e-8, weight_decay=0.1),
}
