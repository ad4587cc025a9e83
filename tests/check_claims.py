#!/usr/bin/env python3
"""The sweeps of configs/claims in small, the statistics of tools/claims.py, and docs/claims.md against its results.

check_claims.py SOURCE HEBB
"""
import filecmp
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, HEBB = sys.argv[1:3]
sys.path.insert(0, os.path.join(SOURCE, "tools"))
import claims  # noqa: E402

# Quantiles of Student's t from printed tables; a paired test by hand: differences 1, 2, 3 have t = 2 sqrt(3), two degrees of freedom.
for df, quantile in {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 9: 2.2622}.items():
    assert abs(claims.t_quantile(df) - quantile) < 1e-4, df
mean, half, p = claims.paired([2, 4, 6], [1, 2, 3])
assert abs(mean - 2) < 1e-12 and abs(half - 4.3027 / 3 ** 0.5) < 1e-4 and abs(p - 0.0742) < 1e-4, (mean, half, p)
assert claims.holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
assert abs(claims.slope([1, 2, 4], [3, 12, 48]) - 2) < 1e-12


# A row without a key that others have shows a dash: what has no memory has no gate.
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "results.json"), "w") as file:
        json.dump([{"model": "with", "seed": 1, "values": {"gate.1": 0.25}}, {"model": "without", "seed": 1, "values": {}}], file)
    assert claims.metric_table(claims.Results(os.path.join(folder, "results.json")), ["gate.1"])[2:] == [["`with`", "0.250"], ["`without`", "–"]]


def render(page):
    return subprocess.run([sys.executable, os.path.join(SOURCE, "tools/claims.py"), "render", page, "--check"], stderr=subprocess.PIPE, text=True)


# The page has the numbers of the results, and a page with another number is refused.
done = render(os.path.join(SOURCE, "docs/claims.md"))
assert done.returncode == 0, done.stderr
with tempfile.TemporaryDirectory() as folder:
    shutil.copytree(os.path.join(SOURCE, "docs/claims"), os.path.join(folder, "claims"))
    results = sorted(glob.glob(os.path.join(folder, "claims/*.json")))
    assert results
    for path in results:
        page = os.path.join(folder, "page.md")
        shutil.copy(os.path.join(SOURCE, "docs/claims.md"), page)
        with open(path) as file:
            right = file.read()
        runs = json.loads(right)
        for run in runs:
            run["values"] = {key: 3 * value + 1 for key, value in run["values"].items()}
        with open(path, "w") as file:
            json.dump(runs, file)
        assert render(page).returncode == 1, f"{path}: no table of the page holds its values"
        with open(path, "w") as file:
            file.write(right)

# The figures have the numbers of the results, too.
def drawn(figure):
    """The points of each named curve: x, y and, of the figure over bytes, half of the interval."""
    with open(os.path.join(SOURCE, "docs/images", figure)) as file:
        curves = re.findall(r'data-name="([^"]*)" data-v="([^"]*)"', file.read())
    return {name: [[float(number) for number in point.split()] for point in points.split(";")] for name, points in curves}


rows = claims.Results(os.path.join(SOURCE, "docs/claims/map.json"))
points = drawn("claims-map.svg")
assert sorted(points) == sorted(rows.models), points
for name, [(size, share, half)] in points.items():
    mean, of_mean = claims.mean_and_half(rows.values(name, "accuracy.256"))
    assert abs(share - mean) < 1e-6 and abs(half - of_mean) < 1e-6 and size == rows.values(name, "bytes.256")[0], (name, mean, of_mean)
for figure, key in {"fwpkm": "accuracy.%d.2", **dict.fromkeys(["ham", "kvm-recall", "ovq", "regression"], "accuracy.%d")}.items():
    rows = claims.Results(os.path.join(SOURCE, "docs/claims", figure + ".json"))
    points = drawn("claims-" + figure + ".svg")
    assert sorted(points) == sorted(rows.models), points
    for name, curve in points.items():
        assert len(curve) > 2
        for length, share in curve:
            assert abs(share - claims.mean_and_half(rows.values(name, key % length))[0]) < 1e-6, (figure, name, length)


rows = claims.Results(os.path.join(SOURCE, "docs/claims/sdm-slots.json"))
points = drawn("claims-sdm-slots.svg")
for name in ("sdm-16", "sdm-64", "sdm-256", "sdm-1024"):
    losses = [loss for width in (32, 64, 128) for loss in rows.values(f"{name}@{width}", "loss.recall")]
    assert len(points[name]) == len(losses) and all(abs(y / loss - 1) < 1e-6 for (_, y), loss in zip(points[name], losses)), name


points = drawn("claims-kvm-prefill.svg")
rows = claims.Results(os.path.join(SOURCE, "docs/claims/kvm-prefill.json"))
assert sorted(points) == sorted(rows.models), points
for name, curve in points.items():
    assert len(curve) > 2
    for length, seconds in curve:
        assert abs(seconds / claims.mean_and_half(rows.values(name, f"seconds.{length:.0f}"))[0] - 1) < 1e-5, (name, length)
