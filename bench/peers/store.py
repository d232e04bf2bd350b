#!/usr/bin/env python3
"""256 blocks of 1 MB of weights in bf16, read in five orders with 64 MB of RAM: lmdb, lmdb with blosc, and zarr.

    store.py FOLDER PEER ORDERS GROUP SECONDS

    store.py FOLDER small

FOLDER has the blocks in weights.bin. `small` puts 100,000 tensors of 2 KB into lmdb, 1,000 in each transaction, and gets 20,000 of
them. The first form prints one line of JSON per order: bytes that were delivered as `bytes` in RAM, seconds, percentiles. GROUP is a
memory cgroup that the program enters once its data lie on disk; `-` is none. ORDERS is the file of the orders, which
`mix bench store` writes, so that all programs read the same blocks in the same order.
"""
import json
import os
import sys
import time

import numpy as np

BLOCKS, BYTES = 256, 1 << 20


def blocks(folder):
    with open(os.path.join(folder, "weights.bin"), "rb") as file:
        for _ in range(BLOCKS):
            yield file.read(BYTES)


def codec():
    from numcodecs import blosc
    from numcodecs.blosc import Blosc

    blosc.use_threads = False
    return Blosc("lz4", 5, Blosc.BITSHUFFLE, 0)


def lmdb_reader(folder, encode=None):
    import lmdb

    path = os.path.join(folder, "lmdb" if encode is None else "lmdb-blosc")
    env = lmdb.open(path, map_size=1 << 30, sync=True)
    with env.begin(write=True) as put:
        for at, block in enumerate(blocks(folder)):
            words = np.frombuffer(block, "<u2")
            put.put(b"%03d" % at, block if encode is None else encode.encode(words))
    env.sync(True)
    env.close()
    env = lmdb.open(path, readonly=True, lock=False)

    def read(at):
        with env.begin(buffers=True) as get:
            value = get.get(b"%03d" % at)
            return bytes(value) if encode is None else encode.decode(value)

    return read


def zarr_reader(folder):
    import zarr
    from zarr.codecs import BloscCodec

    path = os.path.join(folder, "zarr")
    compressors = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle")
    array = zarr.create_array(
        path, shape=(BLOCKS, BYTES // 2), chunks=(1, BYTES // 2), dtype="uint16", compressors=compressors
    )
    for at, block in enumerate(blocks(folder)):
        array[at] = np.frombuffer(block, "<u2")
    os.sync()
    array = zarr.open_array(path, mode="r")
    return lambda at: array[at]


def small(folder):
    import lmdb

    env = lmdb.open(os.path.join(folder, "lmdb-small"), map_size=1 << 30, sync=True)
    rng = np.random.default_rng(1)
    began = time.perf_counter()
    for batch in range(100):
        with env.begin(write=True) as put:
            for at in range(1000):
                number = batch * 1000 + at
                put.put(b"t%06d" % number, (b"%08d" % number) * 256)
    put_s = time.perf_counter() - began
    order = rng.integers(0, 100_000, 20_000).tolist()
    times = []
    for number in order:
        start = time.perf_counter()
        with env.begin(buffers=True) as get:
            value = bytes(get.get(b"t%06d" % number))
        times.append(time.perf_counter() - start)
        assert value[:8] == b"%08d" % number
    p50, p99 = np.percentile(times, [50, 99]) * 1e6
    files = sum(len(names) for _, _, names in os.walk(os.path.join(folder, "lmdb-small")))
    used = os.path.getsize(os.path.join(folder, "lmdb-small", "data.mdb"))
    print(json.dumps({"name": "small", "put_s": put_s, "p50_us": p50, "p99_us": p99, "files": files, "mb": used / 1e6}))


def main():
    if sys.argv[2] == "small":
        return small(sys.argv[1])
    folder, peer, orders, group = sys.argv[1:5]
    seconds = float(sys.argv[5])
    readers = {
        "lmdb": lambda: lmdb_reader(folder),
        "lmdb+blosc": lambda: lmdb_reader(folder, codec()),
        "zarr": lambda: zarr_reader(folder),
    }
    read = readers[peer]()
    want = [block[:16] + block[-16:] for block in blocks(folder)]
    for at in (0, 100, 255):
        got = memoryview(read(at)).cast("B")
        assert bytes(got[:16]) + bytes(got[-16:]) == want[at], f"{peer}: block {at}"
    if group != "-":
        for name in os.listdir("/proc/self/task"):
            with open(os.path.join(group, "tasks"), "w") as file:
                file.write(name)
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")
    with open(orders) as file:
        all_orders = json.load(file)
    for name, order in all_orders.items():
        times = []
        began = time.perf_counter()
        done = 0
        while time.perf_counter() - began < seconds:
            at = order[done % len(order)]
            start = time.perf_counter()
            read(at)
            times.append(time.perf_counter() - start)
            done += 1
        took = time.perf_counter() - began
        p50, p99 = np.percentile(times, [50, 99]) * 1e6
        row = {"name": name, "gb_s": done * BYTES / took / 1e9, "p50_us": p50, "p99_us": p99, "reads": done}
        print(json.dumps(row), flush=True)


main()
