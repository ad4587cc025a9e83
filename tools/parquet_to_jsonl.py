#!/usr/bin/env python3
"""Writes the texts of Parquet files to standard output, one JSON object {"text": ...} a line.

  tools/parquet_to_jsonl.py FILE.parquet... | hebb data encode /dev/stdin --format jsonl --tokenizer bytes --out DIR

Needs pyarrow. Rows keep their order. A null or a value that is not a string is an error that names file and row.
"""
import argparse
import json
import os
import sys

try:
    import pyarrow.parquet as parquet
except ImportError:
    sys.exit("error: pyarrow is missing (pip install pyarrow)")


def texts(path, field, batch):
    """The strings of a column, in order; `batch` rows are in memory at a time."""
    file = parquet.ParquetFile(path)
    if field not in file.schema_arrow.names:
        sys.exit(f"error: {path}: no column {field} (found {', '.join(file.schema_arrow.names)})")
    row = 0
    for part in file.iter_batches(batch_size=batch, columns=[field]):
        for value in part.column(0).to_pylist():
            if not isinstance(value, str):
                sys.exit(f"error: {path}: row {row}: {field} is no string (found {type(value).__name__})")
            yield value
            row += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE.parquet")
    parser.add_argument("--field", default="text", help="column with the text (default: text)")
    parser.add_argument("--batch", type=int, default=1024, help="rows in memory at a time (default: 1024)")
    args = parser.parse_args()
    try:
        for path in args.files:
            for text in texts(path, args.field, args.batch):
                print(json.dumps({"text": text}, ensure_ascii=True))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
