"""Makes the steps of a run with PyTorch: check.exs prepares a folder, and calls `python check.py FOLDER`.

The folder contains initial.safetensors, the weights before the first step; rates, the learning rate of each step; and
N.safetensors, the batch of step N. Prints the loss of each step, before its update. Formulas are PyTorch's own modules.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

TYPES = {"F32": np.float32, "U32": np.uint32, "U16": np.uint16}
HEADS = {"buttons": 8, "main_x": 17, "main_y": 17, "c_x": 17, "c_y": 17, "shoulder": 5}
TABLES = {"action": [0, 1], "character": [2, 3], "stage": [4]}  # columns of the ids that index each learned table


def load(path):
    """Tensors by name, without the metadata."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    header.pop("__metadata__", None)
    numbers = {name: np.frombuffer(body[slice(*t["data_offsets"])], TYPES[t["dtype"]]).reshape(t["shape"])
               for name, t in header.items()}
    return {name: torch.from_numpy(n.astype(np.float32 if n.dtype == np.float32 else np.int64))
            for name, n in numbers.items()}


def linear(name, weights):
    out, width = weights[f"{name}.weight"].shape
    return nn.Linear(width, out, bias=f"{name}.bias" in weights)


class Policy(nn.Module):
    """Modules named as in the checkpoint. Every tensor of the checkpoint must have a parameter."""

    def __init__(self, weights, ids, names):
        """ids: the columns that index each learned table; names: of the heads."""
        super().__init__()
        self.ids, self.names = ids, names
        self.tables = nn.ModuleDict({t: nn.Embedding(*weights[f"{t}_embedding.weight"].shape) for t in ids})
        self.recurrent = "backbone.weight_ih_l0" in weights
        self.modules_of = {f"{t}_embedding": m for t, m in self.tables.items()}
        if self.recurrent:
            width, hidden = weights["backbone.weight_ih_l0"].shape[1], weights["backbone.weight_hh_l0"].shape[1]
            self.input_norm = self.named("backbone.input_norm", nn.LayerNorm(width))
            self.layers = nn.ModuleList()
            while f"backbone.weight_ih_l{len(self.layers)}" in weights:
                self.layers.append(nn.GRU(width, hidden, batch_first=True))
                width = hidden
            self.norms = nn.ModuleList(self.named(f"backbone.norms.{i}", nn.LayerNorm(hidden))
                                       for i in range(len(self.layers)))
        else:
            dense = [n.removesuffix(".weight") for n in sorted(weights) if n.endswith("dense.weight")]
            self.layers = nn.ModuleList(self.named(n, linear(n, weights)) for n in dense)
        names = [n.removesuffix(".weight") for n in weights if n.startswith("heads.") and n.endswith(".weight")]
        self.heads = nn.ModuleDict({n.replace(".", "/"): self.named(n, linear(n, weights)) for n in names})
        self.load(weights)

    def named(self, name, module):
        self.modules_of[name] = module
        return module

    @torch.no_grad()
    def load(self, weights):
        own = {f"{name}.{part}": p for name, module in self.modules_of.items() for part, p in module.named_parameters()}
        if self.recurrent:
            own |= {f"backbone.{part.removesuffix('_l0')}_l{i}": p
                    for i, layer in enumerate(self.layers) for part, p in layer.named_parameters()}
        if own.keys() != weights.keys():
            raise KeyError(f"different weights: {sorted(own.keys() ^ weights.keys())}")
        for name, parameter in own.items():
            parameter.copy_(weights[name])

    def head(self, name, x):
        return self.heads[f"heads/{name}"](x)

    def forward(self, states, ids, actions):
        """states [b, t, n], ids [b, t, m], actions by head -> logits by head."""
        x = torch.cat([states, *(self.tables[t](ids[..., at]).flatten(-2) for t, at in self.ids.items())], -1)
        if self.recurrent:
            x = self.input_norm(x)
            for layer, norm in zip(self.layers, self.norms):
                x = norm(layer(x)[0])
        else:
            for layer in self.layers:
                x = F.relu(layer(x))
        if "heads/stream_in" not in self.heads:
            return {n: self.head(f"{n}_logits", F.relu(self.head(f"{n}_hidden", x))) for n in self.names}
        stream, logits = self.head("stream_in", x), {}
        for n, size in HEADS.items():
            logits[n] = self.head(f"decode/{n}", stream)
            if f"heads/encode/{n}" in self.heads:
                choice = actions[n] if n == "buttons" else F.one_hot(actions[n], size)
                stream = stream + self.head(f"encode/{n}", choice.float())
        return logits


def nll(logits, actions):
    """Nats per frame: the sum over all heads, with buttons summed over their bits."""
    total = F.binary_cross_entropy_with_logits(
        logits["buttons"], actions["buttons"].float(), reduction="none").sum(-1).mean()
    for name in list(HEADS)[1:]:
        total = total + F.cross_entropy(logits[name].flatten(0, 1), actions[name].flatten())
    return total


def learn(folder, policy, loss_of):
    """Prints the loss of each batch, and makes the step."""
    decay = [p for p in policy.parameters() if p.dim() > 1]
    plain = [p for p in policy.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}])
    for step, rate in enumerate((folder / "rates").read_text().split()):
        loss = loss_of(load(folder / f"{step}.safetensors"))
        print(repr(loss.item()), flush=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        optimizer.step()


def main(folder):
    policy = Policy(load(folder / "initial.safetensors"), TABLES, HEADS)

    def loss(batch):
        if not (batch["frame_weights"] == 1).all():
            raise ValueError("frame weights other than 1")
        columns = batch["actions"].split([8, 1, 1, 1, 1, 1], -1)
        actions = {n: c if n == "buttons" else c[..., 0] for n, c in zip(HEADS, columns)}
        return nll(policy(batch["states"], batch["ids"], actions), actions)

    learn(folder, policy, loss)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
