"""Reads and writes safetensors files with nothing but the standard library and torch."""
import json
import struct

import torch

TYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8}
NAMES = {v: k for k, v in TYPES.items()}


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]) or bytearray(8), dtype=TYPES[entry["dtype"]])
            out[name] = values[:int(torch.tensor(entry["shape"]).prod())].reshape(entry["shape"])
    return out


def write(path, tensors):
    header, blobs, at = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        blob = bytes(tensor.contiguous().numpy().tobytes())
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
