"""A student of several teachers: the loss and gradients of torch.distributions over the mean of their probabilities."""

import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

BATCH, BITS, CLASSES, NUMBERS, TEACHERS = 9, 8, 17, 3, 3


def _weighted(c, temperature, kl):
    weights = c.input("frame_weights", c.uniform(BATCH, hi=2.0))
    kl = c.output("kl", (weights * kl).sum() / weights.sum())
    c.backward(c.output("loss", temperature**2 * kl))


def _discrete(direction, temperature):
    def run(c):
        config = dict(batch=BATCH, direction=direction, temperature=temperature, teachers=TEACHERS)
        c.describe("Hinton et al. 2015 (section 2), the mean of the teachers' probabilities for each head", config)
        kl = 0.0
        for name, size, kind in [("bits", BITS, Bernoulli), ("choice", CLASSES, Categorical)]:
            student = c.input(f"student.{name}", c.randn(BATCH, size, scale=2.0), grad=True)
            teachers = [c.input(f"teacher{i}.{name}", c.randn(BATCH, size, scale=2.0)) for i in range(TEACHERS)]
            probs = torch.stack([kind(logits=y / temperature).probs for y in teachers]).mean(0)
            own, mean = kind(logits=student / temperature), kind(probs=probs)
            pair = (mean, own) if direction == "reverse" else (own, mean)
            each = kl_divergence(*pair)
            kl = kl + (each.sum(-1) if kind is Bernoulli else each)
        _weighted(c, temperature, kl)

    return run


def _tanh(direction):
    """The divergence of squashed Gaussians is that of the Gaussians: it does not depend on the scale of a number."""

    def run(c):
        config = dict(batch=BATCH, direction=direction, teachers=TEACHERS)
        c.describe("Mean of the divergences from Gaussians", config)

        def normal(name, grad=False):
            mean = c.input(f"{name}.mean", c.randn(BATCH, NUMBERS), grad=grad)
            return Normal(mean, c.input(f"{name}.log_std", c.randn(BATCH, NUMBERS, scale=0.5), grad=grad).exp())

        own, teachers = normal("student", True), [normal(f"teacher{i}") for i in range(TEACHERS)]
        pairs = [(other, own) if direction == "reverse" else (own, other) for other in teachers]
        _weighted(c, 1.0, torch.stack([kl_divergence(*pair).sum(-1) for pair in pairs]).mean(0))

    return run


CASES = {
    "distill_teachers_reverse": _discrete("reverse", 2.5),
    "distill_teachers_forward": _discrete("forward", 2.5),
    "distill_teachers_plain": _discrete("reverse", 1.0),
    "distill_teachers_tanh_reverse": _tanh("reverse"),
    "distill_teachers_tanh_forward": _tanh("forward"),
}
