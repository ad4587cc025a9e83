#!/usr/bin/env python3
"""Tokens per second of `hebb serve` beside transformers' generate, for a model that both run. By hand, not part of the suite.

python tests/serve/throughput.py build/hebb WORK_FOLDER [ROUNDS] [THREADS]

Needs torch and transformers. Makes a model of the class llama in WORK_FOLDER and exports it. In each round both tools continue 1, 4 and 16
prompts of 128 tokens by 128 tokens, greedily, in fp32 with THREADS threads (2), one after the other; the best of ROUNDS (3) counts.
`hebb serve` gets a request for each prompt at the same time; transformers gets one batch. Tokens per second of processor time mean something
on a busy machine too, with one thread: more of them wait for each other there.
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

PROMPT, NEW = 128, 128
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
    rounds, threads = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((3, 3), (4, 2)))
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
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "exported", dtype=torch.float32).eval()
    print("torch", torch.__version__, "transformers", transformers.__version__, "parameters", sum(p.numel() for p in model.parameters()))
    server = subprocess.Popen([hebb, "serve", "run", "--port", "0", "--device", "cpu", "--threads", str(threads), "--quiet"], cwd=folder,
                              stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    print(line.strip())
    url = re.search(r"http://\S+/v1", line).group() + "/completions"
    draw = random.Random(1)
    prompts = [[draw.randrange(32, 127) for _ in range(PROMPT)] for _ in range(16)]

    def processor_time(process):
        ticks = open(f"/proc/{process}/stat").read().rpartition(")")[2].split()
        return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")

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
            for name, generate, process in (("hebb serve", of_serve, server.pid), ("transformers", of_transformers, os.getpid())):
                start, used = time.perf_counter(), processor_time(process)
                tokens = generate(count)
                rates = tokens / (time.perf_counter() - start), tokens / (processor_time(process) - used)
                print(f"round {i}, {count:2} streams, {name}: {rates[0]:.1f} tokens/s, {rates[1]:.1f} a second of processor time; "
                      f"load {os.getloadavg()[0]:.1f}", flush=True)
                if i > 0:
                    best[name, count] = tuple(map(max, best.get((name, count), (0, 0)), rates))
    for (name, count), rates in sorted(best.items()):
        print(f"best: {name}, {count} streams: {rates[0]:.1f} tokens/s, {rates[1]:.1f} a second of processor time")
    server.send_signal(2)
    server.wait()


if __name__ == "__main__":
    main()
