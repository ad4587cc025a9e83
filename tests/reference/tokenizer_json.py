#!/usr/bin/env python3
"""Reference of tokenizer.json: files, texts and ids made by Hugging Face's library tokenizers (pip install tokenizers).

  tokenizer_json.py golden FOLDER            what tests/golden/tokenizer-json holds
  tokenizer_json.py compare DRIVER [FILE...] 10,000 texts for each tokenizer against DRIVER, trained on FILEs, too.
                                             DRIVER TOKENIZER.json reads texts (4 bytes of length, then UTF-8) and
                                             writes a line of ids for each
  tokenizer_json.py classes                  the ranges in data/tokenizer/character_class.cpp
  tokenizer_json.py letters                  the ranges in data/tokenizer/letter_kind.cpp
  tokenizer_json.py late-marks               the ranges in data/tokenizer/nfc.cpp (with utf8proc of Unicode 15)
"""
import ctypes
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
          r"|\s*[\r\n]|\s+(?!\S)|\s+")

QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")

SCRIPTS = [(0x41, 0x7A), (0xC0, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F),
           (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x8FF), (0x900, 0x97F), (0x980, 0xDFF), (0xE00, 0xEFF),
           (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x11FF), (0x1200, 0x139F), (0x1700, 0x18AF), (0x1AB0, 0x1AFF),
           (0x1DC0, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2BFF), (0x2C00, 0x2DFF),
           (0x2E80, 0x303F), (0x3040, 0x30FF), (0x3100, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF),
           (0xE000, 0xF8FF), (0xF900, 0xFFFF), (0x10000, 0x11FFF), (0x12000, 0x1DFFF), (0x1E000, 0x1FAFF),
           (0x20000, 0x323AF), (0xE0000, 0xE01EF), (0x0, 0x7F), (0x80, 0xBF)]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u0085",
          "\u2028", "\x0b", "\x0c", "\x1c", "\u200b", "\ufeff"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'lL", "'D", "'M", "'\u017f",
                "\u2019s", "'", "''", "'x", "'r", "'v", "'l", "'st", "'K"]
NUMBERS = ["7", "42", "365", "2024", "1000000", "3.14", "1,000", "\u0664\u0665", "\u216b", "\u00bd", "\u00b2", "\u4e94",
           "\U0001d7d9", "\u2460", "0x1F", "1e-5"]
EMOJI = ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f",
         "\U0001f1e9\U0001f1ea", "#\ufe0f\u20e3"]
CASES = ["McDonald", "iPhone", "XMLHttpRequest", "ABCdef", "aBCd", "\u01c5x", "\u02b0a", "\u4e94A\u4e94", "A\u0301B",
         "\u0301\u0301a", "!\u0301", "!A\u0301b's", "D'Arc'S", "AB'LL", "\u05d0A", "a/\n/b", "//\r\n", "1234567"]
MARKS = ["e\u0301", "o\u0308\u0323", "\u1112\u1161\u11ab", "\u212b", "\u0344", "a\u0327\u0301", "\u0958", "q\u0307\u0323",
         "\ufb01", "\u1100\u1161", "\U00011935\U00011930", "a\u0899\u0334", "a\u0301\u1df6\u0327", "a\u0301\U0001e4ec\u0334"]
WORDS = ("the and of to in that he for it with his is not be I they as shall was which you have from him had are my "
         "light earth water heavens beginning created darkness people children therefore house king said unto Lord "
         "return if else while const int void std vector size_t import def class self print lambda None True").split()
CODE = ["for (int i = 0; i < n; ++i) {\n    sum += x[i];\n}\n", "def f(x):\n\treturn x**2  # square\n",
        "<p class=\"a\">&amp;</p>", "{\"key\": [1, 2.5e-3, null]}", "https://example.org/a?b=c&d=%20e", "a_b->c::d", "//====\n"]
NOT_ASCII = "\u00e9!\u212b"
SPECIAL = ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>", "<|im_start|>user", "<tool_call>", "<mask>",
           "<|end", NOT_ASCII, "<mask>\n ", " <mask> <mask>"]


def character(rng):
    first, last = rng.choice(SCRIPTS)
    c = rng.randint(first, last)
    return chr(c) if not 0xD800 <= c < 0xE000 else " "


def piece(rng):
    kind = rng.randrange(16)
    if kind < 5:
        word = rng.choice(WORDS)
        return rng.choice([word, word.capitalize(), word.upper()]) + rng.choice([" ", " ", " ", ", ", ".", "\n"])
    if kind < 8:
        first, last = rng.choice(SCRIPTS)
        points = [rng.randint(first, last) for _ in range(rng.randint(1, 12))]
        return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000) + rng.choice(["", " "])
    if kind == 8:
        return "".join(character(rng) for _ in range(rng.randint(1, 6)))
    if kind == 9:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 4)))
    table = [NUMBERS, CONTRACTIONS, EMOJI, MARKS, CODE, SPECIAL][kind - 10]
    return rng.choice(table) + rng.choice(["", "", " "])


