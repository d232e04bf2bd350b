"""The figures of `native/train/examples/card/figures.rs` in PyTorch (eager, compiled, cuDNN) and JAX, on the first card.

The shapes are the same: 288 numbers per frame, two layers of 256 (an MLP's 512), heads of 81 logits. `act` is one frame
of each of 1 or 32 games with its state, from host memory and back to it. `train` is a step of 256 windows of 60 frames
(1 frame for an MLP): forward, BCE + five CE on all frames, backward, clip to norm 1, AdamW. `score_N` and `train_N` are
passes of 64 windows of N frames through causal attention without a state, by PyTorch's kernels (SDPA). Prints one JSON line per
figure, in microseconds, or the reason why it was skipped. It needs only torch, and nothing from $SCONCE_PEERS.

    python card.py --torch    PyTorch without a compiler, on a card
    python card.py --compile  compiled PyTorch
    python card.py --jax      JAX
      --small                 tiny sizes, on any device: to test that everything runs
      --warm                  only compiles everything, into the caches of PyTorch and JAX
"""
import contextlib
import importlib.util
import json
import os
import sys
import time

SMALL = "--small" in sys.argv
WARM = "--warm" in sys.argv
INPUT, HIDDEN, LAYERS, HEADS, STATE, RANK, TAPS = 288, 256, 2, 8, 16, 16, 4
FRAMES, BATCH = 60, 256
SECONDS, WARM_UP, TOGETHER = 0.4, 20, 8
WINDOWS, GAMES = (60, 120, 180), 64
if SMALL:
    FRAMES, BATCH, SECONDS, WARM_UP, WINDOWS, GAMES = 6, 4, 0.05, 2, (4, 6), 2
if WARM:
    SECONDS, WARM_UP = 0.0, 2
CLASSES = [17, 17, 17, 17, 5]
BITS, LOGITS = 8, 81
BACKBONES = ["mlp", "mamba", "lstm", "gru", "attention"]


def emit(peer, figure, backbone, batch, precision, **told):
    print(json.dumps(dict(peer=peer, figure=figure, backbone=backbone, batch=batch, precision=precision, **told)),
          flush=True)


@contextlib.contextmanager
def guard(*key):
    """Reports an error as a skipped figure, so that the others still run."""
    try:
        yield
    except Exception as error:
        emit(*key, skipped=f"{type(error).__name__}: {error}"[:300])


