#!/usr/bin/env python3
"""Reference of the tokenizer.json that `hebb convert` writes: SentencePiece models, texts, and their ids and text by
the library sentencepiece (pip install sentencepiece transformers).

  tokenizer_export.py golden HEBB FOLDER   what tests/golden/tokenizer-export holds; checked as below
  tokenizer_export.py check HEBB MODEL...  22,000 texts for each SentencePiece model, or "bytes", through HEBB convert
                                           and AutoTokenizer
"""
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
import transformers

sys.path.insert(0, str(Path(__file__).parent))
from tokenizer_json import WORDS, character, text  # noqa: E402

MODELS = {
    "bpe": {"model_type": "bpe", "pad_id": 3},
    "prefix": {"model_type": "bpe", "add_dummy_prefix": True},
    "user": {"model_type": "bpe", "user_defined_symbols": ["[INST]", "[/INST]", "[INST", "\u2581\u2581", "\n", "=="]},
    "unigram": {"model_type": "unigram", "vocab_size": 360, "add_dummy_prefix": True, "remove_extra_whitespaces": True},
}
SPACES = [" ", "  ", "    ", "\n", "\t", "\u2581", "\u2581\u2581", " \u2581", "\u00a0"]
SPELT = ["<0x41>", "<0xE2>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<unk", "s>"]


def texts():
    rng = random.Random(77)
    out = [text(rng) for _ in range(14000)]
    out += ["".join(character(rng) for _ in range(rng.randint(1, 40))) for _ in range(3000)]
    out += ["".join(rng.choice([rng.choice(SPACES), rng.choice(WORDS), rng.choice(SPELT)])
                    for _ in range(rng.randint(1, 15))) for _ in range(2300)]
    out += ["".join(rng.choice(a) for _ in range(rng.randint(1, 30)))
            for a in ("ab", "a", "aA ", "abc ", "- ", "  \n", "=*", "01", "..,") for _ in range(300)]
    return [t for t in out if t]


def train(folder):
    rng = random.Random(3)
    corpus = folder / "corpus"
    lines = [" ".join(rng.choice(WORDS) for _ in range(12)) + rng.choice(["", ".", " <x>", " 0123456789 ABCDEFX", "=="])
             for _ in range(3000)]
    corpus.write_text("\n".join(lines))
    for name, options in MODELS.items():
        sentencepiece.SentencePieceTrainer.train(**{
            "input": str(corpus), "model_prefix": str(folder / name), "vocab_size": 480, "byte_fallback": True,
            "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False,
            "split_digits": True, "minloglevel": 3, "num_threads": 1, **options})
        (folder / f"{name}.vocab").unlink()
    corpus.unlink()


def exported(hebb, model, folder):
    """A tiny model of hebb with this tokenizer, as hebb convert writes it for transformers."""
    vocab = 259 if model == "bytes" else sentencepiece.SentencePieceProcessor(model_file=str(model)).vocab_size()
    source = folder / "source"
    source.mkdir()
    named = {"type": "bytes"} if model == "bytes" else {"type": "sentencepiece", "file": str(Path(model).resolve())}
    layers = {"a": {"type": "attention", "num_heads": 1, "head_dim": 2, "rope": {}},
              "f": {"type": "swiglu", "intermediate_size": 2}}
    (source / "config.json").write_text(json.dumps({
        "model": {"vocab_size": vocab, "hidden_size": 2, "num_layers": 1, "layers": layers,
                  "pattern": [{"mixer": "a", "ffn": "f"}], "tie_embeddings": True},
        "data": {"tokenizer": named}}))
    shapes = {"embed.weight": [vocab, 2], "final_norm.weight": [2], "blocks.0.mixer_norm.weight": [2],
              "blocks.0.ffn_norm.weight": [2], **{f"blocks.0.mixer.{n}_proj.weight": [2, 2] for n in "qkvo"},
              **{f"blocks.0.ffn.{n}_proj.weight": [2, 2] for n in ("gate", "up", "down")}}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * (shape[0] * (shape[1] if len(shape) > 1 else 1))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (source / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(at))
    subprocess.run([hebb, "convert", source, folder / "out"], check=True)
    return folder / "out"


def check(hebb, model, folder):
    out = exported(hebb, model, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    special = [str(t) for t in tokenizer.added_tokens_decoder.values()]
    chosen = [t for t in texts() if not any(s in t for s in special)]
    if model == "bytes":
        expected = [list(t.encode()) for t in chosen]
        decoded = chosen
    else:
        library = sentencepiece.SentencePieceProcessor(model_file=str(model))
        expected = library.encode(chosen)
        decoded = library.decode(expected)
    found = tokenizer(chosen)["input_ids"]
    bad = [i for i in range(len(chosen)) if found[i] != expected[i]]
    lost = [i for i in range(len(chosen))
            if tokenizer.decode(expected[i], skip_special_tokens=True) != decoded[i]]
    print(f"transformers {transformers.__version__}, {model}: {len(chosen)} texts, {sum(map(len, expected))} ids, "
          f"{len(bad)} texts differ, {len(lost)} decode differently", flush=True)
    for i in bad[:3] + lost[:3]:
        print("  ", repr(chosen[i])[:200], expected[i][:30], found[i][:30])
    return out


def golden(hebb, folder):
    train(folder)
    rng = random.Random(9)
    some = [""] + [text(rng) for _ in range(12)] + [
        " leading", "two  spaces   ", "a\u2581b", "aaaaa--  --", "[INST] the light[/INST]==\n  [INST", "\u00e9\u4e94\U0001f600"]
    cases = {"texts": some, "models": {}}
    for name in MODELS:
        library = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
        ids = library.encode(some)
        cases["models"][name] = {"ids": ids, "decoded": library.decode(ids)}
        with tempfile.TemporaryDirectory() as temporary:
            out = check(hebb, folder / f"{name}.model", Path(temporary))
            for file, kind in (("tokenizer.json", "json"), ("tokenizer_config.json", "config.json")):
                (folder / f"{name}.{kind}").write_bytes((out / file).read_bytes())
    with tempfile.TemporaryDirectory() as temporary:
        out = check(hebb, "bytes", Path(temporary))
        (folder / "bytes.json").write_bytes((out / "tokenizer.json").read_bytes())
    (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    verb, driver, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    if verb == "golden":
        golden(driver, Path(arguments[0]))
    else:
        for argument in arguments:
            with tempfile.TemporaryDirectory() as temporary:
                check(driver, argument, Path(temporary))
