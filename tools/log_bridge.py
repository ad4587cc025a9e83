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
import signal
import sys
import threading
import time

LINES_AT_ONCE = 20


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
    delay = 5  # seconds after which a line is on the disk or on its way, whatever ends this process

    def __init__(self, client, project, name, run_id, config):
        # Several runs may be open at the same time.
        self.run = client.init(project=project, name=name, id=run_id, config=config, resume="allow", reinit="create_new")
        self.log, self.close = self.run.log, self.run.finish
        # Its steps only go up, and evaluations may be of an earlier one.
        self.run.define_metric("evals/*", step_metric="evals/step")

    def log_results(self, values, step):
        self.run.log({**values, "evals/step": step}, commit=False)

    def flush(self):
        pass


class Trackio:
    delay = 5
    current = None  # it finishes a run where another begins

    def __init__(self, client, project, name, run_id, config):
        self.begin = lambda: client.init(project=project, name=f"{name}-{run_id}", config=config, resume="allow")

    def log(self, values, step):
        if Trackio.current is not self:
            self.run, Trackio.current = self.begin(), self
        self.run.log(values, step=step)

    log_results = log

    def flush(self):
        pass

    def close(self):
        if Trackio.current is self:
            self.run.finish()


class Mlflow:
    delay = 0

    def __init__(self, client, project, name, run_id, config):
        self.client, self.metric, self.batch = client.MlflowClient(), client.entities.Metric, []
        experiment = client.set_experiment(project).experiment_id
        known = self.client.search_runs([experiment], filter_string=f"tags.hebb_run = '{run_id}'")
        self.id = (known[0] if known else self.client.create_run(experiment, run_name=name, tags={"hebb_run": run_id})).info.run_id
        if known:
            self.client.update_run(self.id, status="RUNNING")
        else:
            for key, value in config.items():
                self.client.log_param(self.id, key, str(value)[:500])

    def log(self, values, step):
        self.batch += [self.metric(key, value, int(time.time() * 1000), step) for key, value in values.items()]

    log_results = log

    def flush(self):
        while self.batch:
            self.client.log_batch(self.id, metrics=self.batch[:1000])  # as many as a request may have
            self.batch = self.batch[1000:]

    def close(self):
        self.client.set_terminated(self.id)


class Run:
    """A run folder and what a client has of it."""

    def __init__(self, folder, make, client, project):
        self.folder, self.make, self.client, self.project = folder, make, client, project
        self.state_path = os.path.join(folder, f".log_bridge-{make.__name__.lower()}.json")
        self.target, self.state, self.notes = None, {}, []
        if os.path.exists(self.state_path):
            with open(self.state_path) as file:
                self.state = json.load(file)

    def client_run(self):
        if self.target is None:
            self.begin()
        return self.target

    def begin(self):
        with open(os.path.join(self.folder, "config.json")) as file:
            config = json.load(file)
        name = config.get("name") or os.path.basename(os.path.abspath(self.folder))
        # A run that goes on with other settings is the same run.
        self.state.setdefault("id", f"{fnv1a64((name + json.dumps(config, sort_keys=True)).encode()):016x}")
        self.target = self.make(self.client, self.project, name, self.state["id"], flat(config))

    def new_lines(self):
        """Whole lines behind the last one that was sent: (text, place of its end). All of them where that line is not there: the run was resumed."""
        last, end = self.state.get("last", "").encode(), self.state.get("bytes", 0)
        with open(os.path.join(self.folder, "metrics.jsonl"), "rb") as file:
            file.seek(end - len(last))
            if file.read(len(last)) != last:
                file.seek(0)
                end = 0
            for text in file.read().split(b"\n")[:-1]:  # what is behind the last end of a line is unfinished
                end += len(text) + 1
                yield text.decode() + "\n", end

    def send(self, is_over):
        """Sends the lines and evaluations that are new, until is_over(); returns their numbers."""
        self.write_note(time.monotonic())
        lines, evaluations, sent = list(self.new_lines()), results(self.folder, self.state.get("evals", [])), 0
        for at in range(0, len(lines), LINES_AT_ONCE):
            if is_over():
                return sent, 0
            for text, end in lines[at:at + LINES_AT_ONCE]:
                sent += self.send_line(text, end)
            self.keep()
        for step, fingerprint, numbers in evaluations:
            self.client_run().log_results(numbers, step=step)
            self.state.setdefault("evals", []).append(fingerprint)
        if evaluations:
            self.keep()
        return sent, len(evaluations)

    def send_line(self, text, end):
        try:
            line = json.loads(text)
        except ValueError as error:
            sys.exit(f"error: {os.path.join(self.folder, 'metrics.jsonl')}: the line that ends at byte {end}: {error}")
        step, kinds, kind = self.state.get("step", -1), self.state.get("kinds", []), line.get("val", "")
        # What a resumed run does again was sent.
        is_new = line["step"] > step or line["step"] == step and kind not in kinds
        if is_new:
            self.client_run().log(metrics(line), step=line["step"])
            self.state.update({"step": line["step"], "kinds": (kinds if line["step"] == step else []) + [kind]})
        self.state.update({"bytes": end, "last": text})
        return is_new

    def keep(self):
        """Notes how far the client has come, behind the time after which it surely has it."""
        if self.target is not None:
            self.target.flush()
        self.notes.append((time.monotonic() + (self.target.delay if self.target is not None else 0), json.dumps(self.state)))
        self.write_note(time.monotonic())

    def write_note(self, now):
        due = [text for at, text in self.notes if at <= now]
        if due:
            with open(self.state_path + ".tmp", "w") as file:
                file.write(due[-1])
            os.replace(self.state_path + ".tmp", self.state_path)
            self.notes = self.notes[len(due):]

    def close(self):
        if self.target is not None:
            self.target.close()
        self.write_note(math.inf)


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
    over = threading.Event()  # a signal ends the bridge between two sets of lines
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    runs = []
    try:
        runs += [Run(folder, make, client, args.project) for folder in args.runs]
        while not over.is_set():
            goes_on = args.follow and any([is_alive(run.folder) for run in runs])
            for run in runs:
                lines, evaluations = run.send(over.is_set)
                if lines or evaluations or not goes_on:
                    print(f"{run.folder}: {lines} lines, {evaluations} evaluations", flush=True)
            if not goes_on:
                return
            over.wait(10)
    except OSError as error:
        sys.exit(f"error: {error}")
    finally:
        for run in runs:
            run.close()


if __name__ == "__main__":
    main()
