"""Times the training steps of native/ops/examples/convolutions.rs in PyTorch, on one thread."""

import statistics
import sys
import time

import torch
from torch import nn

BATCH, TRIALS = 64, 60
torch.set_num_threads(1)


def block(inputs, filters, groups, rank, norms, pools):
    conv = (nn.Conv1d if rank == 1 else nn.Conv2d)(inputs, filters, 3, padding=1, groups=groups)
    norm = (nn.BatchNorm1d if rank == 1 else nn.BatchNorm2d)(filters)
    pool = (nn.MaxPool1d if rank == 1 else nn.MaxPool2d)(2)
    return [conv] + [norm] * norms + [nn.ReLU()] + [pool] * pools


def mean(rank):
    return [(nn.AdaptiveAvgPool1d if rank == 1 else nn.AdaptiveAvgPool2d)(1), nn.Flatten()]


NETS = {
    "keyword": ([40, 49], block(40, 64, 1, 1, 1, 1) + block(64, 64, 1, 1, 1, 1) + block(64, 64, 1, 1, 1, 0) + mean(1)
                + [nn.Linear(64, 12, bias=False)]),
    "text": ([1, 32, 128], block(1, 32, 1, 2, 1, 1) + block(32, 64, 1, 2, 1, 1) + block(64, 64, 1, 2, 1, 1)
             + [nn.Flatten(), nn.Linear(64 * 4 * 16, 37, bias=False)]),
    "depthwise": ([32, 48, 48], block(32, 32, 32, 2, 0, 0) + mean(2) + [nn.Linear(32, 12, bias=False)]),
}

for name, (shape, layers) in NETS.items():
    net, x, times = nn.Sequential(*layers), 0.1 * torch.randn(BATCH, *shape), []
    for _ in range(TRIALS):
        start = time.perf_counter()
        net(x).sum().backward()
        times.append(1e3 * (time.perf_counter() - start))
        net.zero_grad()
    print(f"{name} {statistics.median(times):.3f} ms")
sys.exit(0)
