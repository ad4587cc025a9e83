"""Random streams (docs/random-streams.md): Philox4x32-10 keyed by a seed and a label, counted by an index."""
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & M64
    return h


def mix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def philox(counter, key):
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M32, (p0 >> 32) ^ c3 ^ k1, p0 & M32
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return c0, c1, c2, c3


class Stream:
    def __init__(self, seed, label, index=0):
        key = mix64((seed & M64) ^ fnv1a64(label.encode()))
        self.key, self.index, self.block, self.words = (key & M32, key >> 32), index, 0, []

    def u32(self):
        if not self.words:
            counter = (self.block & M32, self.block >> 32, self.index & M32, self.index >> 32)
            self.words = list(philox(counter, self.key))
            self.block += 1
        return self.words.pop(0)

    def u64(self):
        low = self.u32()
        return low + (self.u32() << 32)

    def uniform(self):
        return (self.u64() >> 11) * 2.0 ** -53
