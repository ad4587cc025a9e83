#!/usr/bin/env python3
"""The facts of configs/claims/sdm-memory.json: facts.py COUNT OUT writes COUNT documents of four tokens as raw_u16.

Document i = 0, 1, ... is S V W 0: the symbols S = 258 + i div 32 and V = 258 + i mod 32, no two documents with the same,
and their value W = 129 + floor(x_i / 2^24) mod 128. x_i is the i-th number behind 1, i from 0, of the generator
x -> 1664525 x + 1013904223 mod 2^32.
"""
import sys

x, tokens = 1, []
for i in range(int(sys.argv[1])):
    x = (1664525 * x + 1013904223) % 2**32
    tokens += [258 + i // 32, 258 + i % 32, 129 + (x >> 24) % 128, 0]
with open(sys.argv[2], "wb") as file:
    file.write(b"".join(token.to_bytes(2, "little") for token in tokens))
