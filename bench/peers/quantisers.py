"""Errors of quantised weights: Sconce beside torchao and ONNX Runtime, on the same weights.

    pip install torch torchao onnxruntime onnx onnx_ir safetensors
    cd bench && SCONCE_REPLAYS=replays python peers/quantisers.py DIR | tee peers/quantisers.txt    # a few minutes

`quantisers.exs` trains an MLP 512x512 and a GRU 256x2 and rounds them. Here the peers round the same matrices. Rows of one
table have the same bits, and scales of f32 for the same numbers; `zero` says that there is a zero point beside each scale,
which takes more bytes. `weights` is the relative error of all matrices, `|w - w'| / |w|`, and `logits` that of the logits
of a policy that has these matrices, on 1,200 frames of a game that was left out of training. All other weights stay f32,
and so do activations: kernels of the peers that round them too are not compared.
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore")

import onnx
import onnxruntime
import torch
import torchao
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
from onnxruntime.quantization import quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)
from safetensors import safe_open
from safetensors.numpy import save_file
from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_
from torchao.quantization.quant_primitives import MappingType

NAMES = ["mlp", "gru"]
FORMS = {"int8-row": (8, None), "int4-32": (4, 32), "int4-128": (4, 128)}
WAYS = ["nearest", "search", "gptq", "gptq-search"]


def read(path):
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["sconce"])


def sconce(path):
    """The matrices of a checkpoint of codes."""
    tensors, manifest = read(path)
    found = {}
    for name, form in manifest["codes"].items():
        codes, scales = tensors[name + ".codes"], tensors[name + ".scales"]
        if form["bits"] == 4:
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1).astype(np.int8) - 8
        codes = codes[:, : form["inputs"]].astype(np.float32)
        found[name] = codes * np.repeat(scales, form["group"], 1)[:, : form["inputs"]]
    return found


def linear(weight, config):
    layer = torch.nn.Linear(*weight.shape[::-1], bias=False)
    layer.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    model = torch.nn.Sequential(layer)
    quantize_(model, config)
    return model[0].weight.dequantize().detach().float().numpy()


def by_torchao(bits, group):
    """Ways of torchao: name, whether there is a zero point, and a function of a matrix."""
    if bits == 8:
        yield "torchao int8 weight-only", False, lambda w: linear(w, Int8WeightOnlyConfig())
        return
    for kind in MappingType:
        def rounded(w, kind=kind):
            padded = np.pad(w, ((0, 0), (0, -w.shape[1] % group)))
            config = IntxWeightOnlyConfig(torch.int4, PerGroup(group), kind)
            return linear(padded, config)[:, : w.shape[1]]

        yield f"torchao intx {kind.name.lower()}", kind == MappingType.ASYMMETRIC, rounded


def matmul(weight):
    """A model `y = x W^T`."""
    outputs, inputs = weight.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(np.ascontiguousarray(weight.T), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return model


def initializers(model):
    return {own.name: numpy_helper.to_array(own) for own in model.graph.initializer}


class Normal(CalibrationDataReader):
    """Inputs for the activations of `quantize_static`. Weights do not depend on them."""

    def __init__(self, width):
        rows = np.random.default_rng(1).standard_normal((64, width)).astype(np.float32)
        self.batches = iter([{"x": rows}])

    def get_next(self):
        return next(self.batches, None)


def int8(weight, quantise, scratch):
    given, made = scratch / "given.onnx", scratch / "made.onnx"
    onnx.save(matmul(weight), given)
    quantise(given, made)
    own = initializers(onnx.load(made))
    codes = own["w_quantized"].astype(np.float32)
    return ((codes - own["w_zero_point"].astype(np.float32)) * own["w_scale"]).T


def int4(weight, config, group):
    quantiser = MatMulNBitsQuantizer(matmul(weight), algo_config=config)
    quantiser.process()
    model = quantiser.model.model
    node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    own = initializers(model)
    (outputs, inputs), (codes, scales, *zero) = weight.shape, [own[name] for name in node.input[1:] if name]
    nibbles = lambda of: np.stack([of & 15, of >> 4], -1).reshape(outputs, -1).astype(np.float32)
    groups = -(-inputs // group)
    zeros = np.full((outputs, groups), 8.0)
    if zero:
        zeros = nibbles(zero[0].reshape(outputs, -1)) if zero[0].dtype == np.uint8 else zero[0].reshape(outputs, groups)
    spread = lambda of: np.repeat(of[:, :groups], group, 1)
    codes = nibbles(codes.reshape(outputs, -1))
    return ((codes - spread(zeros)) * spread(scales.reshape(outputs, groups)))[:, :inputs].astype(np.float32)


def by_onnx(bits, group, scratch):
    if bits == 8:
        options = {"WeightSymmetric": True}

        def dynamic(given, made):
            quantize_dynamic(given, made, per_channel=True, weight_type=QuantType.QInt8, extra_options=options)

        def static(given, made):
            width = onnx.load(given).graph.input[0].type.tensor_type.shape.dim[1].dim_value
            form = dict(quant_format=QuantFormat.QDQ, per_channel=True, weight_type=QuantType.QInt8)
            quantize_static(given, made, Normal(width), extra_options=options, **form)

        yield "onnxruntime dynamic", False, lambda w: int8(w, dynamic, scratch)
        yield "onnxruntime static QDQ", False, lambda w: int8(w, static, scratch)
        return
    for name, zero, config in [
        ("symmetric", False, lambda: DefaultWeightOnlyQuantConfig(group, is_symmetric=True)),
        ("asymmetric", True, lambda: DefaultWeightOnlyQuantConfig(group, is_symmetric=False)),
        ("HQQ", True, lambda: HQQWeightOnlyQuantConfig(group, bits=4)),
    ]:
        yield f"onnxruntime matmul 4 bits {name}", zero, lambda w, config=config: int4(w, config(), group)


def relative(pairs):
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in pairs]
    lost, whole = (sum((v**2).sum() for v in of) for of in ([a - b for a, b in pairs], [a for a, _ in pairs]))
    return np.sqrt(lost / whole)


def main(folder):
    run = lambda what: subprocess.run(["mix", "run", "peers/quantisers.exs", what, str(folder)], check=True, stdout=sys.stderr)
    run("policies")
    rows = []
    for name in NAMES:
        tensors, manifest = read(folder / f"{name}.safetensors")
        manifest.pop("sha256")
        for form, (bits, group) in FORMS.items():
            for way in WAYS:
                path = folder / f"{name}.{form}.{way}.safetensors"
                rows.append((name, form, f"sconce {way}", False, sconce(path), path))
            matrices = list(rows[-1][4])
            for title, zero, rounded in [*by_torchao(bits, group), *by_onnx(bits, group, folder)]:
                found = {own: rounded(tensors[own]) for own in matrices}
                path = folder / f"{name}.{form}.{title.replace(' ', '-')}.safetensors"
                weights = {own: np.ascontiguousarray(found.get(own, value), np.float32) for own, value in tensors.items()}
                save_file(weights, path, {"sconce": json.dumps(manifest)})
                rows.append((name, form, title, zero, found, path))
    run("logits")
    logits = lambda path: np.fromfile(f"{path}.logits", np.float32)
    version = torch.__version__
    print(f"torch {version}, torchao {torchao.__version__}, onnxruntime {onnxruntime.__version__}\n")
    before = None
    for name, form, title, zero, found, path in rows:
        tensors, _ = read(folder / f"{name}.safetensors")
        if before != (name, form):
            before = (name, form)
            print(f"{name} {form:<34} {'zero':>5} {'weights':>9} {'logits':>9}")
        weights = relative([(tensors[own], value) for own, value in found.items()])
        outputs = relative([(logits(folder / f"{name}.safetensors"), logits(path))])
        print(f"  {title:<36} {'yes' if zero else 'no':>5} {weights:9.5f} {outputs:9.5f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
