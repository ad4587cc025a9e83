#!/usr/bin/env python3
"""Tokens per second of `hebb serve` beside transformers' generate, for a model that both run. By hand, not part of the suite.

python tests/serve/throughput.py build/hebb WORK_FOLDER [ROUNDS]

Needs torch and transformers. Makes a model of the class llama in WORK_FOLDER and exports it. In each round both tools continue 1, 4 and 16
prompts of 128 tokens by 128 tokens, greedily, in fp32 with two threads, one after the other; the best round of each counts. `hebb serve`
gets a request for each prompt at the same time; transformers gets one batch. Its requests can be at any place of their texts, and join and
leave.
"""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import urllib.request

THREADS, PROMPT, NEW = 2, 128, 128
MODEL = {
    "name": "throughput",
    "model": {
        "vocab_size": 259, "hidden_size": 512, "num_layers": 8,
        "layers": {"a": {"type": "attention", "num_heads": 8, "head_dim": 64, "rope": {"theta": 10000.0}},
                   "m": {"type": "swiglu", "intermediate_size": 1408}},
        "pattern": [{"mixer": "a", "ffn": "m"}]},
    "data": {"sources": [{"path": "set"}]},
    "optimizer": {"lr": 0.001},
    "train": {"batch_size": 1, "sequence_length": 129, "device": "cpu", "steps": 2}}


def main():
    hebb, folder = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    folder.mkdir(parents=True, exist_ok=True)
    run = lambda *a: subprocess.run([hebb, *a], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not (folder / "exported").is_dir():
        (folder / "c.json").write_text(json.dumps(MODEL))
        run("data", "synth", "--documents", "50", "-o", "docs.jsonl")
        run("data", "encode", "docs.jsonl", "-t", "bytes", "-o", "set", "--val-documents", "5")
        run("train", "c.json", "--run-dir", "run")
        run("convert", "run", "exported")
    import torch
    import transformers
    torch.set_num_threads(THREADS)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "exported", dtype=torch.float32).eval()
    print("torch", torch.__version__, "transformers", transformers.__version__, "parameters", sum(p.numel() for p in model.parameters()))
    server = subprocess.Popen([hebb, "serve", "run", "--port", "0", "--device", "cpu", "--threads", str(THREADS), "--quiet"], cwd=folder,
                              stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    print(line.strip())
    url = re.search(r"http://\S+/v1", line).group() + "/completions"
    draw = random.Random(1)
    prompts = [[draw.randrange(32, 127) for _ in range(PROMPT)] for _ in range(16)]

    def ask(prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": NEW, "temperature": 0, "ignore_eos": True}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))["usage"]["completion_tokens"]

    def of_serve(count):
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return sum(pool.map(ask, prompts[:count]))

    @torch.inference_mode()
    def of_transformers(count):
        ids = torch.tensor(prompts[:count])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        return count * (out.shape[1] - PROMPT)

    best = {}
    for i in range(rounds + 1):  # the first warms up
        for count in (1, 4, 16):
            for name, generate in (("hebb serve", of_serve), ("transformers", of_transformers)):
                start = time.perf_counter()
                tokens = generate(count)
                rate = tokens / (time.perf_counter() - start)
                if i > 0:
                    print(f"round {i}, {count:2} streams, {name}: {rate:.1f} tokens/s; load {os.getloadavg()[0]:.1f}", flush=True)
                    best[name, count] = max(best.get((name, count), 0), rate)
    for (name, count), rate in sorted(best.items()):
        print(f"best: {name}, {count} streams: {rate:.1f} tokens/s")
    server.send_signal(2)
    server.wait()


if __name__ == "__main__":
    main()
