"""Training rows of a configuration (docs/data.md and docs/tasks.md): files to documents to rows to batches."""
import glob
import json
import os
import struct

import numpy as np

from streams import Rng, fnv1a64, permuted

IGNORED = -100
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # Megatron


def split_at(tokens, token, where):
    if token is None:
        return [tokens]
    at = np.flatnonzero(tokens == token) + (where != "before")
    return [part for part in np.split(tokens, at) if len(part)]


def read_file(path, source):
    """Documents of one token file."""
    split = lambda tokens: split_at(tokens, source.get("split_token"), source.get("split", "after"))
    kind = source.get("format", "")
    if kind == "megatron":
        with open(path[:-4] + ".idx", "rb") as f:
            data = f.read()
        dtype, sequences, documents = struct.unpack("<BQQ", data[17:34])
        lengths = np.frombuffer(data, "<i4", sequences, 34)
        bounds = np.frombuffer(data, "<i8", documents, 34 + 12 * sequences)
        starts = np.concatenate([[0], np.cumsum(lengths)])[bounds]
        tokens = np.fromfile(path, TYPES[dtype]).astype(np.int64)
        return [tokens[a:b] for a, b in zip(starts, starts[1:])]
    if kind.startswith("raw_"):
        return split(np.fromfile(path, {"raw_u16": "<u2", "raw_u32": "<u4"}[kind]).astype(np.int64))
    magic = int(np.fromfile(path, "<i4", 1)[0])
    tokens = np.fromfile(path, {20240520: "<u2", 20240801: "<u4"}[magic], offset=1024).astype(np.int64)
    index = path[:-4] + ".idx"
    if not os.path.exists(index):
        return split(tokens)
    with open(index, "rb") as f:
        data = f.read()
    count, total = struct.unpack("<QQ", data[8:24])
    starts = np.frombuffer(data, "<u8", count + 1, 24).astype(np.int64)
    assert data[:8] == b"HEBBIDX1" and total == len(tokens)
    return [tokens[a:b] for a, b in zip(starts, starts[1:])]


def read_documents(source, folder):
    path = os.path.join(folder, source["path"])
    if os.path.isdir(path):
        with open(os.path.join(path, "dataset.json")) as f:
            files = [os.path.join(path, shard["file"]) for shard in json.load(f)["shards"]]
    else:
        files = sorted(glob.glob(path), key=os.fsencode)
    return [document for file in files for document in read_file(file, source)]


class FileSource:
    """Rows of one entry of `data.sources`; `index` is its place there. Validation sources have no order of their own (index None)."""

    def __init__(self, source, data, T, document_mask, seed, index, folder):
        get = lambda key, default: source.get(key, data.get(key, default))
        files = {**source, "split_token": get("split_token", None), "split": get("split", "after")}
        self.documents = [d for d in read_documents(files, folder) if len(d) >= get("min_document_tokens", 1)]
        self.packing, self.rows_of, self.tail = get("packing", "stream"), get("document_rows", "all"), get("tail", "drop")
        self.shuffle = "none" if index is None else get("shuffle", "rows")
        self.mask = get("mask_cross_document_targets", document_mask)
        self.T, self.seed, self.index, self.epochs = T, seed, index, {}

    def pieces(self, epoch):
        """(tokens, their documents' places) of each row of the epoch, T + 1 of each or fewer where a tail is padded."""
        epoch = epoch if "documents" in self.shuffle else 0
        if epoch not in self.epochs:
            T, docs = self.T, self.documents
            if "documents" in self.shuffle:
                docs = [docs[permuted(p, len(docs), self.seed, f"documents/{self.index}", epoch)] for p in range(len(docs))]
            if self.packing == "document":
                rows = []
                for number, d in enumerate(docs):
                    starts = range(0, len(d), T) if self.rows_of == "all" else [0]
                    for s in starts:
                        part = d[s:s + T + 1]
                        if len(part) == T + 1 or self.tail == "pad" and len(part) >= 2:
                            rows.append((part, np.full(len(part), number)))
            else:
                tokens = np.concatenate(docs) if docs else np.zeros(0, np.int64)
                owner = np.repeat(np.arange(len(docs)), [len(d) for d in docs])
                step = T if self.packing == "stream" else T + 1
                count = (len(tokens) - 1) // T if self.packing == "stream" else len(tokens) // (T + 1)
                rows = [(tokens[r * step:r * step + T + 1], owner[r * step:r * step + T + 1]) for r in range(count)]
            self.epochs[epoch] = rows
        return self.epochs[epoch]

    def count(self, epoch=0):
        return len(self.pieces(epoch))

    def row(self, k):
        """inputs, targets, document ids [T] of the k-th row handed out."""
        epoch = 0
        while k >= self.count(epoch):
            k -= self.count(epoch)
            epoch += 1
        if "rows" in self.shuffle:
            k = permuted(k, self.count(epoch), self.seed, f"rows/{self.index}", epoch)
        tokens, owner = self.pieces(epoch)[k]
        x, y, ids = np.zeros(self.T, np.int64), np.full(self.T, IGNORED), np.full(self.T, owner[-1] + 1 - owner[0])
        n = min(len(tokens), self.T)
        m = len(tokens) - 1
        x[:n], y[:m], ids[:n] = tokens[:n], tokens[1:], owner[:n] - owner[0]
        if self.mask:
            y[:m][owner[1:] != owner[:-1]] = IGNORED
        return x, y, ids


