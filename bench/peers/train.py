"""One optimiser step of each backbone in each peer: its time (train_*) and its resident memory (memory_*).

forward, BCE buttons + CE five heads on all frames, backward, clip to global norm 1, AdamW(lr 1e-4, wd 1e-2).
mlp: batch 256. lstm, gru, mamba, attn: 32 windows of 60 frames. The weights, the data and the functions are those of
$SCONCE_PEERS; the README here defines the memory figures. Checks that the loss falls, and that all peers start with the
same loss.

    SCONCE_PEERS=... python train.py --threads 2 --only "jax.* train_gru"
"""
import functools
import os
import subprocess
import sys
from unittest import mock

sys.path.insert(0, os.environ["SCONCE_PEERS"])
from common import T, SEED, A, emit, guard, measure, only, other_cores, busy_s, torch_setup  # noqa: E402
import numpy as np  # noqa: E402
import resident  # noqa: E402

ALONE = "--alone" in sys.argv  # a child that measures the memory of one peer

# Compiling a loop of 120 cells takes minutes, so those rows come last.
PEERS = {
    "mlp": ["torch-eager", "torch-compile", "jax"],
    "lstm": ["torch-eager-nn", "torch-eager", "jax", "jax-unroll6", "torch-compile"],
    "gru": ["torch-eager-nn", "torch-eager", "jax", "jax-unroll6", "torch-compile"],
    "mamba": ["torch-eager", "jax", "jax-unroll6", "jax-assoc", "torch-compile"],
    "attn": ["torch-eager", "torch-compile", "jax"],
}
FIRST_LOSS = {}
torch_once = functools.cache(torch_setup)  # threads can only be set before the first work


def seqmodels(peer):
    """The shared models. They import both libraries; if a peer's memory is measured, the other library is mocked."""
    if not ALONE:
        import seqmodels
        return seqmodels
    import numpy.testing  # noqa: F401  it looks for torch among the modules, so it is imported before the mock
    names = ["jax", "jax.numpy"] if peer.startswith("torch") else ["torch", "torch.nn", "torch.nn.functional"]
    with mock.patch.dict(sys.modules, {n: mock.MagicMock() for n in names}):
        import seqmodels
    return seqmodels


def batch_of(kind):
    return 256 if kind == "mlp" else 32


def arrays(kind, S):
    """Weights, inputs and targets as numpy, the same for all peers."""
    from heads import HEADS, N_OUT, linear, mlp_params, targets
    rng = np.random.default_rng(SEED + 1)
    mlp, seq = ((256, 288), (32, S.L, S.D_IN))
    x_mlp, x_seq = (rng.standard_normal(s).astype(np.float32) for s in (mlp, seq))
    if kind == "mlp":
        p = mlp_params(SEED)
        w = np.concatenate([p["heads"][n]["w"] for n, _ in HEADS], 1)
        return dict(body=p["trunk"], head_w=w, head_b=np.zeros(N_OUT, np.float32)), x_mlp, targets(SEED, 256)
    w, b = linear(np.random.default_rng(SEED + 2), S.D, N_OUT)
    return dict(body=S.params(SEED)[kind], head_w=w, head_b=b), x_seq, targets(SEED, 32 * S.L)


# ---- torch -----------------------------------------------------------------------------------
def torch_peer(peer, kind):
    """Returns a function that makes a step. Compilation is shared by all steps."""
    torch = torch_once()
    import torch.nn.functional as F
    from heads import HEADS, N_OUT
    S = seqmodels(peer)
    p, x, y = arrays(kind, S)

    def mlp(layers, x):
        for l in layers:
            x = F.relu(F.layer_norm(x @ l["w"] + l["b"], (l["b"].shape[0],), l["g"], l["s"]))
        return x

    body = mlp if kind == "mlp" else S.TORCH_FULL[kind]
    if peer == "torch-eager-nn":
        body = lambda module, x: module(x)[0]

    def loss_of(p, x, y):
        out = body(p["body"], x) @ p["head_w"] + p["head_b"]
        parts = out.reshape(-1, N_OUT).split([k for _, k in HEADS], -1)
        loss = F.binary_cross_entropy_with_logits(parts[0], y["buttons"])
        for (n, _), o in zip(HEADS[1:], parts[1:]):
            loss = loss + F.cross_entropy(o, y[n])
        return loss

    torch._dynamo.reset()
    forward = torch.compile(loss_of, dynamic=False) if peer == "torch-compile" else loss_of

    def make():
        tp, tx, ty = (S.to_torch(v) for v in (p, x, y))
        if peer == "torch-eager-nn":
            tp["body"] = S.t_rnn_module(kind, tp["body"]).train()
        leaves = list(learned(tp))
        opt = torch.optim.AdamW([v.requires_grad_() for v in leaves], lr=1e-4, weight_decay=1e-2, fused=True)

        def step():
            opt.zero_grad(set_to_none=True)
            loss = forward(tp, tx, ty)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(leaves, 1.0, foreach=True)
            opt.step()
            return loss.detach()
        return step
    return make


