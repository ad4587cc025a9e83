#!/usr/bin/env python3
"""Tokens per second of `hebb serve` beside llama.cpp's server and transformers' generate, reading and writing apart.

  tools/peers/serve.py hebb=build/hebb:RUN llama=llama-server:MODEL.gguf transformers=FOLDER [--streams 1 8] [--rounds 5] [--threads 2]
                       [--prompt 128] [--new 128] [--before "taskset -c 0,1 chrt -f 50"] [--llama-options "-ctk f32 -ctv f32"]

One model: RUN, the folder that `hebb convert RUN FOLDER` makes of it, and the GGUF files that llama.cpp's convert_hf_to_gguf.py makes of the
folder, one or several. Any of the three may be left out. In each round every tool continues the same random prompts of so many tokens
greedily, as many at the same time as there are streams, once by one token and once by so many more: the first time is that of reading, and
the difference that of writing. transformers gets one batch, the servers get a request each. Medians over the rounds, lowest and highest.
The texts that differ from the first tool's are counted: number formats round differently.

`--before` stands in front of the servers. To keep other work of the machine away from all tools, start this script with it, too.
"""
import argparse
import atexit
import concurrent.futures
import json
import os
import random
import re
import shlex
import socket
import statistics
import subprocess
import time
import urllib.request


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


class Server:
    """A process that answers requests; `says` lines of its log."""

    def __init__(self, args, command, ready, log):
        self.log = log
        with open(log, "w") as file:
            self.process = subprocess.Popen(shlex.split(args.before) + command, stdout=file, stderr=subprocess.STDOUT)
        atexit.register(self.close)
        for _ in range(600):
            self.ready = re.search(ready, self.text())
            if self.ready:
                break
            if self.process.poll() is not None:
                raise SystemExit(self.text())
            time.sleep(0.1)
        else:
            raise SystemExit(f"{command[0]} does not answer: {self.text()[-2000:]}")
        self.pool = concurrent.futures.ThreadPoolExecutor(64)

    def text(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def generate(self, prompts, new):
        return list(self.pool.map(lambda prompt: self.ask(prompt, new), prompts))

    def close(self):
        self.process.terminate()
        self.process.wait()


class Hebb(Server):
    def __init__(self, args, program, run):
        command = [program, "serve", run, "--port", "0", "--device", "cpu", "--threads", str(args.threads), "--quiet"]
        super().__init__(args, command, r"serving .*? at (http://\S+/v1).*(weights .*a token)", f"{args.logs}/hebb.log")
        self.name, self.url, self.state = "hebb serve", self.ready.group(1) + "/completions", self.ready.group(2)

    def ask(self, prompt, new):
        answer = post(self.url, {"prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True})
        assert answer["usage"]["completion_tokens"] == new, answer["usage"]
        return answer["choices"][0]["text"]


class Llama(Server):
    def __init__(self, args, program, model):
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        slots = max(args.streams)
        command = [program, "-m", model, "-lv", "4", "--port", str(port), "-t", str(args.threads), "-np", str(slots), "-c",
                   str(slots * (args.prompt + args.new + 64)), "--no-kv-unified", *shlex.split(args.llama_options)]
        super().__init__(args, command, "listening on http", f"{args.logs}/{os.path.basename(model)}.log")
        self.name, self.url = f"llama.cpp, {os.path.basename(model)}", f"http://127.0.0.1:{port}/completion"
        self.state = "; ".join(re.findall(r"size = +\S+ MiB \(.*cells.*", self.text()))

    def ask(self, prompt, new):
        answer = post(self.url, {"prompt": prompt, "n_predict": new, "temperature": 0, "ignore_eos": True, "cache_prompt": False})
        assert answer["tokens_predicted"] == new and answer["tokens_evaluated"] == len(prompt), answer
        return answer["content"]


class Transformers:
    def __init__(self, args, folder):
        import torch
        import transformers
        torch.set_num_threads(args.threads)
        self.torch = torch
        self.name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.state = ""

    def generate(self, prompts, new):
        with self.torch.inference_mode():
            ids = self.torch.tensor(prompts)
            out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
                                      pad_token_id=0)
        assert out.shape[1] == ids.shape[1] + new
        return self.tokenizer.batch_decode(out[:, ids.shape[1]:].tolist())


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="+")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    for name, default in (("rounds", 5), ("threads", 2), ("prompt", 128), ("new", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("before", ""), ("llama-options", ""), ("logs", ".")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--vocab", type=int, default=8192)
    return parser.parse_args()


def main():
    args = parsed()
    kinds = {"hebb": Hebb, "llama": Llama, "transformers": Transformers}
    tools = []
    for word in args.tools:
        kind, _, rest = word.partition("=")
        tools.append(kinds[kind](args, *rest.split(":")))
        print(f"{tools[-1].name}: {tools[-1].state}", flush=True)
    rates, different = {}, {}
    draw = random.Random(1)
    for i in range(args.rounds + 1):  # the first warms up
        for streams in args.streams:
            prompts = [[draw.randrange(300, args.vocab) for _ in range(args.prompt)] for _ in range(streams)]
            first = None
            for tool in tools:
                start = time.perf_counter()
                tool.generate(prompts, 1)
                read = time.perf_counter() - start
                start = time.perf_counter()
                texts = [text.strip() for text in tool.generate(prompts, args.new + 1)]
                written = time.perf_counter() - start - read
                first = first or texts
                different[tool.name] = different.get(tool.name, 0) + sum(a != b for a, b in zip(first, texts))
                if i > 0:
                    key = streams, tool.name
                    rates.setdefault(key, []).append((streams * args.prompt / read, streams * args.new / written))
    texts = sum(args.streams) * (args.rounds + 1)
    print("| streams | tool | reading, tokens/s | writing, tokens/s |\n|---:|---|---:|---:|")
    for (streams, name), values in sorted(rates.items(), key=lambda item: item[0][0]):
        cells = [f"{statistics.median(v):.0f} ({min(v):.0f} to {max(v):.0f})" for v in zip(*values)]
        print(f"| {streams} | {name} | " + " | ".join(cells) + " |")
    for tool in tools[1:]:
        print(f"{tool.name}: {different[tool.name]} of {texts} texts differ from those of {tools[0].name}")


if __name__ == "__main__":
    main()
