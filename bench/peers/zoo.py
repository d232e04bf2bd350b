"""The networks of `Sconce.Zoo` in ONNX Runtime, for `mix bench zoo --with-peers`.

    python zoo.py FOLDER --threads 1

FOLDER has three files of each network: NAME.json (the declaration, the inputs and the outputs of Sconce), NAME.safetensors
(the weights). The script reads commands from standard input and answers each with a line of JSON:

    check NAME            builds the model and compares its outputs with those of Sconce
    time NAME SECONDS     microseconds of single runs
    check8 NAME           quantises the model to 8 bits and compares its output with that in f32
    time8 NAME SECONDS    microseconds of its single runs

Needs the packages numpy, onnx and onnxruntime. Models are f32, made of plain operators of opset 20; ONNX Runtime fuses
batch norm and activations into convolutions. For 8 bits its tools quantise them statically: QDQ, a scale for each filter,
inputs as unsigned and weights as signed numbers, with ranges of the given input and 15 random ones. On a CPU without VNNI weights
have 7 bits (`reduce_range`), because products would saturate.
"""
import argparse
import json
import math
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FUNCTIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hard_swish": "HardSwish"}
TOLERANCE = 1e-4


def safetensors(path):
    """The tensors of a file, all f32."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + size + at for at in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])
    return tensors


class Model:
    """The nodes of a network. `of` methods take the name of a value and its shape, and return those of the result."""

    def __init__(self, declaration, weights):
        self.weights, self.nodes, self.initializers, self.count = weights, [], [], 0
        inputs, values = [], {}
        for each in declaration["inputs"]:
            kind = TensorProto.FLOAT if each["vocabulary"] is None else TensorProto.INT64
            inputs.append(helper.make_tensor_value_info(each["name"], kind, [1] + each["shape"]))
            values[each["name"]] = (each["name"], each["shape"])
        first = next(iter(values.values()))
        layers = declaration["layers"]
        value, shape = self.inputs(layers, values) if layers[0]["kind"] == "inputs" else self.all(layers, "layers", first)
        self.nodes.append(helper.make_node("Identity", [value], ["output"]))
        outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1] + shape)]
        graph = helper.make_graph(self.nodes, "zoo", inputs, outputs, self.initializers)
        self.proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.checker.check_model(self.proto)

    def node(self, op, inputs, outputs=1, **attributes):
        names = [f"v{self.count + i}" for i in range(outputs)]
        self.count += outputs
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array):
        name = f"c{self.count}"
        self.count += 1
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, at, name):
        return self.constant(self.weights[f"{at}.{name}"])

    def inputs(self, layers, values):
        branches = enumerate(layers[0]["branches"])
        parts = [self.all(own, f"layers.0.branches.{i}", values[name]) for i, (name, own) in branches]
        return self.all(layers[1:], "layers", self.joined(parts), 1)

    def all(self, layers, at, value, start=0):
        for i, layer in enumerate(layers):
            value = getattr(self, layer["kind"])(layer, f"{at}.{i + start}", *value)
        return value

    def joined(self, parts):
        shape = [sum(shape[0] for _, shape in parts)] + parts[0][1][1:]
        return self.node("Concat", [value for value, _ in parts], axis=1), shape

    def function(self, name, value):
        if name == "none":
            return value
        if name == "relu6":
            return self.node("Clip", [value, self.constant(np.float32(0)), self.constant(np.float32(6))])
        if name == "silu":
            return self.node("Mul", [value, self.node("Sigmoid", [value])])
        if name == "gelu":
            return self.node("Gelu", [value], approximate="tanh")
        return self.node(FUNCTIONS[name], [value])

    def activation(self, layer, _at, value, shape):
        return self.function(layer["function"], value), shape

    def conv(self, layer, at, value, shape):
        inputs = [value, self.weight(at, "weight")] + ([self.weight(at, "bias")] if layer["bias"] else [])
        value = self.node("Conv", inputs, kernel_shape=layer["kernel"], strides=layer["stride"],
                          pads=layer["padding"] * 2, dilations=layer["dilation"], group=layer["groups"])
        sizes = places(shape[1:], layer, layer["dilation"])
        return self.function(layer["activation"], value), [layer["filters"]] + sizes

    def conv_transpose(self, layer, at, value, shape):
        inputs = [value, self.weight(at, "weight")] + ([self.weight(at, "bias")] if layer["bias"] else [])
        value = self.node("ConvTranspose", inputs, kernel_shape=layer["kernel"], strides=layer["stride"],
                          pads=layer["padding"] * 2, output_padding=layer["output_padding"],
                          dilations=layer["dilation"], group=layer["groups"])
        lists = zip(shape[1:], layer["kernel"], layer["stride"], layer["padding"], layer["output_padding"],
                    layer["dilation"])
        sizes = [(n - 1) * s - 2 * p + d * (k - 1) + more + 1 for n, k, s, p, more, d in lists]
        return self.function(layer["activation"], value), [layer["filters"]] + sizes

    def batch_norm(self, layer, at, value, shape):
        names = ("weight", "bias", "running_mean", "running_var")
        inputs = [value] + [self.weight(at, name) for name in names]
        value = self.node("BatchNormalization", inputs, epsilon=layer["epsilon"])
        return self.function(layer["activation"], value), shape

    def max_pool(self, layer, _at, value, shape):
        return self.pool("MaxPool", layer, value, shape)

    def mean_pool(self, layer, _at, value, shape):
        return self.pool("AveragePool", layer, value, shape, count_include_pad=int(layer["count_padding"]))

    def pool(self, op, layer, value, shape, **more):
        value = self.node(op, [value], kernel_shape=layer["kernel"], strides=layer["stride"],
                          pads=layer["padding"] * 2, **more)
        return value, [shape[0]] + places(shape[1:], layer, [1] * len(layer["kernel"]))

    def global_mean(self, _layer, _at, value, shape):
        return self.node("Flatten", [self.node("GlobalAveragePool", [value])], axis=1), shape[:1]

    def global_max(self, _layer, _at, value, shape):
        return self.node("Flatten", [self.node("GlobalMaxPool", [value])], axis=1), shape[:1]

    def upsample(self, layer, _at, value, shape):
        scales = self.constant(np.array([1, 1] + layer["factor"], np.float32))
        value = self.node("Resize", [value, "", scales], mode="nearest", nearest_mode="floor",
                          coordinate_transformation_mode="asymmetric")
        return value, [shape[0]] + [size * by for size, by in zip(shape[1:], layer["factor"])]

    def flatten(self, _layer, _at, value, shape):
        return self.node("Flatten", [value], axis=1), [math.prod(shape)]

    def dense(self, layer, at, value, _shape):
        inputs = [value, self.weight(at, "weight")] + ([self.weight(at, "bias")] if layer["bias"] else [])
        return self.function(layer["activation"], self.node("Gemm", inputs, transB=1)), [layer["size"]]

    def embed(self, layer, at, value, shape):
        value = self.node("Gather", [self.weight(at, "weight"), value], axis=0)
        return self.node("Transpose", [value], perm=[0, 2, 1]), [layer["size"]] + shape

    def attention(self, layer, at, value, shape):
        (c, t), heads = shape, layer["heads"]
        rows = self.node("Transpose", [value], perm=[0, 2, 1])
        qkv = self.linear(rows, at, "in_proj_weight", "in_proj_bias")
        split = self.constant(np.array([c, c, c], np.int64))
        into = self.constant(np.array([1, t, heads, c // heads], np.int64))
        q, k, v = (self.node("Reshape", [part, into]) for part in self.node("Split", [qkv, split], 3, axis=2))
        q, v = (self.node("Transpose", [part], perm=[0, 2, 1, 3]) for part in (q, v))
        scores = self.node("MatMul", [q, self.node("Transpose", [k], perm=[0, 2, 3, 1])])
        scale = self.constant(np.float32(1 / math.sqrt(c // heads)))
        weights = self.node("Softmax", [self.node("Mul", [scores, scale])], axis=-1)
        mixed = self.node("Transpose", [self.node("MatMul", [weights, v])], perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, self.constant(np.array([1, t, c], np.int64))])
        out = self.linear(mixed, at, "out_proj.weight", "out_proj.bias")
        return self.node("Add", [value, self.node("Transpose", [out], perm=[0, 2, 1])]), shape

    def linear(self, rows, at, weight, bias):
        product = self.node("MatMul", [rows, self.constant(self.weights[f"{at}.{weight}"].T)])
        return self.node("Add", [product, self.weight(at, bias)])

    def residual(self, layer, at, value, shape):
        inner, _ = self.all(layer["layers"], f"{at}.layers", (value, shape))
        return self.node("Add", [value, inner]), shape

    def concat(self, layer, at, value, shape):
        parts = [self.all(own, f"{at}.branches.{i}", (value, shape)) for i, own in enumerate(layer["branches"])]
        return self.joined(parts)


def places(sizes, layer, dilation):
    """Places of a kernel along each axis."""
    each = zip(sizes, layer["kernel"], layer["stride"], layer["padding"], dilation)
    return [(size + 2 * pad - by * (k - 1) - 1) // stride + 1 for size, k, stride, pad, by in each]


class Samples:
    """Inputs for calibration: the given ones, then random numbers or tokens."""

    def __init__(self, declaration, feed, count=16):
        rng = np.random.default_rng(11)
        self.feeds = [feed] + [self.drawn(declaration, rng) for _ in range(count - 1)]

    @staticmethod
    def drawn(declaration, rng):
        def one(each):
            shape = [1] + each["shape"]
            if each["vocabulary"] is None:
                return rng.standard_normal(shape).astype(np.float32)
            return rng.integers(0, each["vocabulary"], shape)
        return {each["name"]: one(each) for each in declaration["inputs"]}

    def get_next(self):
        return self.feeds.pop(0) if self.feeds else None


def has_vnni():
    try:
        return "avx512_vnni" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def quantised(proto, samples):
    """The bytes of a model in 8 bits."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    CalibrationDataReader.register(Samples)
    with tempfile.TemporaryDirectory() as folder:
        plain, ready, small = (f"{folder}/{name}.onnx" for name in ("plain", "ready", "small"))
        onnx.save(proto, plain)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantize_static(ready, small, samples, quant_format=QuantFormat.QDQ, per_channel=True,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=not has_vnni())
        return Path(small).read_bytes()


