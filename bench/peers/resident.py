"""Resident memory of a training run, as reported by the kernel. The README defines the figures."""
import ctypes
import gc
import re
import time

STEPS = 5


def bytes_of(field):
    """VmRSS: resident now. VmHWM: the peak since reset()."""
    return int(re.search(rf"^{field}:\s+(\d+) kB", open("/proc/self/status").read(), re.M)[1]) * 1024


def reset():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def give_back():
    """Returns freed memory to the system, so that later allocations count again."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def training(make):
    """Resident bytes of the steps that make() prepares, microseconds of STEPS of them, and their losses."""
    make()()  # compiles, loads code, starts threads; its objects are dropped
    give_back()
    loaded = bytes_of("VmRSS")
    step = make()
    before = bytes_of("VmRSS")
    reset()
    losses, us = [], []
    for _ in range(STEPS):
        start = time.perf_counter_ns()
        losses.append(float(step()))
        us.append((time.perf_counter_ns() - start) / 1e3)
    peak = bytes_of("VmHWM")
    return dict(peak_bytes=peak - loaded, step_bytes=peak - before, whole_bytes=peak), us, losses