class SyntheticSource:
    """A task of docs/tasks.md."""

    def __init__(self, source, T, B, seed):
        self.options, self.T = {**DEFAULTS[source["task"]], "length": T, "length_block": B, **source}, T
        self.seed = source.get("seed", seed)

    def row(self, k):
        o = dict(self.options)
        if "lengths" in o:
            o["length"] = o["lengths"][Rng(self.seed, "icr/length", k // o["length_block"]).below(len(o["lengths"]))]
        x, y = TASKS[o["task"]](self.seed, k, o)
        pad = self.T - len(x)
        return np.array(x + [0] * pad), np.array(y + [IGNORED] * pad), np.zeros(self.T, np.int64)


def fresh_word(r, o, used):
    while True:
        word = tuple(10 + r.below(o["vocab"] - 10) for _ in range(o["word"]))
        if word not in used:
            used.add(word)
            return word


def recall_row(pairs, asked, length):
    x, y = [], []

    def put(key, value, answer):
        x.extend((*key, 1, *value, 2))
        y.extend([IGNORED] * len(key) + (list(value) if answer else [IGNORED] * len(value)) + [IGNORED, IGNORED])

    for pair in pairs:
        put(*pair, False)
    x.append(3)
    y.append(IGNORED)
    for pair in asked:
        put(*pair, True)
    pad = length - len(x)
    return x + [0] * pad, y + [IGNORED] * pad


def icr_basic(seed, index, o):
    r, used, u = Rng(seed, "icr/basic", index), set(), 2 * o["word"] + 2
    n = (o["length"] - 1 - o["queries"] * u) // u
    pairs = [(fresh_word(r, o, used), fresh_word(r, o, used)) for _ in range(n)]
    return recall_row(pairs, [pairs[i] for i in r.sample(n, o["queries"])], o["length"])


def icr_positional(seed, index, o):
    r, used, u, copies = Rng(seed, "icr/positional", index), set(), 2 * o["word"] + 2, o["copies"]
    n = (o["length"] - 1 - copies * u) // u // copies * copies
    pairs = []
    for _ in range(n // copies):
        key = fresh_word(r, o, used)
        pairs += [(key, fresh_word(r, o, used)) for _ in range(copies)]
    r.shuffle(pairs)
    key = pairs[r.below(n)][0]
    return recall_row(pairs, [p for p in pairs if p[0] == key], o["length"])


def icl(seed, index, o):
    r, dim, functions = Rng(seed, "icl", index), o["dim"], []
    for _ in range(o["functions"]):
        functions.append((1 + r.below(o["coef_max"]), 1 + r.below(o["coef_max"]), r.sample(dim, dim)))
    arrows = r.sample(128, o["functions"])
    x, y = [], []
    while len(x) + 2 * dim + 2 <= o["length"]:
        f = r.below(o["functions"])
        a, b, perm = functions[f]
        given = [1 + r.below(o["x_max"]) for _ in range(dim)]
        values = [b + a * given[p] for p in perm]
        x += given + [9872 + arrows[f]] + values + [9871]
        y += [IGNORED] * dim + values + [IGNORED, IGNORED]
    pad = o["length"] - len(x)
    return x + [0] * pad, y + [IGNORED] * pad


def mqar(seed, index, o):
    r, pairs, vocab = Rng(seed, "mqar", index), o["pairs"], o["vocab"]
    half = vocab // 2
    keys = [1 + k for k in r.sample(half - 1, pairs)]
    values = [half + v for v in r.sample(vocab - half, pairs)]
    x = [token for pair in zip(keys, values) for token in pair]
    y = [IGNORED] * len(x)
    space = (o["length"] - 2 * pairs) // 2
    weight = [2 ** 32 // (i + 1) for i in range(space)]
    asked = {}
    for p in range(pairs):
        at, i = r.u64() * sum(weight) >> 64, 0
        while at >= weight[i]:
            at -= weight[i]
            i += 1
        asked[i], weight[i] = p, 0
    random = lambda: r.below(vocab) if o["filler"] else 0
    for i in range(space):
        x += [keys[asked[i]] if i in asked else random()]
        x += [random()]
        y += [values[asked[i]] if i in asked else IGNORED, IGNORED]
    return x, y


TASKS = {"icr_basic": icr_basic, "icr_positional": icr_positional, "icl": icl, "mqar": mqar}
DEFAULTS = {"icr_basic": {"vocab": 10000, "word": 8, "queries": 6}, "icr_positional": {"vocab": 10000, "word": 8, "copies": 4},
            "icl": {"functions": 16, "dim": 12, "x_max": 1000, "coef_max": 5}, "mqar": {"vocab": 8192, "pairs": 4, "filler": True}}


def open_source(source, run, index, folder):
    """index: the place in data.sources, None for validation."""
    data, t = run["data"], run["train"]
    seed = data.get("seed", t.get("seed", 0))
    if source.get("type") == "synthetic":
        return SyntheticSource(source, t["sequence_length"], t["batch_size"], seed)
    return FileSource(source, data, t["sequence_length"], t.get("document_mask", False), seed, index, folder)


class Mixture:
    """The global order of rows over all sources."""

    def __init__(self, run, folder):
        data = run["data"]
        self.sources = [open_source(s, run, i, folder) for i, s in enumerate(data["sources"])]
        weights = [s.get("weight", 1.0) for s in data["sources"]]
        weights = [self.sources[i].count() if w == "rows" else w for i, w in enumerate(weights)]
        self.shares = [max(1, int(1e6 * w / sum(weights) + 0.5)) for w in weights]
        self.taken, self.next = [0] * len(weights), 0

    def row(self):
        """The next global row."""
        scores = [s * (self.next + 1) - n * sum(self.shares) for s, n in zip(self.shares, self.taken)]
        i = scores.index(max(scores))
        self.taken[i] += 1
        self.next += 1
        return self.sources[i].row(self.taken[i] - 1)


def checksum(values):
    """FNV-1a 64 of 32-bit integers (docs/tasks.md)."""
    return fnv1a64(np.array(values, "<i4").tobytes())
