#!/usr/bin/env python3
"""tools/log_bridge.py with a stand-in for the package wandb, which notes the calls."""
import json
import os
import subprocess
import sys
import tempfile
import time

BRIDGE = os.path.join(os.path.abspath(sys.argv[1]), "tools/log_bridge.py")
CLIENT = """
import json, os
def note(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")
class Run:
    def define_metric(self, name, step_metric): note("define", name, step_metric)
    def log(self, values, step=None, commit=None): note("log", values, step if commit is None else commit)
    def finish(self): note("finish")
def init(project, name, id, config, resume, reinit):
    note("init", project, name, id, config, resume)
    return Run()
"""


def send(folder, *more):
    """The calls of one start."""
    calls = os.path.join(folder, "calls")
    open(calls, "w").close()
    done = subprocess.run([sys.executable, BRIDGE, os.path.join(folder, "run"), "--to", "wandb", *more], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": folder, "CALLS": calls}, check=False)
    with open(calls) as file:
        return done, [json.loads(line) for line in file]


with tempfile.TemporaryDirectory() as folder:
    os.mkdir(os.path.join(folder, "run"))
    metrics = os.path.join(folder, "run/metrics.jsonl")
    with open(os.path.join(folder, "wandb.py"), "w") as file:
        file.write(CLIENT)
    with open(os.path.join(folder, "run/config.json"), "w") as file:
        json.dump({"name": "a", "train": {"steps": 5}}, file)
    with open(metrics, "w") as file:
        file.write('{"step": 1, "loss": 2.5, "lr": "nan", "mem_bytes": 1073741824, "layers": {"b.0": {"usage": 0.5}}}\n')
        file.write('{"step": 1, "val": "v", "loss": 3.5, "ppl": "inf"}\n{"step": 2, "lo')
    done, calls = send(folder)
    assert done.returncode == 0, done.stderr
    assert calls[0][:3] == ["init", "hebb", "a"] and calls[0][4:] == [{"name": "a", "train.steps": 5}, "allow"], calls
    assert calls[1] == ["define", "evals/*", "evals/step"], calls
    assert calls[2:] == [["log", {"train/loss": 2.5, "mem/peak_gib": 1.0, "memory/b.0/usage": 0.5}, 1],
                         ["log", {"eval/v/loss": 3.5}, 1], ["finish"]], calls
    with open(metrics, "a") as file:
        file.write('ss": 1.5}\n')
    assert send(folder)[1][2:] == [["log", {"train/loss": 1.5}, 2], ["finish"]]
    assert send(folder)[1] == []
    run_id = calls[0][3]
    # A run that was resumed does steps again, in lines of other lengths: what was sent is not sent again, and nothing is left out.
    with open(metrics, "w") as file:
        file.write('{"step": 1, "loss": 2.5}\n{"step": 1, "val": "v", "loss": 3.5}\n{"step": 2, "loss": 1.5, "tokens_per_s": 123456.7}\n')
        file.write('{"step": 2, "val": "v", "loss": 3.25}\n{"step": 3, "loss": 1.25}\n')
    with open(os.path.join(folder, "run/config.json"), "w") as file:
        json.dump({"name": "a", "train": {"steps": 6}}, file)
    calls = send(folder)[1]
    assert calls[0][3] == run_id and calls[2:] == [["log", {"eval/v/loss": 3.25}, 2], ["log", {"train/loss": 1.25}, 3], ["finish"]], calls
    assert send(folder)[1] == []
    with open(metrics, "w") as file:
        file.write('{"step": 1, "loss": 2.5}\n')
    assert send(folder)[1] == []
    # Evaluations: good ones, each once; another result of the same name is another one.
    os.makedirs(os.path.join(folder, "run/evals/step_00000001"))
    result = {"name": "arc", "status": "ok", "step": 1, "fingerprint": "a1",
              "metrics": {"acc": {"value": 0.5, "stderr": 0.1, "n": 9}, "ppl": {"value": "inf", "n": 9}}}
    for name, changes in {"arc": {}, "bad": {"status": "failed", "fingerprint": "b"}, "arc.a2": {"fingerprint": "a2", "step": 0}}.items():
        with open(os.path.join(folder, f"run/evals/step_00000001/{name}.json"), "w") as file:
            json.dump({**result, **changes}, file)
    sent = {"evals/arc/acc": 0.5, "evals/arc/acc_stderr": 0.1}
    assert send(folder)[1][2:] == [["log", {**sent, "evals/step": 0}, False], ["log", {**sent, "evals/step": 1}, False], ["finish"]]
    assert send(folder, "--follow")[1] == []  # nothing works there: it ends
    # A run that is at work is followed until its lock goes.
    lock = os.path.join(folder, "run/lock")
    open(lock, "w").close()
    os.utime(lock, (time.time() + 1e6,) * 2)  # on a slow machine, too
    calls = os.path.join(folder, "calls")
    following = subprocess.Popen([sys.executable, BRIDGE, os.path.join(folder, "run"), "--to", "wandb", "--follow"], stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "PYTHONPATH": folder, "CALLS": calls})
    with open(metrics, "a") as file:
        file.write('{"step": 4, "loss": 1.0}\n')
    assert following.stdout.readline().endswith("1 lines, 0 evaluations\n")
    following.terminate()
    assert following.wait() == 0
    with open(calls) as file:
        assert json.loads(file.readlines()[-1]) == ["finish"]
    with open(metrics, "a") as file:
        file.write('{"step": 5, "loss": 0.5}\n')
    following = subprocess.Popen(following.args, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": folder, "CALLS": calls})
    assert following.stdout.readline().endswith("1 lines, 0 evaluations\n")
    os.remove(lock)
    assert following.stdout.readline().endswith("0 lines, 0 evaluations\n")
    assert following.wait() == 0
    with open(metrics, "a") as file:
        file.write("{broken\n")
    done, calls = send(folder)
    assert done.returncode == 1 and "metrics.jsonl: the line that ends at byte 83" in done.stderr, done.stderr
print("the log bridge sends what it should")