def session(bytes_, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads == 1 else "1")
    return onnxruntime.InferenceSession(bytes_, options, providers=["CPUExecutionProvider"])


class Network:
    def __init__(self, folder, name, threads):
        own = json.loads((folder / f"{name}.json").read_text())
        model = Model(own, safetensors(folder / f"{name}.safetensors"))
        self.declaration, self.proto, self.threads = own, model.proto, threads
        bytes_ = model.proto.SerializeToString()
        start = time.perf_counter()
        self.session = session(bytes_, threads)
        self.feed = {}
        for each, numbers in zip(own["inputs"], own["given"]):
            kind = np.float32 if each["vocabulary"] is None else np.int64
            self.feed[each["name"]] = np.array(numbers, kind).reshape([1] + each["shape"])
        output = self.run()
        self.cold_us = (time.perf_counter() - start) * 1e6
        expected = np.array(own["output"], np.float32).reshape(output.shape)
        self.difference = float(np.abs(output - expected).max() / max(1.0, np.abs(output).max()))

    def quantise(self):
        """The largest difference of the outputs in 8 bits, relative to the largest output."""
        small = quantised(self.proto, Samples(self.declaration, self.feed))
        self.small = session(small, self.threads)
        output, other = self.run(), self.run(self.small)
        return float(np.abs(output - other).max() / max(1e-12, np.abs(output).max()))

    def run(self, session=None):
        return (session or self.session).run(None, self.feed)[0]

    def times(self, seconds, session=None):
        for _ in range(3):
            self.run(session)
        us, until = [], time.perf_counter() + seconds
        while len(us) < 20 or time.perf_counter() < until:
            start = time.perf_counter()
            self.run(session)
            us.append((time.perf_counter() - start) * 1e6)
        return us


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    networks = {}
    for line in sys.stdin:
        command, name, *rest = line.split()
        try:
            if command == "check":
                own = networks[name] = Network(a.folder, name, a.threads)
                ok = own.difference <= TOLERANCE
                answer = dict(ok=ok, difference=own.difference, cold_us=round(own.cold_us, 1))
            elif command == "check8":
                answer = dict(ok=True, difference=networks[name].quantise())
            else:
                own = networks[name]
                us = sorted(own.times(float(rest[0]), own.small if command == "time8" else None))
                answer = dict(ok=True, median_us=us[len(us) // 2], p99_us=us[int(0.99 * (len(us) - 1))], n=len(us))
        except Exception as error:  # The bench shows the reason and goes on with the next network.
            answer = dict(ok=False, reason=str(error).replace('"', "'").replace("\n", " ")[:300])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
