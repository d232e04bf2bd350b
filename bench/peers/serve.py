"""64 clients, each sending its next request when it has its answer: requests/s, p50, p95, p99, p99.9 at the clients.

One Python process and ONNX Runtime in f32. serve_mlp: the policy MLP. serve_gru: one step of the GRU 256x2; each client
sends its state with the request, and receives the new one.

threads-nobatch: every client thread calls the session itself. threads-batch: a batcher thread takes queued requests,
at most 64, and waits at most wait_us for more. asyncio-batch: the same with coroutines and futures. -intra1: one thread
computes a batch, which leaves the other core to the clients.

    SCONCE_PEERS=... python serve.py --threads 2 --only "threads-batch serve_gru" --budget 4
"""
import asyncio
import os
import queue
import subprocess
import sys
import threading
import time

SHARED = os.environ["SCONCE_PEERS"]
sys.path.insert(0, SHARED)
from common import WORK, T, SEED, A, busy_s, check, emit, guard, only, other_cores  # noqa: E402
import numpy as np  # noqa: E402

N, WARM = 64, 1.0
SECONDS = max(A.budget, 3.0)
CHECKED = 3  # answers of each client that are compared with a reference run
XS = np.random.default_rng(SEED).standard_normal((N, 288)).astype(np.float32)


# ---- models: step(x [n, 288], states) -> (outputs of [n, ...], states), and an initial state -----
def session(model, intra):
    import onnxruntime as ort
    so = ort.SessionOptions()
    so.intra_op_num_threads, so.inter_op_num_threads, so.log_severity_level = intra, 1, 3
    return ort.InferenceSession(model, so, providers=["CPUExecutionProvider"])


def mlp(intra):
    path = f"{WORK}/onnx/policy_fused.onnx"
    if not os.path.exists(path):  # policy.py exports it
        subprocess.run([sys.executable, "policy.py", "--threads", "1", "--only", "^onnxruntime policy_fused 1$"],
                       cwd=SHARED, check=True, stdout=subprocess.DEVNULL)
    s = session(path, intra)
    return lambda x, states: (s.run(None, {"x": x}), [None] * len(x)), None


def gru(intra):
    import seqmodels as S
    s = session(S.onnx_models("gru", S.params(SEED))[1], intra)
    name = s.get_inputs()[1].name

    def step(x, states):
        *outs, h = s.run(None, {"x": x, name: np.stack(states, 1)})
        return outs, [h[:, k] for k in range(len(x))]
    return step, np.zeros((S.LAYERS, S.D), np.float32)


def reference(step, state):
    """Returns the first answers of every client, computed in batches of all clients."""
    answers, states = [], [state] * N
    for _ in range(CHECKED):
        outs, states = step(XS, states)
        check(outs)
        answers.append(outs)
    return answers


class Client:
    """The state of a client: its input, its memory, its times."""

    def __init__(self, i, state, ref, until):
        self.i, self.state, self.ref, self.until, self.times = i, state, ref, until, []

    def request(self):
        self.start = time.perf_counter()
        return XS[self.i], self.state

    def done(self, out, state):
        """Records an answer. Returns whether there is time for another request."""
        now, k = time.perf_counter(), len(self.times)
        self.times.append((now, now - self.start))
        self.state = state
        if k < CHECKED:
            assert all(np.allclose(a, b[self.i], rtol=1e-2, atol=1e-3) for a, b in zip(out, self.ref[k])), "wrong answer"
        return now < self.until


# ---- ways to serve: each runs all clients to the end and returns its batch sizes -----------------
def answer(step, got):
    """Maps [(x, state), ...] to an (output, state) for each."""
    outs, states = step(np.stack([x for x, _ in got]), [h for _, h in got])
    return [([o[k] for o in outs], h) for k, h in enumerate(states)]


def run_threads(target, clients):
    failed = []

    def run(c):
        try:
            target(c)
        except Exception as e:
            failed.append(e)
    threads = [threading.Thread(target=run, args=(c,)) for c in clients]
    [t.start() for t in threads], [t.join() for t in threads]
    if failed:
        raise failed[0]


def threads_nobatch(step, clients, _wait_us):
    def client(c):
        while c.done(*answer(step, [c.request()])[0]):
            pass
    run_threads(client, clients)
    return [1]


def threads_batch(step, clients, wait_us):
    waiting, sizes = queue.SimpleQueue(), []

    def server():
        while (first := waiting.get()) is not None:
            got, end = [first], time.perf_counter() + wait_us / 1e6
            while len(got) < N:
                try:
                    left = end - time.perf_counter()
                    got.append(waiting.get(timeout=left) if left > 0 else waiting.get_nowait())
                except queue.Empty:
                    break
            sizes.append(len(got))
            for (_, back), out in zip(got, answer(step, [request for request, _ in got])):
                back.put(out)

    def client(c):
        back = queue.SimpleQueue()
        waiting.put((c.request(), back))
        while c.done(*back.get(timeout=60)):
            waiting.put((c.request(), back))
    s = threading.Thread(target=server)
    s.start()
    run_threads(client, clients)
    waiting.put(None)
    s.join()
    return sizes


def asyncio_batch(step, clients, wait_us):
    sizes = []

    async def main():
        waiting, loop = asyncio.Queue(), asyncio.get_running_loop()

        async def server():
            while True:
                got = [await waiting.get()]
                await asyncio.sleep(wait_us / 1e6)
                while len(got) < N and not waiting.empty():
                    got.append(waiting.get_nowait())
                sizes.append(len(got))
                for (_, back), out in zip(got, answer(step, [request for request, _ in got])):
                    back.set_result(out)

        async def client(c):
            going = True
            while going:
                back = loop.create_future()
                waiting.put_nowait((c.request(), back))
                going = c.done(*await back)
        s = asyncio.create_task(server())
        await asyncio.gather(*(client(c) for c in clients))
        s.cancel()
    asyncio.run(main())
    return sizes


def serve(peer, case, model, way, intra, wait_us):
    if not only(peer, case, N):
        return
    with guard(peer, case):
        step, state = model(intra)
        ref, began, quiet = reference(step, state), time.perf_counter(), busy_s()
        clients = [Client(i, state, ref, began + WARM + SECONDS) for i in range(N)]
        sizes = way(step, clients, wait_us)
        us = np.asarray([d for c in clients for at, d in c.times if at - began > WARM]) * 1e6
        p50, p95, p99, p999 = np.percentile(us, [50, 95, 99, 99.9]).tolist()
        emit(peer, case, N, p50, p95, len(us), p99_us=round(p99, 1), p999_us=round(p999, 1), req_s=round(len(us) / SECONDS),
             wait_us=wait_us, mean_batch=round(float(np.mean(sizes)), 1), other=other_cores(quiet, busy_s()))


for case, model in (("serve_mlp", mlp), ("serve_gru", gru)):
    serve("threads-nobatch", case, model, threads_nobatch, T, 0)
    for peer, way in (("threads-batch", threads_batch), ("asyncio-batch", asyncio_batch)):
        for intra, wait_us in [(i, w) for i in sorted({T, 1}, reverse=True) for w in (0, 200)]:
            serve(peer + ("-intra1" if intra < T else ""), case, model, way, intra, wait_us)
