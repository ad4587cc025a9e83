"""Checks `hebb convert --to pytorch` with transformers: python3 pytorch_export.py [--hebb BUILD/hebb] [--count N] [--first SEED] [CASE...]

CASE: a folder of a golden case. Then N random models (random_cases.py) over the options of every layer. Each becomes a checkpoint, is exported, and loaded
by AutoModelForCausalLM.from_pretrained(..., trust_remote_code=True) in float64. Compared with `hebb trace`, to 1e-9 (gradients, fast weights: 1e-8):

    rows        logits, loss, gradients, fast weights after the rows, decisions, in the case's mode
    blocks      hidden states after each block: logits of the model cut there, through final_norm and lm_head
    state       logits of a text read in pieces with a state, of a copy of a state after a prefix, and with padding on the left

and with `hebb generate --temperature 0`, for models with a vocabulary of bytes:

    decoding    the tokens of `generate`, with use_cache and, where no memory learns from the text, without
"""
import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import warnings

import torch

import compare
import model as reference
import random_cases
import safetensors_file

BYTES = 259
FAST = {"fwpkm", "fwmlp"}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def types(model):
    return {layer["type"] for block in reference.blocks(model) for layer in block.values()}


def write_checkpoint(folder, model, weights):
    os.makedirs(folder)
    with open(folder + "/config.json", "w") as f:
        json.dump(model, f)
    safetensors_file.write(folder + "/model.safetensors", weights)


def exported(hebb, folder, model, weights):
    """The model of a checkpoint, through hebb convert and transformers."""
    from transformers import AutoModelForCausalLM

    write_checkpoint(folder + "/checkpoint", model, weights)
    run(hebb, "convert", folder + "/checkpoint", folder + "/pytorch", "--to", "pytorch")
    return AutoModelForCausalLM.from_pretrained(folder + "/pytorch", trust_remote_code=True, dtype=torch.float64)


def trace(hebb, folder, model, weights, rows, case):
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/model.json", "w") as f:
        json.dump(model, f)
    safetensors_file.write(folder + "/weights.safetensors", weights)
    safetensors_file.write(folder + "/rows.safetensors", rows)
    return compare.run_hebb(hebb, folder, case)


def check_rows(module, hebb, folder, case, weights, rows):
    found = trace(hebb, folder + "/trace", case["model"], weights, rows, case)
    module.train(case.get("mode", "train") == "train")
    module.zero_grad()
    out = module(input_ids=rows["inputs"], targets=rows.get("targets"), doc_ids=rows.get("doc_ids"), seed=case.get("seed", 0), step=case.get("step", 0))
    expected = {"logits": out.logits.detach(), **out.inside}
    if "targets" in rows:
        out.loss.backward()
        expected["loss"] = out.loss.detach().reshape(1)
        expected.update({"grad." + name: p.grad for name, p in module.named_parameters() if p.grad is not None})
    if module.training:
        expected.update({"after." + name: t.detach() for name, t in out.after.items()})
    return [f"rows: {wrong}" for wrong in random_cases.wrong_tensors(found, expected)]


def check_blocks(module, hebb, folder, case, weights, rows):
    """hidden_states[i + 1] of the whole model and the logits of the model cut after block i."""
    model, bad = case["model"], []
    module.eval()
    with torch.no_grad():
        hidden = module(input_ids=rows["inputs"], doc_ids=rows.get("doc_ids"), output_hidden_states=True).hidden_states
    for i in range(1, model["num_layers"] + 1):
        at = {block: change for block, change in model.get("at", {}).items() if int(block) < i}
        cut = {**model, "num_layers": i, "at": at}
        names = {**reference.named_shapes(cut), **reference.named_shapes(cut, "fast")}
        found = trace(hebb, folder + "/cut", cut, {n: weights[n] for n in names}, rows, {**case, "mode": "eval"})["logits"]
        with torch.no_grad():
            h = hidden[i] if i == model["num_layers"] else module.final_norm(hidden[i])
            logits = h @ (module.embed.weight if model.get("tie_embeddings") else module.lm_head.weight).T
        bad += [f"block {i - 1}: {wrong}" for wrong in random_cases.wrong_tensors({"logits": found}, {"logits": logits})]
    return bad


