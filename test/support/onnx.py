"""Runs models in ONNX Runtime.

A folder CASE in the given folder holds model.onnx and a folder BATCHxTIME for each run. Its files NAME.bin are the
inputs, row-major; the outputs are written beside them as NAME.out.
"""

import pathlib
import sys

import numpy
import onnxruntime

TYPES = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64}

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1

for model in sorted(pathlib.Path(sys.argv[1]).glob("*/model.onnx")):
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for run in model.parent.iterdir():
        if not run.is_dir():
            continue
        sizes = dict(zip(("batch", "time"), map(int, run.name.split("x"))))
        feeds = {}
        for given in session.get_inputs():
            shape = [sizes.get(dim, dim) for dim in given.shape]
            data = numpy.fromfile(run / f"{given.name}.bin", TYPES[given.type])
            feeds[given.name] = data.reshape(shape)
        names = [output.name for output in session.get_outputs()]
        for name, value in zip(names, session.run(names, feeds)):
            value.tofile(run / f"{name}.out")
