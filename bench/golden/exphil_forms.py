"""Backbones of ExPhil's policies, with the trunk vectors that Axon computed.

    python exphil_forms.py FOLDER

FOLDER holds the policies that ExPhil saved, and `make/check.py`, which reads them. Needs numpy only. A weight gets its
name in a checkpoint of Sconce and PyTorch's layout. The inputs are windows; the outputs are the trunk vectors of their
last frames, in float32.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parents[2] / "test" / "golden"
ORDER = {"lstm": "ifgo", "gru": "rzn"}


def dense(weights, name, layer):
    weights[name + ".weight"], weights[name + ".bias"] = layer["kernel"].T, layer["bias"]


def norm(weights, name, layer):
    weights[name + ".weight"], weights[name + ".bias"] = layer["gamma"], layer["beta"]


def cell(weights, name, kind, layer, place):
    """Gates one below the other. Of the hidden biases only a GRU's candidate has one."""
    gates = ORDER[kind]
    rows = lambda part, key: np.concatenate([layer[part][key + g].T for g in gates])
    weights[f"{name}weight_ih_l{place}"] = rows("input_kernel", "wi")
    weights[f"{name}weight_hh_l{place}"] = rows("hidden_kernel", "wh")
    bias = layer["bias"]
    weights[f"{name}bias_ih_l{place}"] = np.concatenate([bias["bin" if g == "n" else "b" + g] for g in gates])
    hidden = [bias["bhn"] if g == "n" else np.zeros_like(bias["b" + g]) for g in gates]
    weights[f"{name}bias_hh_l{place}"] = np.concatenate(hidden)


def states(weights, answers):
    for kind in ("h", "c"):
        if kind + "0" in answers:
            weights["initial_state." + kind] = answers[kind + "0"]


def stack(weights, name, kind, policy, layers):
    for i in range(layers):
        cell(weights, name, kind, policy[f"{kind}_{i + 1}"], i)
        norm(weights, f"{name}norms.{i}", policy[f"{kind}_{i + 1}_ln"])


def recurrent(kind):
    def convert(policy, config):
        weights = {}
        norm(weights, "input_norm", policy["input_ln"])
        stack(weights, "", kind, policy, config["num_layers"])
        own = {"layer_norm": True, "input_norm": True, "norm_eps": 1e-6, "initial_state": True}
        return kind, weights, own, config["hidden_size"]
    return convert


def attention(policy, config):
    weights, width = {}, config["num_heads"] * config["head_dim"]
    dense(weights, "input", policy["input_proj"])
    for i in range(config["num_layers"]):
        own, name = f"layer_{i + 1}_", f"layers.{i}."
        for ours, theirs in (("qkv", "attn_qkv"), ("ffn1", "ffn1"), ("ffn2", "ffn2")):
            dense(weights, name + ours, policy[own + theirs])
        for ours in ("norm1", "norm2"):
            norm(weights, name + ours, policy[own + ours])
    own = {key: config[key] for key in ("num_heads", "head_dim", "window_size")}
    return "exphil_attention", weights, {**own, "inner_size": 256}, width


def lstm_hybrid(policy, config):
    weights = {}
    norm(weights, "input_norm", policy["input_ln"])
    stack(weights, "lstm.", "lstm", policy, config["num_layers"])
    for ours, theirs in (("dense", "lstm_to_attn_proj"), ("qkv", "hybrid_attn_qkv"), ("out", "hybrid_attn_output")):
        dense(weights, ours, policy[theirs])
    norm(weights, "norm", policy["attn_norm"])
    own = {key: config[key] for key in ("num_heads", "head_dim", "window_size")}
    return "exphil_lstm_hybrid", weights, {**own, "input_norm": True, "initial_state": True}, config["hidden_size"]


def deep_res_lstm(policy, config):
    weights = {}
    dense(weights, "encoder", policy["encoder"])
    for i in range(config["num_layers"]):
        norm(weights, f"layers.{i}.norm", policy[f"block_{i + 1}_prenorm"])
        cell(weights, f"layers.{i}.lstm.", "lstm", policy[f"lstm_{i + 1}"], 0)
        dense(weights, f"layers.{i}.decoder", policy[f"decoder_{i + 1}"])
    norm(weights, "norm", policy["final_norm"])
    return "exphil_deep_res_lstm", weights, {"initial_state": True}, config["hidden_size"]


FORMS = {"lstm": recurrent("lstm"), "gru": recurrent("gru"), "attention": attention, "lstm_hybrid": lstm_hybrid,
         "deep_res_lstm": deep_res_lstm}


def save(path, tensors, metadata):
    """Tensors of float32 in the order of their names, so that equal content gives equal bytes."""
    header, offset = {"__metadata__": metadata}, 0
    for name in sorted(tensors):
        shape = list(tensors[name].shape)
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(tensors[name], "<f4").tobytes() for name in sorted(tensors))
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder / "make"))
    import check

    for name, convert in FORMS.items():
        policy, config = check.policy(folder / f"{name}.bin")
        answers = check.safetensors(folder / f"{name}.answers.safetensors")
        row, weights, own, width = convert(policy, config)
        states(weights, answers)
        sizes = {"hidden_size": width, "num_layers": config["num_layers"], "dropout": 0.0, "input_dropout": 0.0}
        tensors = {"param." + key: value for key, value in weights.items()}
        tensors.update({"input.x": answers["x"], "output.trunk": answers["trunk"]})
        path = GOLDEN / f"exphil_{name}.safetensors"
        save(path, tensors, {
            "config": json.dumps({row: {**own, **sizes}}),
            "source": "the trunk of a policy that ExPhil saved, computed by Axon 0.8.0 in float32",
            "tolerance": json.dumps({"rule": "scaled", "output": 1e-5, "grad": 1e-5, "floor": 1e-6}),
        })
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
