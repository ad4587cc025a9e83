#!/usr/bin/env python3
"""Reference of Parquet: files and their texts, written and read by Apache Arrow (pip install pyarrow).

  parquet_files.py golden FOLDER     what tests/golden/parquet holds
  parquet_files.py compare HEBB      random files of every encoding, page version and compression against HEBB: data
                                     encode with the tokenizer "bytes" must give the documents that pyarrow reads
"""
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = ["one", None, "", "caf\u00e9 \u4e16\u754c \U0001f600", "one", "one two", "one two three", None, None, "x" * 40, "one", "last\n"]
ENCODINGS = {"plain": dict(use_dictionary=False, column_encoding={"text": "PLAIN"}),
             "dictionary": dict(use_dictionary=["text"]),
             "delta-length": dict(use_dictionary=False, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}),
             "delta": dict(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})}
CODECS = ["none", "snappy", "gzip", "zstd"]


def table(texts, is_required=False):
    kind = pa.string()
    fields = [pa.field("id", pa.int64()), pa.field("meta", pa.struct([pa.field("url", pa.string())])),
              pa.field("text", kind, nullable=not is_required)]
    return pa.table([list(range(len(texts))), [{"url": str(i)} for i in range(len(texts))], texts], schema=pa.schema(fields))


def write(path, texts, encoding="plain", version="1.0", codec="none", is_required=False, **more):
    pq.write_table(table(texts, is_required), path, compression=codec, data_page_version=version,
                   **{"write_statistics": False, "store_schema": False, **ENCODINGS[encoding], **more})


def golden(folder):
    full = [t for t in TEXTS if t is not None]
    files = {}

    def add(name, texts, **options):
        write(folder / f"{name}.parquet", texts, **options)
        files[name] = [t or "" for t in texts]

    for encoding in ENCODINGS:
        for version in ("1.0", "2.0"):
            add(f"{encoding}-{version[0]}", TEXTS, encoding=encoding, version=version)
            add(f"{encoding}-{version[0]}-required", full, encoding=encoding, version=version, is_required=True)
    for codec in CODECS[1:]:
        for version in ("1.0", "2.0"):
            add(f"{codec}-{version[0]}", TEXTS, encoding="dictionary", version=version, codec=codec)
    add("groups", TEXTS, row_group_size=5, write_statistics=True, write_page_checksum=True)
    add("pages", [f"text {i}" for i in range(40)], data_page_size=64, write_batch_size=8, version="2.0", encoding="delta")
    add("nulls", [None] * 20, encoding="dictionary")
    add("empty", [])
    for codec in ("brotli", "lz4"):
        write(folder / f"{codec}.parquet", TEXTS, codec=codec)
    pq.write_table(pa.table({"content": [["a"], ["b", "c"]], "number": [1, 2], "large": pa.array(["p", None], pa.large_string()),
                             "raw": [b"q", b"r"]}), folder / "types.parquet", compression="none", write_statistics=False,
                   store_schema=False)
    (folder / "cases.json").write_text(json.dumps(files, ensure_ascii=False, indent=0) + "\n")


def random_texts(rng):
    words = [rng.choice(["a", "the ", "\u4e16\u754c", "\U0001f600", "x" * rng.randint(1, 400), "\n", "\u00e9"]) for _ in range(50)]
    kinds = [lambda: None, lambda: "", lambda: "".join(rng.choices(words, k=rng.randint(1, 40))), lambda: rng.choice(words),
             lambda: "prefix " * rng.randint(1, 20) + str(rng.random())]
    weights = [rng.choice([0, 1, 5]), rng.choice([0, 1]), 3, rng.choice([0, 5]), rng.choice([0, 3])]
    return rng.choices([k for k in kinds], weights, k=rng.choice([1, 7, 100, 3000]))


def compare(hebb):
    rng = random.Random(3)
    files = values = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        for encoding in ENCODINGS:
            for version in ("1.0", "2.0"):
                for codec in CODECS:
                    for is_required in (False, True):
                        for _ in range(3):
                            texts = [make() for make in random_texts(rng)]
                            texts = [t or "" for t in texts] if is_required else texts
                            write(path, texts + ["end"], encoding, version, codec, is_required,
                                  row_group_size=rng.choice([13, 500, 10**6]), data_page_size=rng.choice([100, 5000, 10**6]),
                                  write_batch_size=rng.choice([1, 10, 1024]), dictionary_pagesize_limit=rng.choice([50, 10**6]),
                                  write_page_checksum=rng.random() < 0.5, write_statistics=rng.random() < 0.5,
                                  use_content_defined_chunking=rng.random() < 0.3)
                            out = Path(folder) / "out"
                            report = json.loads(subprocess.run(
                                [hebb, "data", "encode", path, "--tokenizer", "bytes", "--out", out, "--overwrite", "--json"],
                                check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
                            expected = b"".join(b"".join(bytes([b, 0]) for b in t.encode()) + b"\x01\x01"
                                                for t in texts + ["end"] if t)
                            found = (out / "train_000000.bin").read_bytes()[1024:]
                            assert found == expected, (encoding, version, codec, is_required)
                            assert report["empty_documents"] == sum(not t for t in texts), report
                            files, values = files + 1, values + len(texts) + 1
    print(f"{files} files, {values} values: equal")


if __name__ == "__main__":
    {"golden": lambda a: golden(Path(a)), "compare": compare}[sys.argv[1]](sys.argv[2])