def text(rng):
    return "".join(piece(rng) for _ in range(rng.randint(1, rng.choice([2, 6, 20]))))


def cased_text(rng):
    return "".join(rng.choice([*CASES, *MARKS, " ", "'s", "\u0301", "A", "b", "!"]) for _ in range(rng.randint(1, 8)))


def sequence(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), behavior, invert),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def space_merges(data):
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]


def as_gpt2(data):  # the file of GPT-2 is older than some keys
    space_merges(data)
    for key in ("type", "byte_fallback", "ignore_merges"):
        del data["model"][key]
    data["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    del data["pre_tokenizer"]["use_regex"]


def as_llama3(data):  # words that merges do not reach
    data["model"]["ignore_merges"] = True
    del data["model"]["merges"][3::7]


def without_impossible_bytes(data):  # as GPT-NeoX: bytes that UTF-8 never has are no tokens
    absent = {bytes_to_character(b) for b in [0xC0, 0xC1, *range(0xF5, 0x100)]}
    data["model"]["vocab"] = {t: i for t, i in data["model"]["vocab"].items() if t not in absent}
    kept = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    data["model"]["vocab"] = {t: i for i, t in enumerate(kept)}
    for token in data["added_tokens"]:
        token["id"] = len(kept)


def bytes_to_character(byte):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in printable else 256 + sorted(set(range(256)) - set(printable)).index(byte))


def variants():
    """Name: (normalizer, pre-tokenizer, added tokens, change of the file)."""
    level = pre_tokenizers.ByteLevel
    end = AddedToken("<|endoftext|>", special=True, normalized=True)
    spaces = [AddedToken(" " * n, normalized=True, special=False) for n in range(8, 1, -1)]
    return {
        "gpt2": (None, level(add_prefix_space=False), [end], as_gpt2),
        "space": (None, level(add_prefix_space=True),
                  [AddedToken("<s>", special=True), AddedToken("</s>", special=True), AddedToken("<pad>", special=True),
                   AddedToken("<mask>", special=True, lstrip=True, rstrip=True)], None),
        "llama3": (None, sequence(LLAMA3),
                   [AddedToken(f"<|{name}|>", special=True) for name in
                    ("begin_of_text", "end_of_text", "finetune_right_pad_id", "end")] + [AddedToken("<|end", rstrip=True)],
                   as_llama3),
        "qwen2": (normalizers.NFC(), sequence(QWEN2),
                  [AddedToken("<|endoftext|>", special=True), AddedToken("<|im_start|>", special=True),
                   AddedToken("<|im_end|>", special=True), AddedToken("<tool_call>", special=False, normalized=False),
                   AddedToken(NOT_ASCII, special=False, normalized=True)], None),
        "neox": (normalizers.NFC(), level(add_prefix_space=False),
                 [AddedToken("<|endoftext|>", special=True), AddedToken("<mask>", special=True, lstrip=True)] + spaces, None),
        "cl100k": (None, sequence(CL100K, "removed", True), [AddedToken("<|endoftext|>", special=True)], space_merges),
        "digits": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)]),
                   [AddedToken("<|endoftext|>", special=True)], without_impossible_bytes),
        "qwen35": (normalizers.NFC(), sequence(QWEN35), [AddedToken("<|endoftext|>", special=True)], None),
        "o200k": (None, sequence(O200K), [AddedToken("<|endoftext|>", special=True)], None),
        "tekken": (None, sequence(TEKKEN, "removed", True), [AddedToken("<s>", special=True), AddedToken("</s>", special=True)],
                   None),
        "words": (None, level(add_prefix_space=False, use_regex=False), [AddedToken("<|endoftext|>", special=True)], None),
    }


def build(name, corpus, vocab_size):
    normalizer, pre_tokenizer, added, change = variants()[name]
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    first = [added[0]] if name in ("gpt2", "space") else []  # inside the vocabulary; others behind it
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    data = json.loads(tokenizer.to_str())
    if change is not None:
        change(data)
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return written, Tokenizer.from_str(written)


