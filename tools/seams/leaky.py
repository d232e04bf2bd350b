#!/usr/bin/env python3
"""Writes the golden file of the backbone in `leaky.rs`: computed in float64, stored as float32."""
import json
import math
import struct
import sys

x = [[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]]
weight, bias, rate = [[0.3, -0.2], [0.7, 0.1]], [0.05, -0.4], [2.0, -1.0]

h, y = [0.0, 0.0], []
for row in x:
    h = [
        h[i] / (1 + math.exp(-rate[i])) + sum(w * v for w, v in zip(weight[i], row)) + bias[i]
        for i in range(2)
    ]
    y.append(h)

tensors = {
    "linear.weight": ([2, 2], sum(weight, [])),
    "linear.bias": ([2], bias),
    "rate": ([2], rate),
    "x": ([1, 3, 2], sum(x, [])),
    "y": ([1, 3, 2], sum(y, [])),
}
header, data = {}, b""
for name, (shape, numbers) in tensors.items():
    bytes_ = struct.pack(f"<{len(numbers)}f", *numbers)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
    data += bytes_
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
