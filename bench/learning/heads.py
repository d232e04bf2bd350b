"""Makes the steps of heads.exs with PyTorch, which calls `python heads.py FOLDER [NAME=VALUE ...]`.

The folder is that of check.py. The file `rewards` beside it has one line per game. The options are those of an
advantage-weighted run (Peng et al. 2019); without them the run is plain imitation. Densities of continuous inputs are
PyTorch's own distributions and transforms, in 64 bits from the logits on. Prints the loss of each step.
"""
import sys
from pathlib import Path

import numpy as np
import torch
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution
from torch.nn import functional as F

from check import Policy, learn, load

LABELS = {"rudder": 2, "lamps": 2, "gear": 1}
TABLES = {"wind": [0]}
FRAME = 1  # the column of the states with the frame number, as a share of all frames
LOW, HIGH = torch.tensor(-0.5), torch.tensor(1.5)
LOG_STD = [-5.0, 2.0]


def gaussian_nll(logits, labels):
    """logits [b, t, 4], labels [b, t, 2] -> nats [b, t]"""
    means, log_stds = logits.double().chunk(2, -1)
    # Beyond the bounds Sconce's gradient differs from that of a clamp; this is not checked here.
    if log_stds.min() < LOG_STD[0] or log_stds.max() > LOG_STD[1]:
        raise ValueError("a deviation is out of bounds")
    # A label at a bound has no finite inverse, so it is moved slightly inside.
    margin = (HIGH - LOW).double() / 2**25
    inside = labels.double().clamp(LOW.double() + margin, HIGH.double() - margin)
    half = (HIGH - LOW).item() / 2
    squash = [TanhTransform(), AffineTransform(LOW.item() + half, half)]
    return -TransformedDistribution(Normal(means, log_stds.exp()), squash).log_prob(inside).sum(-1)


def nll(logits, actions):
    """Nats of each frame: the sum over all heads, with lamps summed over their bits: [b, t]"""
    lamps = F.binary_cross_entropy_with_logits(logits["lamps"], actions["lamps"], reduction="none").sum(-1)
    gear = F.cross_entropy(logits["gear"].movedim(-1, 1), actions["gear"][..., 0].long(), reduction="none")
    return gaussian_nll(logits["rudder"], actions["rudder"]) + lamps + gear


def discounted(rewards, discount):
    """The return of each frame of each game."""
    returns = np.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        returns[:, t] = rewards[:, t] + (discount * returns[:, t + 1] if t + 1 < rewards.shape[1] else 0)
    return torch.from_numpy(returns.ravel())


def returns_of(states, returns):
    """states [b, t, n] -> [b, t]"""
    number = states[..., FRAME].double() * len(returns)
    if (number - number.round()).abs().max() > 0.01:
        raise ValueError("not a frame number")
    return returns[number.round().long()]


def main(folder, options):
    heads = [*LABELS, "value"] if options else list(LABELS)
    policy = Policy(load(folder / "initial.safetensors"), TABLES, heads)
    if options:
        returns = discounted(np.loadtxt(folder.parent / "rewards"), options["discount"])

    def loss(batch):
        logits = policy(batch["states"], batch["ids"], None)
        nats = nll(logits, dict(zip(LABELS, batch["actions"].split(list(LABELS.values()), -1))))
        weights = batch["frame_weights"].double()
        share = weights / weights.sum()
        if not options:
            return (share * nats).sum()
        error = logits["value"][..., 0].double() - returns_of(batch["states"], returns)
        weigh = (-error.detach() / options["advantage_temperature"]).exp().clamp(max=options["advantage_max_weight"])
        return (share * (weigh * nats + options["value_weight"] * 0.5 * error.square())).sum()

    learn(folder, policy, loss)


if __name__ == "__main__":
    pairs = [option.split("=") for option in sys.argv[2:]]
    main(Path(sys.argv[1]), {name: float(value) for name, value in pairs})
