#!/usr/bin/env python3
"""Runs real clients against `hebb serve`: openai (Python) and lm-evaluation-harness. By hand, not part of the suite.

python tests/serve/clients.py build/hebb WORK_FOLDER [openai] [lm_eval] [lm_eval_hf]

Needs the packages openai, lm-eval[api,hf], datasets and torch. Makes a small model in WORK_FOLDER, serves it, and prints
a line for each property. lm_eval's scores are compared with those of `hebb eval` on the same items: through the server, and with
lm_eval_hf through the PyTorch file and through the export of another model, which the class Qwen3_5ForCausalLM holds.
"""
import asyncio
import contextlib
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

PAGE_LENGTH = 512  # tokens of a window of rolling likelihoods
MODEL = {
    "name": "small",
    "model": {
        "vocab_size": 259, "hidden_size": 64, "num_layers": 3,
        "layers": {
            "g": {"type": "gdn", "num_heads": 2, "key_head_dim": 16, "value_head_dim": 32},
            "a": {"type": "attention", "num_heads": 2, "head_dim": 32, "rope": {"theta": 10000.0}, "window": 64},
            "f": {"type": "attention", "num_heads": 2, "head_dim": 32, "rope": {"theta": 10000.0}},
            "m": {"type": "swiglu", "intermediate_size": 128}},
        "pattern": [{"mixer": "g", "ffn": "m"}, {"mixer": "a", "ffn": "m"}, {"mixer": "f", "ffn": "m"}]},
    "data": {"sources": [{"path": "set"}]},
    "optimizer": {"lr": 0.003},
    "train": {"batch_size": 8, "sequence_length": 513, "device": "cpu", "steps": 60}}
HELD = {**MODEL, "model": {**MODEL["model"], "num_layers": 2, "pattern": [{"mixer": "g", "ffn": "m"}, {"mixer": "f", "ffn": "m"}], "layers": {
    **{name: layer for name, layer in MODEL["model"]["layers"].items() if name != "a"},
    "f": {**MODEL["model"]["layers"]["f"], "qk_norm": "rms"}}}}


def check(good, what):
    print(("ok      " if good else "FAILED  ") + what, flush=True)
    check.failures += not good


check.failures = 0


