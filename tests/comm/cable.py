#!/usr/bin/env python3
"""A cable between two network namespaces: an interface eth0 in each, and packets that are carried from one to the other.

Usage: cable.py NAMESPACE NAMESPACE. Prints "up" when both interfaces are there; the caller gives them addresses. Reads
commands, one a line, until stdin ends or the process is killed:
  delay MS JITTER LOSS  each packet arrives after MS +- JITTER milliseconds (others may overtake it), or, with the
                        probability LOSS, not at all
  cut, join             nothing arrives; everything does again
Needs no queueing discipline of the kernel: the interfaces are TUN devices. Loss and jitter are seeded.
"""
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000


def enter(path):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, encoding="ascii") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")


def open_end(namespace):
    enter("/run/netns/" + namespace)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
    return end


class Cable:
    def __init__(self, ends):
        self.other = {ends[0]: ends[1], ends[1]: ends[0]}
        self.random = random.Random(7)
        self.delay = self.jitter = self.loss = 0.0
        self.is_cut = False
        self.on_the_way = []  # (time of arrival, number, end, packet)
        self.carried = self.lost = 0

    def obey(self, command):
        words = command.split()
        if words[0] == "delay":
            self.delay, self.jitter, self.loss = float(words[1]) / 1000, float(words[2]) / 1000, float(words[3])
        elif words[0] in ("cut", "join"):
            self.is_cut = words[0] == "cut"
        else:
            raise ValueError(f"unknown command {command!r}")

    def take(self, end):
        """All packets that a host has sent."""
        while True:
            try:
                packet = os.read(end, 65536)
            except OSError:  # no more, or the interface is down
                return
            if self.is_cut or self.random.random() < self.loss:
                self.lost += 1
                continue
            self.carried += 1
            arrival = time.monotonic() + max(0.0, self.delay + self.random.uniform(-self.jitter, self.jitter))
            heapq.heappush(self.on_the_way, (arrival, self.carried, self.other[end], packet))

    def deliver(self):
        """What has arrived. Returns seconds until the next packet does; None without any."""
        while self.on_the_way:
            wait = self.on_the_way[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, end, packet = heapq.heappop(self.on_the_way)
            try:
                if not self.is_cut:
                    os.write(end, packet)
            except OSError:  # the interface is down or its queue full
                pass
        return None


def main():
    home = f"/proc/{os.getpid()}/ns/net"
    own = os.open(home, os.O_RDONLY)
    cable = Cable([open_end(name) for name in sys.argv[1:3]])
    enter(f"/proc/self/fd/{own}")  # not one of the processes of these hosts
    print("up", flush=True)
    commands = b""
    while True:
        ready = select.select([0, *cable.other], [], [], cable.deliver())[0]
        for end in ready:
            if end != 0:
                cable.take(end)
                continue
            read = os.read(0, 4096)
            if not read:
                return
            commands += read
            *lines, commands = commands.split(b"\n")
            for line in lines:
                cable.obey(line.decode())
                print(f"{cable.carried} carried, {cable.lost} lost", flush=True)


main()