def measured(work, per=1):
    """Median and 99th percentile of a call's time in microseconds, divided by `per`. The call must synchronise."""
    for _ in range(max(2, WARM_UP // per)):
        work()
    us, end = [], time.perf_counter() + SECONDS
    while len(us) < 3 or time.perf_counter() < end:
        start = time.perf_counter_ns()
        work()
        us.append((time.perf_counter_ns() - start) / 1e3 / per)
    us.sort()
    return dict(us=round(us[len(us) // 2], 1), p99_us=round(us[int(0.99 * (len(us) - 1))], 1), count=len(us))


# ---- torch -----------------------------------------------------------------------------------
def torch_figures(compiled):
    import torch
    import torch.nn.functional as F
    from torch import nn
    card = torch.cuda.is_available()
    if not card and not SMALL:
        return [emit("torch", "all", "all", 0, "f32", skipped="torch sees no card")]
    device = torch.device("cuda" if card else "cpu")
    wait = torch.cuda.synchronize if card else lambda: None
    torch.manual_seed(1)

    class Mlp(nn.Module):
        out = 2 * HIDDEN

        def __init__(self):
            super().__init__()
            sizes = [INPUT] + [self.out] * LAYERS
            layers = [nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.ReLU()) for i, o in zip(sizes, sizes[1:])]
            self.net = nn.Sequential(*layers)

        def zero(self, batch):
            return []

        def forward(self, x, state):
            return self.net(x), state

    class Rnn(nn.Module):
        """cuDNN's implementation, if on a card."""
        out = HIDDEN

        def __init__(self, kind):
            super().__init__()
            self.parts, self.net = (2 if kind is nn.LSTM else 1), kind(INPUT, HIDDEN, LAYERS, batch_first=True)

        def zero(self, batch):
            return [torch.zeros(LAYERS, batch, HIDDEN, device=device) for _ in range(self.parts)]

        def forward(self, x, state):
            y, state = self.net(x, tuple(state) if self.parts == 2 else state[0])
            return y, list(state) if self.parts == 2 else [state]

    class MambaLayer(nn.Module):
        def __init__(self):
            super().__init__()
            wide = 2 * HIDDEN
            self.norm = nn.RMSNorm(HIDDEN)
            self.inward, self.outward = nn.Linear(HIDDEN, 2 * wide, bias=False), nn.Linear(wide, HIDDEN, bias=False)
            self.conv = nn.Conv1d(wide, wide, TAPS, groups=wide)
            self.x_proj, self.dt_proj = nn.Linear(wide, RANK + 2 * STATE, bias=False), nn.Linear(RANK, wide)
            self.a_log = nn.Parameter(torch.log(torch.arange(1.0, STATE + 1)).repeat(wide, 1))
            self.d = nn.Parameter(torch.ones(wide))

        def forward(self, h, before, s):
            u, z = self.inward(self.norm(h)).chunk(2, -1)
            seen = torch.cat([before, u.transpose(1, 2).to(before.dtype)], 2)
            u = F.silu(self.conv(seen).transpose(1, 2))
            dt, b, c = self.x_proj(u).split([RANK, STATE, STATE], -1)
            dt, a = F.softplus(self.dt_proj(dt)).float(), -torch.exp(self.a_log)
            du, ys = dt * u, []
            for t in range(h.shape[1]):
                s = s * torch.exp(dt[:, t, :, None] * a) + du[:, t, :, None] * b[:, t, None]
                ys.append((s * c[:, t, None]).sum(-1))
            y = (torch.stack(ys, 1) + u * self.d) * F.silu(z)
            return h + self.outward(y), seen[:, :, 1 - TAPS:], s

    class Mamba(nn.Module):
        out = HIDDEN

        def __init__(self):
            super().__init__()
            self.inp, self.norm = nn.Linear(INPUT, HIDDEN), nn.RMSNorm(HIDDEN)
            self.layers = nn.ModuleList(MambaLayer() for _ in range(LAYERS))

        def zero(self, batch):
            shapes = [(batch, 2 * HIDDEN, TAPS - 1), (batch, 2 * HIDDEN, STATE)] * LAYERS
            return [torch.zeros(shape, device=device) for shape in shapes]

        def forward(self, x, state):
            h, after = self.inp(x), []
            for i, layer in enumerate(self.layers):
                h, *parts = layer(h, *state[2 * i:2 * i + 2])
                after += parts
            return self.norm(h), after

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
            self.qkv, self.o = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU("tanh"), nn.Linear(4 * HIDDEN, HIDDEN))

        def forward(self, h, keys, values, mask):
            batch, time, _ = h.shape
            parts = self.qkv(self.norms[0](h)).view(batch, time, 3, HEADS, HIDDEN // HEADS)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            if keys is None:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                h = h + self.o(y.transpose(1, 2).reshape(batch, time, HIDDEN))
                return h + self.mlp(self.norms[1](h)), None, None
            k, v = torch.cat([keys, k.to(keys.dtype)], 2), torch.cat([values, v.to(values.dtype)], 2)
            y = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), attn_mask=mask)
            h = h + self.o(y.transpose(1, 2).reshape(batch, time, HIDDEN))
            return h + self.mlp(self.norms[1](h)), k[:, :, time:], v[:, :, time:]

    class Attention(nn.Module):
        """Attention over the frame and those before it, up to a window, with keys and values of fixed size."""
        out = HIDDEN

        def __init__(self):
            super().__init__()
            self.inp, self.norm = nn.Linear(INPUT, HIDDEN), nn.RMSNorm(HIDDEN)
            self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

        def zero(self, batch):
            shape = (batch, HEADS, FRAMES - 1, HIDDEN // HEADS)
            return [torch.zeros(shape, device=device) for _ in range(2 * LAYERS)]

        def forward(self, x, state):
            time = x.shape[1]
            if not state:
                h = self.inp(x)
                for layer in self.layers:
                    h = layer(h, None, None, None)[0]
                return self.norm(h), []
            q = torch.arange(time, device=device)[:, None] + FRAMES - 1
            k = torch.arange(time + FRAMES - 1, device=device)[None]
            h, after, mask = self.inp(x), [], (k <= q) & (q - k < FRAMES)
            for i, layer in enumerate(self.layers):
                h, *parts = layer(h, *state[2 * i:2 * i + 2], mask)
                after += parts
            return self.norm(h), after

    class Policy(nn.Module):
        def __init__(self, backbone):
            super().__init__()
            self.backbone = dict(mlp=Mlp, mamba=Mamba, lstm=lambda: Rnn(nn.LSTM), gru=lambda: Rnn(nn.GRU),
                                 attention=Attention)[backbone]()
            self.heads = nn.Linear(self.backbone.out, LOGITS)

        def forward(self, x, state):
            y, state = self.backbone(x, state)
            return self.heads(y), state

    def acted(peer, name, batch):
        with guard(peer, "act", name, batch, "f32"), torch.inference_mode():
            policy = Policy(name).to(device).eval()
            # CUDA graphs reuse the memory of the state, so it is copied for the next step, as a caller on a
            # card would do.
            forward = torch.compile(policy, mode="reduce-overhead") if peer == "torch-compile" else policy
            x, state = torch.randn(batch, 1, INPUT), policy.backbone.zero(batch)
            if card:
                x = x.pin_memory()

            def step():
                logits, after = forward(x.to(device, non_blocking=True), state)
                state[:] = [part.clone() for part in after]
                return logits.cpu()
            emit(peer, "act", name, batch, "f32", **measured(step))

    def loss_of(policy, x, bits, classes, stateless=False):
        state = [] if stateless else policy.backbone.zero(x.shape[0])
        logits = policy(x, state)[0].reshape(-1, LOGITS).float()
        first, *rest = logits.split([BITS, *CLASSES], 1)
        loss = F.binary_cross_entropy_with_logits(first, bits)
        return loss + sum(F.cross_entropy(part, own) for part, own in zip(rest, classes))

    def trained(peer, name, precision, window=None):
        batch, figure = (GAMES, f"train_{window}") if window else (BATCH, "train")
        with guard(peer, figure, name, batch, precision):
            policy = Policy(name).to(device)
            optimiser = torch.optim.AdamW(policy.parameters(), lr=1e-4, weight_decay=1e-2, fused=True)
            frames = window or (1 if name == "mlp" else FRAMES)
            x = torch.randn(batch, frames, INPUT, device=device)
            bits = (torch.rand(batch * frames, BITS, device=device) < 0.2).float()
            classes = [torch.randint(n, (batch * frames,), device=device) for n in CLASSES]
            of = torch.compile(loss_of) if peer == "torch-compile" else loss_of

            def steps():
                for _ in range(TOGETHER):
                    optimiser.zero_grad(set_to_none=True)
                    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                        loss = of(policy, x, bits, classes, stateless=window is not None)
                    loss.backward()
                    nn.utils.clip_grad_norm_(policy.parameters(), 1.0, foreach=True)
                    optimiser.step()
                assert torch.isfinite(loss).item()
                wait()
            emit(peer, figure, name, batch, precision, **measured(steps, TOGETHER))

    def scored(window, precision):
        with guard("torch-sdpa", f"score_{window}", "attention", GAMES, precision), torch.inference_mode():
            backbone, x = Policy("attention").to(device).eval().backbone, torch.randn(GAMES, window, INPUT, device=device)

            def pass_():
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    backbone(x, [])
                wait()
            emit("torch-sdpa", f"score_{window}", "attention", GAMES, precision, **measured(pass_))

    def eager(name):
        return "torch-cudnn" if name in ("lstm", "gru") and card else "torch-eager"

    for name in () if compiled else BACKBONES:
        for batch in (1, 32):
            acted(eager(name), name, batch)
        for precision in ("f32", "bf16"):
            trained(eager(name), name, precision)
    for window in () if compiled else WINDOWS:
        for precision in ("f32", "bf16"):
            scored(window, precision)
            trained("torch-sdpa", "attention", precision, window)
    # Models with the longest compilation come last, because there may not be enough time for them.
    for name in ("mlp", "attention", "mamba") if compiled else ():
        for batch in (1, 32):
            acted("torch-compile", name, batch)
        for precision in ("f32", "bf16"):
            trained("torch-compile", name, precision)


# ---- jax -------------------------------------------------------------------------------------
def jax_figures():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    import optax
    if jax.default_backend() == "cpu" and not SMALL:
        return [emit("jax", "all", "all", 0, "f32", skipped="jax sees no card")]
    keys = iter(jax.random.split(jax.random.PRNGKey(1), 1000))

    def matrix(i, o):
        return jax.random.normal(next(keys), (i, o)) / i ** 0.5

    def norm(x, g):
        return x * jax.lax.rsqrt((x ** 2).mean(-1, keepdims=True) + 1e-5) * g

    def mlp(p, x):
        for w in p["layers"]:
            x = x @ w
            x = x - x.mean(-1, keepdims=True)
            x = jax.nn.relu(norm(x, 1.0))
        return x

    def lstm(p, x):
        for wi, wh in p["layers"]:
            def cell(carry, gates):
                h, c = carry
                i, f, g, o = jnp.split(gates + h @ wh, 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h
            zero = jnp.zeros((x.shape[0], HIDDEN), x.dtype)
            x = jax.lax.scan(cell, (zero, zero), (x @ wi).swapaxes(0, 1))[1].swapaxes(0, 1)
        return x

    def mamba(p, x):
        h = x @ p["inp"]
        for own in p["layers"]:
            u, z = jnp.split(norm(h, own["g"]) @ own["in"], 2, -1)
            padded = jnp.pad(u, ((0, 0), (TAPS - 1, 0), (0, 0)))
            u = jax.nn.silu(sum(padded[:, k:k + u.shape[1]] * own["conv"][k] for k in range(TAPS)))
            dt, b, c = jnp.split(u @ own["x"], [RANK, RANK + STATE], -1)
            dt = jax.nn.softplus(dt @ own["dt"] - 4.0)
            decay = jnp.exp(dt[..., None] * -jnp.exp(own["a"]))
            add = (dt * u)[..., None] * b[:, :, None]
            s = jax.lax.associative_scan(lambda m, n: (m[0] * n[0], n[0] * m[1] + n[1]), (decay, add), axis=1)[1]
            y = ((s * c[:, :, None]).sum(-1) + u) * jax.nn.silu(z)
            h = h + y @ own["out"]
        return norm(h, 1.0)

    wide = 2 * HIDDEN
    kinds = dict(
        mlp=(mlp, wide, lambda: dict(layers=[matrix(i, wide) for i in [INPUT] + [wide] * (LAYERS - 1)])),
        lstm=(lstm, HIDDEN, lambda: dict(layers=[(matrix(i, 4 * HIDDEN), matrix(HIDDEN, 4 * HIDDEN))
                                                 for i in [INPUT] + [HIDDEN] * (LAYERS - 1)])),
        mamba=(mamba, HIDDEN, lambda: dict(inp=matrix(INPUT, HIDDEN), layers=[dict(
            g=jnp.ones(HIDDEN), x=matrix(wide, RANK + 2 * STATE), dt=matrix(RANK, wide), out=matrix(wide, HIDDEN),
            conv=jax.random.normal(next(keys), (TAPS, wide)) * 0.3, **{"in": matrix(HIDDEN, 2 * wide)},
            a=jnp.log(jnp.tile(jnp.arange(1.0, STATE + 1), (wide, 1)))) for _ in range(LAYERS)])),
    )

    def acted(batch):
        with guard("jax", "act", "mlp", batch, "f32"):
            p = dict(body=kinds["mlp"][2](), heads=matrix(wide, LOGITS))
            forward = jax.jit(lambda p, x: mlp(p["body"], x) @ p["heads"])
            import numpy as np
            x = np.random.default_rng(1).standard_normal((batch, INPUT)).astype(np.float32)
            emit("jax", "act", "mlp", batch, "f32", **measured(lambda: np.asarray(forward(p, x))))

    def trained(name, precision):
        with guard("jax", "train", name, BATCH, precision):
            body, out, make = kinds[name]
            p = dict(body=make(), heads=matrix(out, LOGITS))
            frames, kind = (1 if name == "mlp" else FRAMES), (jnp.bfloat16 if precision == "bf16" else jnp.float32)
            x = jax.random.normal(next(keys), (BATCH, frames, INPUT))
            bits = (jax.random.uniform(next(keys), (BATCH, frames, BITS)) < 0.2).astype(jnp.float32)
            classes = [jax.random.randint(next(keys), (BATCH, frames), 0, n) for n in CLASSES]
            rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=1e-2))

            def loss_of(p):
                p = jax.tree.map(lambda w: w.astype(kind), p)
                logits = (body(p["body"], x.astype(kind)) @ p["heads"]).astype(jnp.float32)
                first, *rest = jnp.split(logits, [BITS + sum(CLASSES[:i]) for i in range(len(CLASSES))], -1)
                cross = optax.softmax_cross_entropy_with_integer_labels
                return optax.sigmoid_binary_cross_entropy(first, bits).mean() + sum(
                    cross(part, own).mean() for part, own in zip(rest, classes))

            def update(p, s):
                loss, g = jax.value_and_grad(loss_of)(p)
                u, s = rule.update(g, s, p)
                return optax.apply_updates(p, u), s, loss
            state, update = [p, rule.init(p)], jax.jit(update, donate_argnums=(0, 1))

            def steps():
                for _ in range(TOGETHER):
                    *state[:], loss = update(*state)
                assert bool(jnp.isfinite(loss))
            emit("jax", "train", name, BATCH, precision, **measured(steps, TOGETHER))

    for batch in (1, 32):
        acted(batch)
    for name in kinds:
        for precision in ("f32", "bf16"):
            trained(name, precision)


if __name__ == "__main__":
    # Each part runs in its own process, so that they share neither memory nor versions of CUDA's libraries.
    parts = [part for part in ("torch", "compile", "jax") if f"--{part}" in sys.argv]
    if len(parts) != 1:
        sys.exit("card.py: one of --torch, --compile and --jax (to mend it: python3 bench/peers/card.py --torch)")
    [part] = parts
    module = "jax" if part == "jax" else "torch"
    if importlib.util.find_spec(module) is None:
        emit(module, "all", "all", 0, "f32", skipped=f"{module} is not installed")
    elif part == "jax":
        jax_figures()
    else:
        torch_figures(part == "compile")
