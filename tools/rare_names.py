#!/usr/bin/env python3
"""Token files with names that come back: tools/rare_names.py FOLDER

Writes FOLDER/names and FOLDER/few-names, files of uint16 without a header. configs/claims has both. A document is
sentences of words, a first name and a last name:

* The first word is drawn evenly. A second one is one of the four that follow it.
* Each document draws its names anew, so a last name follows from the document alone.
* A sentence has a new name with probability 1/4, else one that the document has, but not its last sentences.

             words   a sentence   first, last names   apart          train.bin      val.bin      middle.bin   long.bin
names        64      2            256, 256            16 sentences   256 of 1,024   16 of 1,024               16 of 4,096
few-names    32      1            64, 64              4 sentences    8,000 of 63    256 of 63    64 of 255    16 of 1,023

The last columns are documents and their tokens. Each document ends with token 0.
"""
import array
import collections
import os
import random
import sys

# `words` of the language, `sentence` of them in a sentence, `names` first and as many last ones, `apart` sentences before
# a name comes back; `files` by name: seed, documents, tokens of each.
Kind = collections.namedtuple("Kind", "words sentence names apart files")
KINDS = {
    "names": Kind(64, 2, 256, 16, {"train": (1, 256, 1024), "val": (2, 16, 1024), "long": (3, 16, 4096)}),
    "few-names": Kind(32, 1, 64, 4, {"train": (1, 8000, 63), "val": (2, 256, 63), "middle": (4, 64, 255), "long": (3, 16, 1023)}),
}


def document(draw, kind, successors, tokens):
    first, last = 1 + kind.words, 1 + kind.words + kind.names
    out, names, free = [], [], draw.sample(range(kind.names), kind.names)
    for sentence in range(tokens // (kind.sentence + 2)):
        far = [name for name in names if name[2] < sentence - kind.apart]
        if not far or (free and draw.randrange(4) == 0):
            names.append([first + free.pop(), last + draw.randrange(kind.names), 0])
            name = names[-1]
        else:
            name = draw.choice(far)
        name[2] = sentence
        word = draw.randrange(kind.words)
        out.append(1 + word)
        if kind.sentence == 2:
            out.append(1 + draw.choice(successors[word]))
        out += name[:2]
    return out + [0]


def write(path, kind, seed, documents, tokens):
    draw = random.Random(seed)
    successors = [random.Random(word).sample(range(kind.words), 4) for word in range(kind.words)]  # one language for all files
    out = array.array("H")
    for _ in range(documents):
        out.extend(document(draw, kind, successors, tokens))
    if sys.byteorder == "big":
        out.byteswap()
    with open(path, "wb") as file:
        out.tofile(file)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, kind in KINDS.items():
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        for file, size in kind.files.items():
            write(os.path.join(folder, file + ".bin"), kind, *size)
