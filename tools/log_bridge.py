#!/usr/bin/env python3
"""Sends the metrics and evaluations of runs to Weights & Biases, MLflow or Trackio.

  tools/log_bridge.py RUN... --to wandb|mlflow|trackio [--project NAME] [--follow]

Needs that client's package. RUN/.log_bridge-CLIENT.json remembers what was sent, so a second start goes on there.
"""
import argparse
import glob
import importlib
import json
import math
import os
import sys
import time


def flat(value, name=""):
    """The numbers and texts of an object by dotted name."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{name}.{key}" if name else key).items()}
    return {name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)}


def fnv1a64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def metrics(line):
    """A line of metrics.jsonl by the names of the TensorBoard events."""
    if "val" in line:
        found = {f"eval/{line['val']}/{key}": line[key] for key in ("loss", "ppl") if key in line}
    else:
        names = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/lr", "tokens_per_s": "perf/tok_per_s",
                 "step_ms": "perf/step_ms", "mfu": "perf/mfu"}
        found = {name: line[key] for key, name in names.items() if key in line}
        if "mem_bytes" in line:
            found["mem/peak_gib"] = line["mem_bytes"] / 2**30
        for layer, statistics in line.get("layers", {}).items():
            found.update({f"memory/{layer}/{key}": value for key, value in flat(statistics).items()})
    numbers = {key: float(value) for key, value in found.items() if isinstance(value, (int, float, str))}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


def results(run, sent):
    """Good results of `hebb eval` that were not sent, by step: (step, fingerprint, numbers)."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(run), "evals", "*", "*.json")):
        with open(path) as file:
            result = json.load(file)
        if result.get("status") != "ok" or "metrics" not in result or result["fingerprint"] in sent:
            continue
        numbers = {}
        for key, metric in result["metrics"].items():
            numbers[f"evals/{result['name']}/{key}"] = metric["value"]
            if "stderr" in metric:
                numbers[f"evals/{result['name']}/{key}_stderr"] = metric["stderr"]
        numbers = {key: float(value) for key, value in numbers.items() if math.isfinite(float(value))}
        found.append((result["step"], result["fingerprint"], numbers))
    return sorted(found, key=lambda result: result[:2])


def is_alive(run):
    """Whether a process trains or evaluates there: it touches its lock every 15 seconds."""
    for path in [os.path.join(run, "lock"), *glob.glob(os.path.join(glob.escape(run), "evals", "*", "*.lock"))]:
        try:
            if time.time() - os.path.getmtime(path) < 60:
                return True
        except FileNotFoundError:
            pass
    return False


class Wandb:
    def __init__(self, client, project, name, run_id, config):
        self.run = client.init(project=project, name=name, id=run_id, config=config, resume="allow")
        self.log, self.close = self.run.log, self.run.finish
        # Its steps only go up, and evaluations may be of an earlier one.
        self.run.define_metric("evals/*", step_metric="evals/step")

    def log_results(self, values, step):
        self.run.log({**values, "evals/step": step}, commit=False)


class Trackio:
    def __init__(self, client, project, name, run_id, config):
        client.init(project=project, name=f"{name}-{run_id}", config=config, resume="allow")
        self.log, self.log_results, self.close = client.log, client.log, client.finish


class Mlflow:
    def __init__(self, client, project, name, run_id, config):
        client.set_experiment(project)
        known = client.search_runs(filter_string=f"tags.hebb_run = '{run_id}'", output_format="list")
        self.client = client
        self.run = client.start_run(run_id=known[0].info.run_id) if known else client.start_run(run_name=name)
        self.close = client.end_run
        if not known:
            client.set_tag("hebb_run", run_id)
            client.log_params({key: str(value)[:500] for key, value in config.items()})

    def log(self, values, step):
        self.client.log_metrics(values, step=step)

    log_results = log


def send(run, make, client, project):
    """Sends the lines and evaluations that are new; returns their numbers."""
    state_path = os.path.join(run, f".log_bridge-{make.__name__.lower()}.json")
    with open(os.path.join(run, "config.json")) as file:
        config = json.load(file)
    text = json.dumps(config, sort_keys=True)
    name = config.get("name") or os.path.basename(os.path.abspath(run))
    run_id = f"{fnv1a64((name + text).encode()):016x}"
    try:
        with open(state_path) as file:
            state = json.load(file)
    except FileNotFoundError:
        state = {}
    path = os.path.join(run, "metrics.jsonl")
    begin = state.get("bytes", 0)
    if os.path.getsize(path) < begin:  # a run that was resumed from an earlier step
        begin = 0
    with open(path, "rb") as file:
        file.seek(begin)
        data = file.read()
    data = data[:data.rfind(b"\n") + 1]  # a line may be unfinished
    evaluations = results(run, state.get("evals", []))
    if not data and not evaluations:
        return 0, 0
    target = make(client, project, name, run_id, flat(config))
    lines = data.splitlines()
    try:
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
            except ValueError as error:
                sys.exit(f"error: {path}: line {number} after byte {begin}: {error}")
            target.log(metrics(line), step=line["step"])
        for step, _, numbers in evaluations:
            target.log_results(numbers, step=step)
    finally:
        target.close()
    state["bytes"] = begin + len(data)
    state["evals"] = state.get("evals", []) + [fingerprint for _, fingerprint, _ in evaluations]
    with open(state_path + ".tmp", "w") as file:
        json.dump(state, file)
    os.replace(state_path + ".tmp", state_path)
    return len(lines), len(evaluations)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder")
    parser.add_argument("--to", required=True, choices=["wandb", "mlflow", "trackio"])
    parser.add_argument("--project", default="hebb", help="project or experiment (default: hebb)")
    parser.add_argument("--follow", action="store_true", help="look for new ones every 10 seconds, until no run is at work")
    args = parser.parse_args()
    try:
        client = importlib.import_module(args.to)
    except ImportError:
        sys.exit(f"error: the package {args.to} is missing (pip install {args.to})")
    make = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}[args.to]
    try:
        while True:
            goes_on = args.follow and any([is_alive(run) for run in args.runs])
            for run in args.runs:
                lines, evaluations = send(run, make, client, args.project)
                if lines or evaluations or not goes_on:
                    print(f"{run}: {lines} lines, {evaluations} evaluations", flush=True)
            if not goes_on:
                return
            time.sleep(10)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