def check_state(module, hebb, folder, case, weights, rows, rng):
    """A text in pieces. Memories that learn from the text are compared with themselves in one piece: hebb trace reads no streams."""
    module.eval()
    inputs, ids, T = rows["inputs"], rows.get("doc_ids"), rows["inputs"].shape[1]
    cuts = sorted({0, T, *(rng.randrange(T + 1) for _ in range(4))})
    cuts = sorted({*cuts, *(c + 1 for c in cuts[:-1])})  # single tokens too

    def read(cuts, copy_at=None):
        state, out = None, []
        for a, b in zip(cuts, cuts[1:]):
            with torch.no_grad():
                step = module(input_ids=inputs[:, a:b], doc_ids=None if ids is None else ids[:, a:b], state=state, use_cache=True)
                if copy_at == a and state is not None:  # a state that was kept gives the same again
                    step = module(input_ids=inputs[:, a:b], doc_ids=None if ids is None else ids[:, a:b], state=kept, use_cache=True)
            state = step.state
            kept = state.copy()
            out.append(step.logits)
        return torch.cat(out, 1)

    decode_steps = any(layer["type"] == "mesanet" and "cg_steps_decode" in layer for layer in case["model"]["layers"].values())
    if decode_steps:  # single tokens of a state take other steps
        cuts = [0, T // 2, T] if T > 3 else [0, T]
    if types(case["model"]) & FAST:
        expected = read([0, T])
    else:
        expected = trace(hebb, folder + "/state", case["model"], weights, rows, {**case, "mode": "eval"})["logits"]
    bad = [f"state, cuts {cuts}: {wrong}" for wrong in random_cases.wrong_tensors({"logits": expected}, {"logits": read(cuts, cuts[len(cuts) // 2])})]
    if ids is None and not types(case["model"]) & FAST and T > 1:
        padded = torch.cat([inputs[:, :1].expand(-1, 3), inputs], 1)
        mask = torch.ones_like(padded)
        mask[:, :3] = 0
        with torch.no_grad():
            logits = module(input_ids=padded, attention_mask=mask).logits[:, 3:]
        bad += [f"padding: {wrong}" for wrong in random_cases.wrong_tensors({"logits": expected}, {"logits": logits})]
    return bad


def check_decoding(module, hebb, folder, case, length=24):
    module.eval()
    prompt = "abc, abc; abc."
    line = json.loads(run(hebb, "generate", folder + "/checkpoint", "--prompt", prompt, "--tokenizer", "bytes", "--temperature", "0", "--max-new-tokens",
                          str(length), "--ignore-eos", "--json", "--precision", "fp64", "--device", "cpu"))
    ids = torch.tensor([list(prompt.encode())])
    bad = []
    for use_cache in (True, False)[:1 if types(case["model"]) & FAST else 2]:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = module.generate(ids, max_new_tokens=length, do_sample=False, use_cache=use_cache, pad_token_id=0)
        found = out[0, ids.shape[1]:].tolist()
        if found != line["tokens"]:
            bad.append(f"decoding, use_cache {use_cache}: {found}, hebb {line['tokens']}")
    if not types(case["model"]) & FAST:  # in a batch with a longer prompt
        longer = torch.randint(BYTES - 3, (1, ids.shape[1] + 5))
        batch = torch.cat([longer, torch.nn.functional.pad(ids, (5, 0))])
        with torch.no_grad():
            out = module.generate(batch, attention_mask=torch.cat([torch.ones_like(longer), torch.nn.functional.pad(torch.ones_like(ids), (5, 0))]),
                                  max_new_tokens=length, do_sample=False, pad_token_id=0)
        if out[1, batch.shape[1]:].tolist() != line["tokens"]:
            bad.append(f"decoding, padded: {out[1, batch.shape[1]:].tolist()}, hebb {line['tokens']}")
    return bad


def check(name, hebb, case, weights, rows, rng):
    """["what differs"]."""
    with tempfile.TemporaryDirectory() as folder:
        module = exported(hebb, folder, case["model"], weights)
        bad = check_rows(module, hebb, folder, case, weights, rows) + check_blocks(module, hebb, folder, case, weights, rows)
        bad += check_state(module, hebb, folder, case, weights, rows, rng)
        if case["model"]["vocab_size"] == BYTES:
            bad += check_decoding(module, hebb, folder, case)
        return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(random_cases.TYPES))
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    wrong = undecided = 0
    with tempfile.TemporaryDirectory() as home:
        os.environ["HF_HOME"] = os.environ["HF_MODULES_CACHE"] = home  # of the loaded classes
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers.utils.logging import disable_progress_bar  # reads the variables

        disable_progress_bar()
        todo = []
        for path in options.cases:
            case = {"model": reference.load_model(path + "/model.json"), **compare.trace_options(path)}
            todo.append((os.path.basename(path.rstrip("/")), case, safetensors_file.read(path + "/weights.safetensors"),
                         safetensors_file.read(path + "/rows.safetensors")))
        for seed in range(options.first, options.first + options.count):
            case = random_cases.case(seed, options.only)
            if seed % 2:
                case["model"]["vocab_size"] = BYTES
            todo.append((f"random {seed}", case, *compare.draw(case, f"random {seed}")))
        for number, (name, case, weights, rows) in enumerate(todo):
            bad = check(name, options.hebb, case, weights, rows, random.Random(number))
            if bad and random_cases.rounding_decides(case, weights, rows, compare.run_reference(case["model"], weights, rows, case)):
                undecided += 1
                print(f"{name}: rounding decides: {bad[0]}", flush=True)
            elif bad:
                wrong += 1
                print(f"{name}: {', '.join(sorted(types(case['model'])))}: differs: {'; '.join(bad[:6])}", flush=True)
    print(f"{len(todo) - wrong - undecided} of {len(todo)} models agree, {undecided} are decided by rounding, {wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