def ids(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def golden(folder):
    corpus = [text(random.Random(i)) for i in range(3000)]
    texts = [""] + [text(random.Random(10**6 + i)) for i in range(60)] + [cased_text(random.Random(i)) for i in range(20)]
    cases = {"texts": texts, "tokenizers": {}}
    for name in variants():
        written, tokenizer = build(name, corpus, 700)
        (folder / f"{name}.json").write_text(written + "\n")
        found = ids(tokenizer, texts)
        # The library takes the characters of added tokens for bytes: beyond ASCII it does not give their text back.
        cases["tokenizers"][name] = {"ids": found, "decoded": [
            None if name == "qwen2" and NOT_ASCII in t else tokenizer.decode(i) for t, i in zip(texts, found)]}
    (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")


def compare(driver, files):
    own = [Path(f).read_text(errors="replace") for f in files]
    corpus = [line for t in own for line in t.splitlines(True)][:60000] + [text(random.Random(i)) for i in range(20000)]
    rng = random.Random(5)
    texts = [text(rng) for _ in range(8000)] + [cased_text(rng) for _ in range(2000)] + ["".join(character(rng) for _ in range(rng.randint(1, 40)))
                                                for _ in range(1500)]
    texts += [t[at:at + 2000] for t in own for at in (rng.randrange(max(1, len(t) - 2000)) for _ in range(50))]
    texts += ["'" + "".join(chr(c) + "'" for c in range(first, first + 256) if not 0xD800 <= c < 0xE000)
              for first in range(0, 0x32400, 256)]
    texts += ["a" + "".join("\u0301" + chr(c) + "\u0334 a" for c in range(first, first + 256) if not 0xD800 <= c < 0xE000)
              for first in range(0, 0x32400, 256)]
    texts = [t for t in texts if t]
    for name in variants():
        for vocab_size in (1000, 4000):
            written, tokenizer = build(name, corpus, vocab_size)
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                file.write(written)
                file.flush()
                stream = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
                out = subprocess.run([driver, file.name], input=stream, stdout=subprocess.PIPE, check=True).stdout
            lines = [[int(i) for i in line.split()] for line in out.decode().split("\n")[:-1]]
            expected = ids(tokenizer, texts)
            bad = [i for i in range(len(texts)) if i >= len(lines) or lines[i] != expected[i]]
            print(f"{name} {vocab_size}: {len(texts)} texts, {sum(map(len, expected))} ids, {len(bad)} texts differ")
            for i in bad[:3]:
                j = next(j for j in range(len(expected[i]) + 1) if expected[i][:j + 1] != lines[i][:j + 1])
                print("  ", repr(texts[i])[:300], "at", j, "expected",
                      [tokenizer.id_to_token(x) for x in expected[i][max(0, j - 2):j + 4]],
                      "found", [tokenizer.id_to_token(x) for x in lines[i][max(0, j - 2):j + 4]])


def print_ranges(name, points):
    ranges = []
    for c in sorted(points):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print(name, ", ".join("{0x%X, 0x%X}" % tuple(r) for r in ranges))


def print_steps(name, points):
    """Ranges {first, last, step}: neighbours, or every second one."""
    points, at, out = sorted(points), 0, []
    while at < len(points):
        best = at
        for step in (1, 2):
            end = at
            while end + 1 < len(points) and points[end + 1] - points[end] == step:
                end += 1
            if end > best:
                best, kept = end, step
        out.append((points[at], points[best], kept if best > at else 1))
        at = best + 1
    print(name, ", ".join("{0x%X, 0x%X, %d}" % r for r in out))


POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


def points_of(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return [c for c in POINTS if not split.pre_tokenize_str(chr(c))]


def classes():
    for name, pattern in (("letters", r"\p{L}"), ("numbers", r"\p{N}"), ("spaces", r"\s")):
        print_ranges(name, points_of(pattern))


def letters():
    for name, pattern in (("upper", r"[\p{Lu}\p{Lt}]"), ("lower", r"\p{Ll}"), ("marks", r"\p{M}")):
        print_steps(name, points_of(pattern))


def late_marks():
    library, libc = ctypes.CDLL("libutf8proc.so.2"), ctypes.CDLL(None)
    library.utf8proc_NFC.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]

    def compose(t):
        pointer = library.utf8proc_NFC(t.encode())
        composed = ctypes.string_at(pointer).decode()
        libc.free(pointer)
        return composed

    nfc = normalizers.NFC().normalize_str
    forms = ("{}", "a{}\u0334", "a\u0334{}", "a\u0301{}", "a{}\u0301", "a\u0327{}", "a{}\u0327", "\U00011935{}")
    print_ranges("late marks", [c for c in POINTS if any(
        compose(f.format(chr(c))) != nfc(f.format(chr(c))) for f in forms)])


if __name__ == "__main__":
    verb, arguments = sys.argv[1], sys.argv[2:]
    {"golden": lambda: golden(Path(arguments[0])), "compare": lambda: compare(arguments[0], arguments[1:]),
     "classes": classes, "letters": letters, "late-marks": late_marks}[verb]()