def learned(p):
    """All tensors except Mamba's a, which the shared step keeps fixed."""
    for k, v in p.items() if isinstance(p, dict) else enumerate(p):
        if isinstance(v, (dict, list)):
            yield from learned(v)
        elif hasattr(v, "parameters"):
            yield from v.parameters()
        elif k != "a":
            yield v


# ---- jax -------------------------------------------------------------------------------------
def jax_peer(peer, kind):
    import jax
    import jax.numpy as jnp
    import optax
    from heads import HEADS, N_OUT
    S = seqmodels(peer)
    p, x, y = arrays(kind, S)
    cuts = np.cumsum([k for _, k in HEADS])[:-1]

    def mlp(layers, x):
        for l in layers:
            x = x @ l["w"] + l["b"]
            m = x.mean(-1, keepdims=True)
            x = (x - m) * jax.lax.rsqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5)
            x = jax.nn.relu(x * l["g"] + l["s"])
        return x

    body = mlp if kind == "mlp" else S.JAX_FULL[kind][peer.removeprefix("jax")]
    opt = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=1e-2))

    def loss_of(p, x, y):
        out = (body(p["body"], x) @ p["head_w"] + p["head_b"]).reshape(-1, N_OUT)
        parts = jnp.split(out, cuts, -1)
        loss = optax.sigmoid_binary_cross_entropy(parts[0], y["buttons"]).mean()
        for (n, _), o in zip(HEADS[1:], parts[1:]):
            loss = loss + optax.softmax_cross_entropy_with_integer_labels(o, y[n]).mean()
        return loss

    def update(p, s, x, y):
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        if kind == "mamba":  # a is fixed, as in torch
            g["body"]["layers"] = [{**l, "a": jnp.zeros_like(l["a"])} for l in g["body"]["layers"]]
        u, s = opt.update(g, s, p)
        return optax.apply_updates(p, u), s, loss

    init, f = jax.jit(opt.init), jax.jit(update, donate_argnums=(0, 1))

    def make():
        jp, jx, jy = jax.tree.map(jnp.array, (p, x, y))
        state = [jp, init(jp)]

        def step():
            state[0], state[1], loss = f(*state, jx, jy)
            return loss.block_until_ready()
        return step
    return make


# ---- rows ------------------------------------------------------------------------------------
def peer_of(peer, kind):
    return (jax_peer if peer.startswith("jax") else torch_peer)(peer, kind)


def falls(kind, losses):
    """Returns the first loss. Checks that the loss falls, and that it starts like that of the other peers."""
    assert losses[-1] < losses[0], losses
    begun = FIRST_LOSS.setdefault(kind, losses[0])
    assert abs(losses[0] - begun) < 1e-3, f"starts at {losses[0]}, another peer at {begun}"
    return round(losses[0], 5)


def time_step(peer, kind):
    case, batch = f"train_{kind}", batch_of(kind)
    if only(peer, case, batch):
        with guard(peer, case):
            step = peer_of(peer, kind)()
            first = falls(kind, [float(step()) for _ in range(5)])
            measure(peer, case, batch, step, per=1, budget=A.budget, warm=0.5, extra=dict(first_loss=first))


def memory(peer, kind):
    case, batch = f"memory_{kind}", batch_of(kind)
    if not only(peer, case, batch):
        return
    if not ALONE:
        subprocess.run([sys.executable, __file__, "--alone", "--threads", str(T), "--only", f"^{peer} {case} {batch}$"])
        return
    with guard(peer, case):
        make = peer_of(peer, kind)
        busy = busy_s()
        seen, us, losses = resident.training(make)
        first = falls(kind, losses)
        emit(peer, case, batch, float(np.median(us)), float(np.percentile(us, 95)), len(us), **seen,
             first_loss=first, other=other_cores(busy, busy_s()))


rows = [(p, k) for k, ps in PEERS.items() for p in ps]
for measured in (time_step, memory):
    for peer, kind in sorted(rows, key=lambda row: row[0] == "torch-compile"):
        measured(peer, kind)
