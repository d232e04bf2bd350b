"""Writes the reference files of ExPhil's state spaces, from policies that ExPhil saved and the answers that Axon computed.

    python exphil/ssm.py FOLDER        the folder holds NAME.bin, NAME.answers.safetensors and make/check.py

A file has the weights of the backbone under their names in Sconce, two windows, and the output for the last frame.
"""

import json
import re
import struct
import sys
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parents[3] / "test" / "golden"
NAMES = ["mamba", "mamba_2", "mamba_ssd", "gated_ssm", "jamba"]
WINDOWS = 2
SIZES = ["hidden_size", "num_layers", "state_size", "expand_factor", "conv_size", "num_heads", "head_dim"]
TOLERANCE = {"rule": "scaled", "output": 1e-5, "grad": 1e-5, "floor": 1e-7}

# The name of a layer in Sconce, by its name in ExPhil without the number of the layer.
LAYERS = {
    "norm": "norm",
    "pre_norm": "norm",
    "in_proj": "mixer.in_proj",
    "conv_dw_conv": "mixer.conv1d",
    "conv_proj": "mixer.conv_proj",
    "ssm_bc_proj": "mixer.bc_proj",
    "ssm_dt_rank": "mixer.dt_rank",
    "ssm_dt_proj": "mixer.dt_proj",
    "out_proj": "mixer.out_proj",
    "attn_proj_in": "attention.proj_in",
    "qkv": "attention.qkv",
    "attn_proj_out": "attention.proj_out",
    "ffn_pre_norm": "ffn_norm",
    "ffn1": "ffn1",
    "ffn2": "ffn2",
}


def name_of(layer, layers):
    """The name in Sconce; None for the heads and for dropout."""
    if layer in ("input_projection", "final_norm"):
        return {"input_projection": "input", "final_norm": "norm"}[layer]
    found = re.fullmatch(r"(mamba_block_|mamba_ssd_block_|layer_)(\d+)(?:_backbone|_attn)?_(\w+)", layer)
    if not found or found[3] not in LAYERS:
        return None
    own = LAYERS[found[3]]
    # A layer with a norm before the mixer has a second norm in the mixer.
    if found[3] == "norm" and layer.removesuffix("norm") + "pre_norm" in layers:
        own = "mixer.norm"
    return f"layers.{int(found[2]) - 1}.{own}"


def tensors_of(layer, name):
    if "gamma" in layer:
        return {f"{name}.weight": layer["gamma"], f"{name}.bias": layer["beta"]}
    kernel = layer["kernel"]
    weight = kernel.transpose(2, 1, 0) if kernel.ndim == 3 else kernel.T
    return {f"{name}.weight": weight, f"{name}.bias": layer["bias"]}


def write(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, t in sorted(tensors.items()):
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [offset, offset + 4 * t.size]}
        offset += 4 * t.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    rest = b"".join(np.ascontiguousarray(t, "<f4").tobytes() for _, t in sorted(tensors.items()))
    path.write_bytes(struct.pack("<Q", len(text)) + text + rest)


def main(folder):
    sys.path.insert(0, str(folder / "make"))
    import check

    for name in NAMES:
        layers, config = check.policy(str(folder / f"{name}.bin"))
        answers = check.safetensors(str(folder / f"{name}.answers.safetensors"))
        tensors = {"input.x": answers["x"][:WINDOWS], "output.y": answers["trunk"][:WINDOWS]}
        for layer, leaves in layers.items():
            own = name_of(layer, layers)
            if own:
                tensors |= {f"param.{k}": t for k, t in tensors_of(leaves, own).items()}
        sizes = {size: config[size] for size in SIZES}
        metadata = {"config": json.dumps(sizes), "tolerance": json.dumps(TOLERANCE)}
        write(GOLDEN / f"exphil_{name}.safetensors", tensors, metadata)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
