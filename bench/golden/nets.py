"""Networks of Sconce.Net in PyTorch, and the losses of 100 steps of three of them: `python bench/golden/nets.py`."""

import json

import torch
import torch.nn.functional as F
from torch import nn

FUNCTIONS = {"none": lambda x: x, "relu": F.relu, "relu6": F.relu6, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": F.silu}
LOSSES = {"cross_entropy": F.cross_entropy, "binary": F.binary_cross_entropy_with_logits, "squared": F.mse_loss}


class Upsample(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        for axis, factor in enumerate(self.factor):
            x = x.repeat_interleave(factor, axis + 2)
        return x


class Mean(nn.Module):
    def forward(self, x):
        return x.flatten(2).mean(2)


class Net(nn.Module):
    """The layers of a declaration in the form of its file. Weights have the names of Sconce.Net."""

    def __init__(self, spec):
        super().__init__()
        self.layers, self.functions = nn.ModuleList(), []
        shape = torch.zeros(2, *spec["inputs"][0]["shape"])
        for layer in spec["layers"]:
            module, function = self.layer(layer, shape)
            self.layers.append(module)
            self.functions.append(FUNCTIONS[function])
            shape = module(shape)

    @staticmethod
    def layer(layer, x):
        kind, rank = layer["kind"], x.dim() - 2
        function = layer.get("activation", "none")
        if kind == "conv":
            conv = [nn.Conv1d, nn.Conv2d][rank - 1]
            sizes = {key: layer[key] for key in ("stride", "padding", "dilation", "groups", "bias")}
            return conv(x.shape[1], layer["filters"], layer["kernel"], **sizes), function
        if kind == "batch_norm":
            norm = nn.BatchNorm2d if rank == 2 else nn.BatchNorm1d
            return norm(x.shape[1], eps=layer["epsilon"], momentum=layer["momentum"]), function
        if kind == "dense":
            return nn.Linear(x.shape[1], layer["size"], bias=layer["bias"]), function
        if kind == "max_pool":
            pool = [nn.MaxPool1d, nn.MaxPool2d][rank - 1]
            return pool(layer["kernel"], layer["stride"], layer["padding"]), function
        if kind == "activation":
            return nn.Identity(), layer["function"]
        simple = {"upsample": lambda: Upsample(layer["factor"]), "global_mean": Mean, "flatten": nn.Flatten}
        return simple[kind](), function

    def forward(self, x):
        for module, function in zip(self.layers, self.functions):
            x = function(module(x))
        return x

    def load(self, weights):
        """Takes weights by name; the counters of batch norms stay."""
        missing, unexpected = self.load_state_dict(weights, strict=False)
        assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)


def optimiser(net, name, lr, weight_decay):
    """Only kernels and matrices decay, as in Sconce."""
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [dict(params=matrices, weight_decay=weight_decay), dict(params=others, weight_decay=0.0)]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.9)
    return {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[name](groups, lr=lr)


def step(net, optimiser, loss, x, target):
    optimiser.zero_grad()
    found = LOSSES[loss](net(x), target)
    found.backward()
    optimiser.step()
    return found.item()


def steps(net, optimiser, loss, x, target, batch, count):
    """Losses of steps over batches in the order of the examples. The last batch of an epoch may be smaller."""
    losses = []
    while len(losses) < count:
        for first in range(0, len(x), batch):
            if len(losses) < count:
                losses.append(step(net, optimiser, loss, x[first : first + batch], target[first : first + batch]))
    return losses


def conv(filters, kernel, stride=1, groups=1, rank=2, padding=None, bias=False):
    padding = kernel // 2 if padding is None else padding
    each = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": 1}
    return {"kind": "conv", "filters": filters, "groups": groups, "bias": bias, "activation": "none"} | {
        key: [value] * rank for key, value in each.items()
    }


NORM = {"kind": "batch_norm", "epsilon": 1e-5, "momentum": 0.1, "activation": "relu"}
IMAGE = [conv(4, 3), NORM, {"kind": "max_pool", "kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]}, conv(4, 3, groups=4), NORM,
         conv(8, 3, stride=2), NORM, {"kind": "global_mean"}, {"kind": "dense", "size": 4, "bias": True, "activation": "none"}]
CODER = [conv(6, 3, stride=2, rank=1), NORM, {"kind": "upsample", "factor": [2]}, conv(3, 3, rank=1, bias=True)]
FLAGS = [conv(5, 3, stride=2, rank=1), NORM, {"kind": "flatten"}, {"kind": "dense", "size": 6, "bias": True, "activation": "tanh"},
         {"kind": "dense", "size": 3, "bias": True, "activation": "none"}]
# name: shape of an example, layers, loss, optimiser, learning rate, weight decay
CASES = {
    "net_fit_classes": ([1, 8, 8], IMAGE, "cross_entropy", "adamw", 3e-3, 0.01),
    "net_fit_coder": ([3, 12], CODER, "squared", "adam", 2e-3, 0.0),
    "net_fit_flags": ([3, 12], FLAGS, "binary", "sgd", 2e-2, 1e-3),
}
COUNT, BATCH, STEPS = 40, 12, 100


def case(name):
    from common import GOLDEN, write_safetensors

    shape, layers, loss, kind, lr, decay = CASES[name]
    torch.manual_seed(len(name))
    spec = {"inputs": [{"name": "input", "shape": shape, "vocabulary": None}], "layers": layers}
    net = Net(spec)
    x = torch.randn(COUNT, *shape)
    mean = x.flatten(1).mean(1)
    if loss == "cross_entropy":
        target = (4 * mean.argsort().argsort()) // COUNT
    elif loss == "binary":
        target = (x.flatten(2).mean(2) > 0).float()
    else:
        target = x
    tensors = {f"param.{key}": value.clone() for key, value in net.state_dict().items() if value.is_floating_point()}
    tensors |= {"input.x": x, "input.target": target}
    net.double()
    wide = [value.double() if value.is_floating_point() else value for value in (x, target)]
    losses = steps(net, optimiser(net, kind, lr, decay), loss, *wide, BATCH, STEPS)
    tensors["output.losses"] = torch.tensor(losses, dtype=torch.float32)
    tensors |= {f"output.{key}": value.float() for key, value in net.state_dict().items() if value.is_floating_point()}
    config = dict(spec=spec, loss=loss, optimizer=kind, lr=lr, weight_decay=decay, batch=BATCH, steps=STEPS)
    tolerance = dict(rule="scaled", output=1e-3, grad=1e-3, floor=1e-6)
    metadata = {"source": f"PyTorch {torch.__version__} in float64", "config": json.dumps(config), "tolerance": json.dumps(tolerance)}
    write_safetensors(GOLDEN / f"{name}.safetensors", tensors, metadata)
    print(name, losses[0], losses[-1])


if __name__ == "__main__":
    for name in CASES:
        case(name)
