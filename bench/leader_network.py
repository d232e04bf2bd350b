"""Virtual links with delay, jitter and loss between the network namespaces of `leader_network.exs`, for Linux, as root.

    python3 leader_network.py COUNT

Each namespace has one TUN device, 10.77.0.N. This process reads the packets of all devices and writes each one to the
device of its destination when its delay is over, in order; so TCP sees real delays, losses and retransmissions. Commands
come on standard input, one a line, and each is answered with a line:

    link DELAY_MS JITTER_MS LOSS    for all links, each way: a delay, plus or minus up to the jitter; a share of lost packets
    cut FROM TO                     packets of FROM to TO are lost
    heal                            no packets are cut

At the end of standard input all processes in the namespaces are killed, and the namespaces removed.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x1001
PREFIX = "sconce%d-" % os.getpid()


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def enter(namespace):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns " + namespace.name)


def device(n):
    name = PREFIX + str(n)
    ip("netns", "add", name)
    # A device belongs to the namespace in which it was made; its descriptor works in any other.
    with open("/proc/self/ns/net") as own, open("/var/run/netns/" + name) as other:
        enter(other)
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"net0", IFF_TUN_WITHOUT_HEADER))
        enter(own)
    ip("-n", name, "link", "set", "lo", "up")
    ip("-n", name, "addr", "add", "10.77.0.%d/24" % n, "dev", "net0")
    ip("-n", name, "link", "set", "net0", "up")
    return tun


def remove(count):
    for n in range(1, count + 1):
        name = PREFIX + str(n)
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
        for pid in pids.split():
            if int(pid) != os.getpid():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass  # It has ended by itself.
        subprocess.run(["ip", "netns", "del", name])


class Switch:
    def __init__(self, tuns):
        self.tuns = tuns
        self.delay = self.jitter = self.loss = 0.0
        self.cuts = set()
        self.queue = []
        self.latest = {}
        self.count = 0

    def command(self, words):
        if words[0] == "link":
            delay, jitter, self.loss = (float(word) for word in words[1:])
            self.delay, self.jitter = delay / 1000, jitter / 1000
        elif words[0] == "cut":
            self.cuts.add((int(words[1]), int(words[2])))
        elif words[0] == "heal":
            self.cuts.clear()
        else:
            raise ValueError(words)

    def take(self, source, packet):
        # IPv4 only; the last byte of the address names the member.
        if len(packet) < 20 or packet[0] >> 4 != 4 or packet[19] not in self.tuns:
            return
        if random.random() < self.loss:
            return
        way = (source, packet[19])
        due = time.monotonic() + self.delay + random.uniform(-self.jitter, self.jitter)
        due = self.latest[way] = max(due, self.latest.get(way, 0))
        self.count += 1
        heapq.heappush(self.queue, (due, self.count, way, packet))

    def deliver(self):
        while self.queue and self.queue[0][0] <= time.monotonic():
            _due, _count, way, packet = heapq.heappop(self.queue)
            # A packet that is under way when the link is cut is lost, too.
            if way not in self.cuts:
                try:
                    os.write(self.tuns[way[1]], packet)
                except OSError:
                    pass  # The device is down.

    def wait_s(self):
        return max(self.queue[0][0] - time.monotonic(), 0) if self.queue else None

    def run(self):
        of = {tun: n for n, tun in self.tuns.items()}
        while True:
            ready, _, _ = select.select([0, *of], [], [], self.wait_s())
            for fd in ready:
                if fd != 0:
                    try:
                        self.take(of[fd], os.read(fd, 65536))
                    except OSError:
                        pass  # The device is down.
            self.deliver()
            if 0 in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                self.command(line.split())
                print("ok", flush=True)


count = int(sys.argv[1])
try:
    switch = Switch({n: device(n) for n in range(1, count + 1)})
    print("ready " + PREFIX, flush=True)
    switch.run()
finally:
    remove(count)