class Server:
    """`hebb serve` on a port of its own."""

    def __init__(self, hebb, folder, *options, env=None):
        self.process = subprocess.Popen([hebb, "serve", "run", "--port", "0", "--device", "cpu", "--quiet", *options], cwd=folder,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        line = self.process.stdout.readline()
        print(line.strip(), flush=True)
        self.url = re.search(r"http://\S+/v1", line).group()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(2)
        check(self.process.wait(600) == 0, "Ctrl-C ends the server with code 0")

    def metric(self, name):
        request = urllib.request.Request(self.url[:-3] + "/metrics", headers={"Authorization": "Bearer secret"})
        text = urllib.request.urlopen(request).read().decode()
        return int(re.search(rf"^hebb_{name} (\d+)$", text, re.M).group(1))

    def wait_until_idle(self):
        while self.metric("streams_running") or self.metric("choices_waiting"):
            time.sleep(0.01)


def make_model(hebb, folder, model):
    folder.mkdir(parents=True, exist_ok=True)
    run = lambda *a: subprocess.run([hebb, *a], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (folder / "c.json").write_text(json.dumps(model))
    run("data", "synth", "--documents", "600", "-o", "docs.jsonl")
    run("data", "encode", "docs.jsonl", "-t", "bytes", "-o", "set", "--val-documents", "10")
    run("train", "c.json", "--run-dir", "run")


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    except Exception as error:  # of another kind
        print(f"        found {error!r}")
    return None


def try_openai(hebb, folder):
    import openai

    print("openai", openai.__version__)
    with Server(hebb, folder, "--max-concurrent", "40", env={"HEBB_API_KEY": "secret"}) as server:
        client = openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0)
        check([m.id for m in client.models.list()] == ["small"] and client.models.retrieve("small").owned_by == "hebb", "models")
        ask = lambda **more: client.completions.create(**{"model": "small", "prompt": "The ", "max_tokens": 40, **more})
        whole = ask(temperature=0)
        check(whole.choices[0].finish_reason in ("stop", "length") and whole.usage.prompt_tokens == 4, "a completion")
        events = list(ask(temperature=0, stream=True, stream_options={"include_usage": True}))
        check("".join(e.choices[0].text for e in events if e.choices) == whole.choices[0].text, "streamed, the same text")
        check(events[-1].usage == whole.usage and events[-2].choices[0].finish_reason == whole.choices[0].finish_reason,
              "streamed, usage and finish_reason")
        scored = ask(prompt="The cat sat", max_tokens=0, echo=True, logprobs=3).choices[0].logprobs
        check(len(scored.tokens) == 11 and scored.token_logprobs[0] is None and all(x < 0 for x in scored.token_logprobs[1:]) and
              all(3 <= len(t) <= 4 for t in scored.top_logprobs[1:]), "log-probabilities of a prompt")
        drawn = ask(temperature=0, logprobs=2)
        check(all(max(t.values()) == p for t, p in zip(drawn.choices[0].logprobs.top_logprobs, drawn.choices[0].logprobs.token_logprobs)),
              "log-probabilities of greedy tokens are the largest")
        streamed = [e.choices[0].logprobs for e in ask(temperature=0, logprobs=2, stream=True)]
        check(sum((s.token_logprobs for s in streamed), []) == drawn.choices[0].logprobs.token_logprobs, "streamed log-probabilities")
        several = ask(n=3, seed=5, temperature=1.0)
        again = ask(n=3, seed=5, temperature=1.0)
        check([c.index for c in several.choices] == [0, 1, 2] and len({c.text for c in several.choices}) == 3, "n")
        check([c.text for c in several.choices] == [c.text for c in again.choices], "seed")
        check(ask(n=1, seed=5, temperature=1.0).choices[0].text == several.choices[0].text, "n = 1 is the first of n = 3")
        cut = ask(temperature=0, stop=[" "], prompt="The c")
        check(" " not in cut.choices[0].text and cut.choices[0].finish_reason == "stop", "stop")
        check([c.text for c in ask(prompt=["The ", "A "], temperature=0).choices][0] == whole.choices[0].text, "several prompts")
        check(ask(prompt=list(b"The "), temperature=0).choices[0].text == whole.choices[0].text, "ids")

        for what, kind, call in [
            ("max_tokens -1", openai.BadRequestError, lambda: ask(max_tokens=-1)),
            ("logprobs 50", openai.BadRequestError, lambda: ask(logprobs=50)),
            ("logit_bias", openai.BadRequestError, lambda: ask(logit_bias={"50": 3})),
            ("another key", openai.AuthenticationError, lambda: client.with_options(api_key="x").models.list()),
            ("another model", openai.NotFoundError, lambda: client.models.retrieve("other")),
            ("chat", openai.BadRequestError, lambda: client.chat.completions.create(model="small", messages=[])),
            ("embeddings", openai.NotFoundError, lambda: client.embeddings.create(model="small", input="x")),
            ("a body of 33 MB", openai.APIStatusError, lambda: ask(prompt="x" * 33_600_000))]:
            error = raises(kind, call)
            check(error is not None and error.body["message"], f"{what}: {kind.__name__}: {error and error.body['message']}")
        check(raises(openai.BadRequestError, lambda: ask(max_tokens=-1)).param == "max_tokens", "the error names the key")

        endless = dict(max_tokens=1_000_000, extra_body={"ignore_eos": True})
        for event in ask(stream=True, **endless):
            break
        event_stream = ask(stream=True, **endless)
        next(iter(event_stream))
        event_stream.close()
        server.wait_until_idle()
        check(True, "a client that leaves its stream ends the generation")
        check(raises(openai.APITimeoutError, lambda: client.with_options(timeout=0.3).completions.create(
            model="small", prompt="a", **endless)) is not None, "a client that gives up: APITimeoutError")
        server.wait_until_idle()
        check(True, "and its generation ends")

        async def many():
            many_client = openai.AsyncOpenAI(base_url=server.url, api_key="secret", max_retries=0)

            async def one(i, stream):
                request = dict(model="small", prompt=f"{i} The ", max_tokens=30 + 3 * i, seed=i, temperature=0 if i % 2 else 1.0)
                if not stream:
                    return (await many_client.completions.create(**request)).choices[0].text
                return "".join([e.choices[0].text async for e in await many_client.completions.create(stream=True, **request)])

            together = await asyncio.gather(*[one(i, i % 3 > 0) for i in range(24)])
            alone = [await one(i, False) for i in range(24)]
            check(together == alone, "24 requests at a time give the texts of one at a time")

            streams = [await many_client.completions.create(model="small", prompt="a", stream=True, **endless) for _ in range(40)]
            error = None
            try:
                await many_client.completions.create(model="small", prompt="a")
            except openai.InternalServerError as found:
                error = found
            check(error is not None and error.status_code == 503 and error.response.headers["Retry-After"] == "1",
                  "a full server: InternalServerError 503 with Retry-After")
            for stream in streams:
                await stream.close()
            await many_client.close()

        asyncio.run(many())
        server.wait_until_idle()
        with contextlib.closing(ask(stream=True, **endless)) as left:
            next(iter(left))
            server.process.send_signal(2)
            error = raises(openai.APIError, lambda: list(left))
            check(error is not None and "stops" in error.message,
                  f"Ctrl-C ends a stream with an error event: {error}")


def write_tasks(folder):
    """Local data sets of the shapes of the public ones, and lm_eval's own tasks on them."""
    import lm_eval.tasks

    tasks = pathlib.Path(lm_eval.tasks.__file__).parent
    texts = [json.loads(line)["text"] for line in open(folder / "docs.jsonl")]
    sentences = [s.strip() + "." for text in texts[:80] for s in text.split(".") if len(s.split()) > 4]
    half = [(" ".join(s.split()[:3]), " ".join(s.split()[3:])) for s in sentences]
    rows = {
        "hellaswag": [{"activity_label": "Words", "ctx_a": half[i][0].capitalize() + ".", "ctx_b": half[i + 1][0], "label": str(i % 4),
                       "endings": [half[(7 * i + 3 * k) % len(half)][1] for k in range(4)]} for i in range(0, 40)],
        "lambada_openai": [{"text": " ".join(sentences[3 * i:3 * i + 3]).rstrip(".")} for i in range(40)],
        "wikitext": [{"page": f" = Page {i} = \n\n " + texts[i] + " \n It 's 3 @,@ 000 words .\n"} for i in range(12)],
        "gsm8k": [{"question": f"What is {i} and {i + 1} ?", "answer": f"It is so.\n#### {2 * i + 1}"} for i in range(20)]}
    for name, items in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        source = next(tasks.glob(f"*/{name}.yaml"))
        split = {"hellaswag": "validation", "lambada_openai": "test", "wikitext": "test", "gsm8k": "test"}[name]
        own = {"hellaswag": "training_split: null\n", "wikitext": "training_split: null\nvalidation_split: null\n",
               "gsm8k": "training_split: null\nfewshot_split: null\nnum_fewshot: 0\n"}.get(name, "")
        (folder / "tasks").mkdir(exist_ok=True)
        (folder / "tasks" / f"own_{name}.yaml").write_text(
            f"include: {source}\ntask: own_{name}\ndataset_path: json\ndataset_name: null\n{own}"
            f"dataset_kwargs:\n  data_files:\n    {split}: {folder / (name + '.jsonl')}\n")
    return list(rows)


def eval_scores(hebb, folder, names, precision):
    """What `hebb eval` says of each item."""
    kinds = {"hellaswag": {"kind": "choice"}, "lambada_openai": {"kind": "cloze"}, "wikitext": {"kind": "rolling"},
             "gsm8k": {"kind": "generate", "max_new_tokens": 256, "until": ["Question:", "</s>", "<|im_end|>"]}}
    evaluations = []
    for name in names:
        records = pathlib.Path(__file__).resolve().parents[2] / "tools" / "records.py"
        subprocess.run([sys.executable, records, name.split("_")[0], f"{name}.jsonl", f"{name}-records.jsonl"], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        more = {} if name == "gsm8k" else {"max_length": PAGE_LENGTH}
        evaluations.append({"name": f"{name}-{precision}", "file": f"{name}-records.jsonl", **kinds[name], **more})
    (folder / "eval.json").write_text(json.dumps({"evaluations": evaluations}))
    subprocess.run([hebb, "eval", "eval.json", "--checkpoint", "run", "--log-samples", "--again", "--device", "cpu", "--precision", precision,
                    "--out", "evals"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {name: [json.loads(line) for line in open(folder / "evals" / f"{name}-{precision}.samples.jsonl")] for name in names}


WIDE = """
import runpy, sys, torch
sys.modules["fla"] = None
torch.float = torch.float32 = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)
runpy.run_module("lm_eval", run_name="__main__")
"""  # transformers computes norms and softmax in float32, and takes fla's kernels of GPUs where that is installed


def harness_scores(model, folder, names, arguments):
    """What lm_eval says of each item, as its command line runs."""
    out = folder / f"out-{time.time_ns()}"
    start = ["-c", WIDE] if model == "hf" else ["-m", "lm_eval"]
    command = [sys.executable, *start, "--model", model, "--tasks", ",".join("own_" + n for n in names),
               "--include_path", str(folder / "tasks"), "--model_args", arguments, "--log_samples", "--output_path", str(out), "--batch_size", "4"]
    if model == "hf":
        command += ["--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"})
    if done.returncode != 0:
        print(done.stderr[-3000:])
        return None
    found = {}
    for name in names:
        file = glob.glob(f"{out}/**/samples_own_{name}_*.jsonl", recursive=True)[0]
        by_id = {item["doc_id"]: item for item in map(json.loads, open(file))}  # gsm8k: an entry for each filter
        found[name] = [by_id[i] for i in sorted(by_id)]
    return found


def compare(name, own, theirs):
    """The largest difference of two log-likelihoods, or the number of texts that differ."""
    if name == "gsm8k":
        return sum(a["prediction"] != b["resps"][0][0] for a, b in zip(own, theirs, strict=True))
    worst = 0
    for a, b in zip(own, theirs, strict=True):
        values = [float(r[0][0]) if isinstance(r[0], list) else float(r[0]) for r in b["resps"]]
        mine = a["ll"] if isinstance(a["ll"], list) else [a["ll"]]
        worst = max([worst] + [abs(x - y) for x, y in zip(mine, values, strict=True)])
    return worst


def compare_all(what, names, own, theirs, bound):
    check(theirs is not None, f"lm_eval runs: {what}")
    for name in names if theirs else []:
        worst = compare(name, own[name], theirs[name])
        check(worst <= bound, f"    {name}: " + (f"{worst} of {len(own[name])} texts differ" if name == "gsm8k" else
              f"log-likelihoods of {len(own[name])} items differ by at most {worst:.1e}"))


def try_lm_eval(hebb, folder):
    import importlib.metadata

    print("lm_eval", importlib.metadata.version("lm_eval"))
    names = write_tasks(folder)
    for precision, bound in (("fp64", 1e-6), ("fp32", 1e-3)):
        own = eval_scores(hebb, folder, names, precision)
        with Server(hebb, folder, "--precision", precision) as server:
            for arguments in (f"max_length={PAGE_LENGTH + 2}", f"max_length={PAGE_LENGTH + 2},num_concurrent=4",
                              f"max_length={PAGE_LENGTH + 2},num_concurrent=4,tokenizer_backend=huggingface,tokenizer={folder}/exported"):
                if "huggingface" in arguments and not (folder / "exported").is_dir():
                    print(f"not run: {arguments}")
                    continue
                theirs = harness_scores("local-completions", folder, names, f"model=small,base_url={server.url}/completions,{arguments}")
                compare_all(f"{precision}, {arguments}", names, own, theirs, bound)
            theirs = harness_scores("local-completions", folder, ["gsm8k"],
                                    f"model=small,base_url={server.url}/completions,tokenizer_backend=none,tokenized_requests=False")
            check(theirs and compare("gsm8k", own["gsm8k"], theirs["gsm8k"]) == 0, f"{precision} gsm8k with texts as prompts")


def try_lm_eval_hf(hebb, folder):
    """Four ways to the same numbers in fp64: `hebb eval`, `hebb serve`, transformers' class, the PyTorch file."""
    from safetensors.torch import load_file, save_file

    for name, model in (("small", MODEL), ("held", HELD)):
        home = folder / name
        if not (home / "run").is_dir():
            make_model(hebb, home, model)
        names = write_tasks(home)
        own = eval_scores(hebb, home, names, "fp64")
        ways = {"pytorch": "trust_remote_code=True,"}
        if name == "held":
            ways["hf"] = ""
        for to, arguments in ways.items():
            if not (home / to).is_dir():
                subprocess.run([hebb, "convert", "run", to, "--to", to], cwd=home, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                file = str(home / to / "model.safetensors")  # where float32 means float64, no other files can be read
                save_file({key: value.double() for key, value in load_file(file).items()}, file, metadata={"format": "pt"})
            theirs = harness_scores("hf", home, names, f"pretrained={home / to},{arguments}dtype=float64,max_length={PAGE_LENGTH}")
            compare_all(f"{name}, --model hf of --to {to}", names, own, theirs, 1e-6)
        with Server(hebb, home, "--precision", "fp64") as server:
            theirs = harness_scores("local-completions", home, names, f"model=m,base_url={server.url}/completions,max_length={PAGE_LENGTH + 2}")
            compare_all(f"{name}, hebb serve", names, own, theirs, 1e-6)


def main():
    hebb, folder = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "run").is_dir():
        make_model(hebb, folder, MODEL)
    for name, run in (("openai", try_openai), ("lm_eval", try_lm_eval), ("lm_eval_hf", try_lm_eval_hf)):
        if len(sys.argv) == 3 or name in sys.argv[3:]:
            run(hebb, folder)
    print(f"{check.failures} failures")
    return check.failures > 0


if __name__ == "__main__":
    sys.exit(main())
