#!/usr/bin/env python3
"""Token files with names that come back: tools/rare_names.py FOLDER

FOLDER/train.bin has 256 documents of 1,024 tokens, FOLDER/val.bin 16 of them, FOLDER/long.bin 16 of 4,096
tokens, as uint16 without a header. configs/claims/names is what it writes. A document is sentences of four tokens, WORD
WORD FIRST LAST:

* The first word is one of 64, the second one of the four that follow it.
* A name is one of 256 first and one of 256 last names. Each document draws its names anew, so a last name follows from the
  document alone.
* A sentence has a new name with probability 1/4, else one that the document has, but not its last 16 sentences.

Each document ends with token 0.
"""
import array
import os
import random
import sys

WORDS, FIRST, LAST = 1, 65, 321
APART = 16  # sentences without a name before it comes back


def document(draw, successors, tokens):
    out, names, free = [], [], draw.sample(range(256), 256)
    for sentence in range(tokens // 4):
        far = [name for name in names if name[2] < sentence - APART]
        if not far or (free and draw.randrange(4) == 0):
            names.append([FIRST + free.pop(), LAST + draw.randrange(256), 0])
            name = names[-1]
        else:
            name = draw.choice(far)
        name[2] = sentence
        word = draw.randrange(64)
        out += [WORDS + word, WORDS + draw.choice(successors[word])] + name[:2]
    return out + [0]


def write(path, seed, documents, tokens):
    draw = random.Random(seed)
    successors = [random.Random(word).sample(range(64), 4) for word in range(64)]  # one language for all files
    out = array.array("H")
    for _ in range(documents):
        out.extend(document(draw, successors, tokens))
    if sys.byteorder == "big":
        out.byteswap()
    with open(path, "wb") as file:
        out.tofile(file)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    write(os.path.join(folder, "train.bin"), 1, 256, 1024)
    write(os.path.join(folder, "val.bin"), 2, 16, 1024)
    write(os.path.join(folder, "long.bin"), 3, 16, 4096)