rows = claims.Results(os.path.join(SOURCE, "docs/claims/fwpkm-gates.json"))
points = drawn("claims-fwpkm-gates.svg")
assert len(points) == sum("gate.1" in run["values"] for run in rows.runs), points
for run in rows.runs:
    if "gate.1" in run["values"]:
        curve = points[f"{run['model']}_seed={run['seed']} blocks.1.memory"]
        gates = [gate for step, gate in curve[-(len(curve) // 4):]]
        assert abs(sum(gates) / len(gates) - run["values"]["gate.1"]) < 1e-6, run
# Means with intervals: a title for each row, "ROW: MEAN ± HALF".
for figure, key in {"ham-text": "text", "sdm-memory": "facts", "fwpkm-text": "text", "fwpkm-ablation": "accuracy.128", "ham-needles": "score.%s"}.items():
    with open(os.path.join(SOURCE, "docs/images", f"claims-{figure}.svg")) as file:
        titles = re.findall(r"<title>([^:]*): ([-0-9.e]*) ± ([-0-9.e]*)", file.read())
    rows = claims.Results(os.path.join(SOURCE, "docs/claims", figure + ".json"))
    assert {name.split(", ")[0] for name, _, _ in titles} == set(rows.models), titles
    for name, mean, half in titles:
        model, _, group = name.partition(", ")
        right = claims.mean_and_half(rows.values(model, key % group if group else key))
        assert abs(float(mean) - right[0]) < 1e-3 * abs(right[0]) and abs(float(half) - right[1]) < 1e-2 * right[1] + 1e-6, (figure, name)


# The committed facts and names are what their programs write.
for path, count in (("configs/claims/facts.u16", 2048), ("configs/claims/search/facts.u16", 1024)):
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "facts.u16")
        subprocess.run([sys.executable, os.path.join(SOURCE, "tools/facts.py"), str(count), made], check=True)
        with open(made, "rb") as file, open(os.path.join(SOURCE, path), "rb") as kept:
            assert file.read() == kept.read(), path
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, os.path.join(SOURCE, "tools/rare_names.py"), folder], check=True)
    assert os.listdir(folder)
    for texts in os.listdir(folder):
        kept = os.path.join(SOURCE, "configs/claims", texts)
        assert sorted(os.listdir(os.path.join(folder, texts))) == sorted(os.listdir(kept))
        for name in os.listdir(kept):
            assert filecmp.cmp(os.path.join(folder, texts, name), os.path.join(kept, name), shallow=False), os.path.join(texts, name)


def small(value):
    """The same configuration with few steps and short, few rows to evaluate."""
    for evaluation in value["eval"]["evaluations"]:
        if evaluation["kind"] == "efficiency":
            evaluation["positions"] = [position // 64 for position in evaluation["positions"] if position // 64 > 0] or [16]
        elif evaluation["kind"] == "selection":
            evaluation["rows"] = 1
        elif evaluation["kind"] == "position_ppl":
            evaluation.update(length=min(evaluation["length"], 64), max_documents=1)
        else:
            evaluation["samples"] = 1
            for case in evaluation.get("cases", []):
                case.update(length=min(case["length"], 256), pairs=min(case["pairs"], 16))
            evaluation.pop("min_distance", None)  # one row may have no far question
    value["train"].update(steps=2, batch_size=2, micro_batch_size=2, val_every=0)
    value["data"]["validation"][0]["max_rows"] = 2
    value["schedule"]["warmup_steps"] = 1
    for layer in value["model"]["layers"].values():  # a default that follows the number of heads, which a sweep may set
        if layer.get("num_kv_heads", 0) == layer.get("num_heads"):
            del layer["num_kv_heads"]
    return value


def composed(path):
    """A configuration with everything that it extends."""
    text = subprocess.run([HEBB, "train", path, "--print-config"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(text)


# Every sweep trains, evaluates and is collected; every run of it, with one seed.
sweeps = sorted(glob.glob(os.path.join(SOURCE, "configs/claims/**/*.json"), recursive=True))
trained = 0
for path in sweeps:
    with open(path) as file:
        sweep = json.load(file)
    if "base" not in sweep:
        continue
    with tempfile.TemporaryDirectory() as folder:
        base = small(composed(os.path.join(os.path.dirname(path), sweep["base"])))
        with open(os.path.join(folder, "base.json"), "w") as file:
            json.dump(base, file)
        sweep["base"] = "base.json"
        sweep["grid"] = {key: values[:1] for key, values in sweep.get("grid", {}).items()}
        if not sweep["grid"]:
            del sweep["grid"]
        with open(os.path.join(folder, "sweep.json"), "w") as file:
            json.dump(sweep, file)
        runs = os.path.join(folder, "runs")
        done = subprocess.run([HEBB, "ladder", os.path.join(folder, "sweep.json"), "--dir", runs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, f"{path}:\n{done.stdout}"
        claims.collect(runs, os.path.join(folder, "results.json"))
        with open(os.path.join(folder, "results.json")) as file:
            results = json.load(file)
        widths = ["@" + width for width in sweep["axes"].get("width", [])] or [""]
        assert [run["model"].split(",")[0] for run in results] == [model + width for model in sweep["axes"]["model"] for width in widths], path
        for run in results:
            assert any(key.startswith(("bytes.", "text.")) for key in run["values"]), (path, run)
            assert "kept" in run["values"] or "ham" not in os.path.basename(path), (path, run)
        trained += len(results)
assert trained > 20, trained
print(f"{trained} runs of {SOURCE}/configs/claims in small; docs/claims.md has the numbers of its results")
