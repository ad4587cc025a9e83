"""Draws of docs/random-streams.md, on top of a stream's words: integers, normals, permutations, and many at once."""
import math

import numpy as np

import model  # noqa: F401 (finds modeling_hebb)
from modeling_hebb import M32, M64, Stream, fnv1a64, mix64, philox


def stream_key(seed, label):
    key = mix64((seed & M64) ^ fnv1a64(label.encode()))
    return key & M32, key >> 32


class Rng(Stream):
    def below(self, n):
        m = self.u32() * n
        if m & M32 < n:
            t = (2 ** 32 - n) % n
            while m & M32 < t:
                m = self.u32() * n
        return m >> 32

    def normal(self):
        u1, u2 = self.uniform(), self.uniform()
        return math.sqrt(-2 * math.log(1 - u1)) * math.cos(2 * math.pi * u2)

    def choice(self, items):
        return items[self.below(len(items))]

    def shuffle(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def sample(self, n, k):
        a = list(range(n))
        for i in range(k):
            j = i + self.below(n - i)
            a[i], a[j] = a[j], a[i]
        return a[:k]


def uniforms(seed, label, count, index=0):
    """The first `count` uniform() of a stream, all at once."""
    key = [np.array([k], dtype=np.uint64) for k in stream_key(seed, label)]
    block = np.arange((count + 1) // 2, dtype=np.uint64)
    words = np.stack(philox((block, 0 * block, 0 * block + (index & M32), 0 * block + (index >> 32)), key), 1).reshape(-1, 2)
    return ((words[:, 0] + (words[:, 1] << np.uint64(32))) >> np.uint64(11))[:count] * 2.0 ** -53


def normals(seed, label, count):
    """The first `count` normal() of a stream."""
    u = uniforms(seed, label, 2 * count)
    return np.sqrt(-2 * np.log(1 - u[::2])) * np.cos(2 * np.pi * u[1::2])


def permuted(x, n, seed, label, index=0):
    """P(n; seed, label, index)(x)."""
    b = 2
    while 2 ** b < n:
        b += 2
    h, mask, key = b // 2, 2 ** (b // 2) - 1, stream_key(seed, label)
    while True:
        left, right = x >> h, x & mask
        for r in range(6):
            w = philox((right & M32, (right >> 32 & 0xFFFFFF) | r << 24, index & M32, index >> 32), key)
            left, right = right, left ^ (w[0] + (w[1] << 32) & mask)
        x = left << h | right
        if x < n:
            return x
