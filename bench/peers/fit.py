"""Trains a network of Sconce in PyTorch, for zoo_train.exs.

    python fit.py PATH LOSS LEARNING_RATE BATCH_SIZE EPOCHS

PATH.safetensors is the initial network; PATH.train.inputs, .train.targets, .test.inputs and .test.targets are the
examples. The first line of the output has the losses of 100 steps over batches in the order of the examples, at a constant
rate. The second one has the accuracy of a whole run, or the AUC of the squared error, and the seconds of that run.
"""
import copy
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
import nets  # noqa: E402

path, loss, rate, batch, epochs = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])


def initial():
    data = Path(f"{path}.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    weights = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + size + at for at in entry["data_offsets"])
            weights[name] = torch.from_numpy(np.frombuffer(data[start:end], np.float32).reshape(entry["shape"]).copy())
    spec = json.loads(header["__metadata__"]["sconce.net"])["spec"]
    net = nets.Net(spec)
    net.load(weights)
    return net, spec["inputs"][0]["shape"]


def examples(part, shape):
    x = torch.from_numpy(np.fromfile(f"{path}.{part}.inputs", np.float32).reshape(-1, *shape))
    classes = torch.from_numpy(np.fromfile(f"{path}.{part}.targets", np.uint32).astype(np.int64))
    return x, classes


def auc(scores, flags):
    ranks = scores.argsort().argsort()[flags == 1].double() + 1
    many, count = len(ranks), len(flags)
    return ((ranks.sum() - many * (many + 1) / 2) / (many * (count - many))).item()


net, shape = initial()
(x, classes), (test, expected) = examples("train", shape), examples("test", shape)
target = x if loss == "squared" else classes
first = copy.deepcopy(net)
print(*map(float, nets.steps(first, nets.optimiser(first, "adamw", rate, 0.01), loss, x, target, batch, 100)))

torch.manual_seed(1)
start = time.perf_counter()
optimiser = nets.optimiser(net, "adamw", rate, 0.01)
total = epochs * -(-len(x) // batch)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
for _ in range(epochs):
    order = torch.randperm(len(x))
    for i in range(0, len(x), batch):
        nets.step(net, optimiser, loss, x[order[i : i + batch]], target[order[i : i + batch]])
        schedule.step()
seconds = time.perf_counter() - start
net.eval()
with torch.no_grad():
    output = net(test)
score = auc(((output - test) ** 2).flatten(1).sum(1), expected) if loss == "squared" else (output.argmax(1) == expected).double().mean().item()
print(float(score), float(seconds))
