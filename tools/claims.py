#!/usr/bin/env python3
"""The results of configs/claims as small files, and the tables of docs/claims.md from them.

tools/claims.py collect RUNS RESULTS    RUNS: the folder of a ladder (runs/claims-ovq); RESULTS: docs/claims/ovq.json
tools/claims.py render PAGE             writes the tables into the page, between <!-- TABLE --> and <!-- end -->
tools/claims.py render PAGE --check     writes nothing; exit code 1 where the page differs from the results

TABLE is `NAME metric KEY...`, `NAME paired KEY against ROW`, `NAME gains ROW KEY...` (of each key over the one before),
`NAME difference KEY minus KEY` (of each row), `NAME added KEY SUFFIX` (rows with the suffix minus rows without) or
`NAME exponents QUANTITY... from LENGTH`; NAME is a file of results in the page's folder claims/. Where a sweep has widths,
a row is ROW@WIDTH and is compared with those of its width. A run has values by key:
accuracy.LENGTH and bytes.LENGTH (state of a decoder) of in-context and associative recall, accuracy.LENGTH.READINGS where
fast weights move after each reading, gate.BLOCK, collision.BLOCK, coverage.BLOCK and kld.BLOCK of a memory (as kept),
accuracy.FUNCTIONS, late.FUNCTIONS (from the fourth example of a function on) and bytes.FUNCTIONS of in-context learning,
NAME and NAME.FROM (loss of an evaluation of kind position_ppl, and of its bins), flops.LENGTH, seconds.LENGTH (the best
of an evaluation) and bytes.LENGTH of prefill, loss.NAME (of a validation), kept (share of HAM's keys, mean over the last
quarter of the logged steps), kept.GROUP and score.GROUP (of an evaluation of kind selection).
Intervals are Student's t at 95 % over seeds; tests are paired by seed, two-sided, with Holm's correction over a table.
"""
import glob
import json
import math
import os
import re
import sys


def t_tail(t, df):
    """Two-sided probability of a |t| as large as this: the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    theta = math.atan2(abs(t), math.sqrt(df))
    c, s = math.cos(theta), math.sin(theta)
    if df % 2:
        term, total = c, 0.0
        for k in range(1, df // 2 + 1):
            total += term
            term *= c * c * (2 * k) / (2 * k + 1)
        inside = 2 / math.pi * (theta + s * total)
    else:
        term, total = 1.0, 0.0
        for k in range(1, df // 2 + 1):
            total += term
            term *= c * c * (2 * k - 1) / (2 * k)
        inside = s * total
    return max(0.0, 1 - inside)


def t_quantile(df, tail=0.05):
    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > tail else (low, middle)
    return high


def mean_and_half(values):
    """Mean and half the width of its 95 % interval (None for a single value)."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, None
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, t_quantile(n - 1) * deviation / math.sqrt(n)


def paired(values, others):
    """Mean difference, half its 95 % interval, p."""
    differences = [a - b for a, b in zip(values, others)]
    mean, half = mean_and_half(differences)
    if half is None:
        return mean, None, None
    if half == 0:
        return mean, half, 1.0 if mean == 0 else 0.0
    return mean, half, t_tail(mean / half * t_quantile(len(values) - 1), len(values) - 1)


def holm(ps):
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = largest
    return adjusted


# ---- collecting ----

def last(lines, key):
    found = [line[key] for line in lines if key in line]
    return found[-1] if found else None


def values_of(run):
    values = {}
    with open(os.path.join(run, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        if "val" in line:
            values[f"loss.{line['val']}"] = line["loss"]
    kept = [line["layers"]["ham"]["kv_fraction"] for line in lines if "ham" in line.get("layers", {})]
    if kept:
        late = kept[-(len(kept) // 4 or 1):]
        values["kept"] = sum(late) / len(late)
    for block in sorted({block for line in lines for block in line.get("layers", {}) if block.startswith("blocks.")}):
        logged = [line["layers"][block] for line in lines if block in line.get("layers", {})]
        late = logged[-(len(logged) // 4 or 1):]
        for key, name in {"gate": "gate_mean", "collision": "collision", "coverage": "coverage", "kld": "kld"}.items():
            if name in late[0]:
                values[f"{key}.{block.split('.')[1]}"] = sum(layer[name] for layer in late) / len(late)
    for path in sorted(glob.glob(os.path.join(run, "evals", "*", "*.json"))):
        with open(path) as file:
            result = json.load(file)
        if result.get("status", "ok") != "ok":
            sys.exit(f"{path}: the evaluation has status {result['status']}")
        series, metrics = result.get("series", {}), result["metrics"]
        late = {}
        for point in series.get("by_example", []):
            if point["example"] >= 3:
                late.setdefault(point["functions"], []).append((point["accuracy"] * point["n"], point["n"]))
        for functions, counts in late.items():
            values[f"late.{functions}"] = sum(right for right, _ in counts) / sum(n for _, n in counts)
        for point in series.get("by_setting", []):
            if result["kind"] == "icl":
                functions = int(point["setting"].split()[0])
                values[f"accuracy.{functions}"], values[f"bytes.{functions}"] = point["accuracy"], point["state_bytes"]
                continue
            readings = f".{result['config']['readings']}" if result["config"].get("update") == "end" else ""
            values[f"accuracy.{point['length']}{readings}"] = point["accuracy"]
            values[f"bytes.{point['length']}"] = point["state_bytes"]
        for point in series.get("decoding", []):
            if point["position"] >= 1024:  # shorter ones are too short to time
                seconds, key = point["position"] / point["prefill_tokens_per_s"], f"seconds.{point['position']}"
                values[key] = min(seconds, values.get(key, math.inf))
        if result["kind"] == "position_ppl":
            values[result["name"]] = metrics["nll"]["value"]
            values.update({f"{result['name']}.{point['from']}": point["nll"] for point in series["by_position"] if "nll" in point})
        if result["kind"] == "selection":
            values.update({name: metric["value"] for name, metric in metrics.items()})
        if result["kind"] == "efficiency":
            length = result["config"].get("sequence_length")
            if length is not None:
                values[f"flops.{length}"] = metrics["flops.forward_per_token"]["value"] * length
            for point in series["state_bytes"]:
                values[f"bytes.{point['tokens']}"] = point["bytes"]
    return values


def collect(folder, out):
    runs = []
    with open(os.path.join(folder, "results.jsonl")) as file:
        for line in file:
            result = json.loads(line)
            run = os.path.join(folder, result["id"])
            with open(os.path.join(run, "config.json")) as config:
                seed = json.load(config)["train"]["seed"]
            model = result["model"] + (f"@{result['width']}" if "width" in result else "") + (f", rate {result['lr']:g}" if "lr" in result else "")
            runs.append({"model": model, "seed": seed, "params": result["params.total"], "values": values_of(run)})
    with open(out, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")


# ---- tables ----

def with_interval(values, scale=1.0, digits=3):
    mean, half = mean_and_half([v * scale for v in values])
    return f"{mean:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def bytes_text(count):
    return f"{count / 1024:,.1f} KiB"


def p_text(p):
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


class Results:
    def __init__(self, path):
        with open(path) as file:
            self.runs = json.load(file)
        self.models = list(dict.fromkeys(run["model"] for run in self.runs))
        self.seeds = sorted({run["seed"] for run in self.runs})

    def values(self, model, key):
        found = {run["seed"]: run["values"].get(key) for run in self.runs if run["model"] == model}
        if sorted(found) != self.seeds or None in found.values():
            sys.exit(f"{model}: {key} is not there for every seed")
        return [found[seed] for seed in self.seeds]

    def lacks(self, model, key):
        """Whether other models have the key, and this one in no run."""
        having = {run["model"] for run in self.runs if key in run["values"]}
        return bool(having) and model not in having


def metric_table(results, keys):
    head = ["model"] + keys
    rows = [head, ["---"] + ["---:"] * len(keys)]
    for model in results.models:
        row = [f"`{model}`"]
        for key in keys:
            if results.lacks(model, key):  # no memory has no gate
                row.append("–")
                continue
            values = results.values(model, key)
            row.append(bytes_text(sum(values) / len(values)) if key.startswith("bytes.") else with_interval(values))
        rows.append(row)
    return rows


def paired_table(results, key, reference):
    size = reference.partition("@")[2]
    others = [model for model in results.models if model != reference and model.partition("@")[2] == size and not results.lacks(model, key)]
    tests = [paired(results.values(model, key), results.values(reference, key)) for model in others]
    adjusted = holm([p for _, _, p in tests])
    rows = [[f"{key} minus that of `{reference}`", "difference, 95 %", "p", "p, Holm"], ["---", "---:", "---:", "---:"]]
    for model, (mean, half, p), corrected in zip(others, tests, adjusted):
        rows.append([f"`{model}`", f"{mean:+.3f} ± {half:.3f}", p_text(p), p_text(corrected)])
    return rows


def gains_table(results, model, keys):
    tests = [paired(results.values(model, key), results.values(model, before)) for before, key in zip(keys, keys[1:])]
    adjusted = holm([p for _, _, p in tests])
    rows = [[f"`{model}`", "difference, 95 %", "p", "p, Holm"], ["---", "---:", "---:", "---:"]]
    for before, key, (mean, half, p), corrected in zip(keys, keys[1:], tests, adjusted):
        rows.append([f"{key} minus {before}", f"{mean:+.3f} ± {half:.3f}", p_text(p), p_text(corrected)])
    return rows


def difference_table(results, key, other):
    tests = [paired(results.values(model, key), results.values(model, other)) for model in results.models]
    adjusted = holm([p for _, _, p in tests])
    rows = [[f"{key} minus {other}", "difference, 95 %", "p", "p, Holm"], ["---", "---:", "---:", "---:"]]
    for model, (mean, half, p), corrected in zip(results.models, tests, adjusted):
        rows.append([f"`{model}`", f"{mean:+.3f} ± {half:.3f}", p_text(p), p_text(corrected)])
    return rows


def added_table(results, key, suffix):
    """Rows NAME + suffix minus rows NAME."""
    pairs = [(model, model + suffix) for model in results.models if model + suffix in results.models]
    tests = [paired(results.values(after, key), results.values(before, key)) for before, after in pairs]
    adjusted = holm([p for _, _, p in tests])
    rows = [[key, "difference, 95 %", "p", "p, Holm"], ["---", "---:", "---:", "---:"]]
    for (before, after), (mean, half, p), corrected in zip(pairs, tests, adjusted):
        rows.append([f"`{after}` minus `{before}`", f"{mean:+.3f} ± {half:.3f}", p_text(p), p_text(corrected)])
    return rows


def slope(xs, ys):
    us, vs = [math.log(x) for x in xs], [math.log(y) for y in ys]
    u, v = sum(us) / len(us), sum(vs) / len(vs)
    return sum((a - u) * (b - v) for a, b in zip(us, vs)) / sum((a - u) ** 2 for a in us)


def exponent_table(results, quantities, first):
    """The exponent of each quantity in the length: the slope of logarithms over the lengths from the first on, one for each seed."""
    rows = [["model"] + quantities, ["---"] + ["---:"] * len(quantities)]
    for model in results.models:
        row = [f"`{model}`"]
        for quantity in quantities:
            keys = sorted((int(key.split(".")[1]), key) for key in results.runs[0]["values"] if key.startswith(quantity + ".") and int(key.split(".")[1]) >= first)
            columns = zip(*[results.values(model, key) for _, key in keys])
            row.append(with_interval([slope([length for length, _ in keys], column) for column in columns]))
        rows.append(row)
    return rows


def table(folder, words):
    results = Results(os.path.join(folder, "claims", words[0] + ".json"))
    kind, rest = words[1], words[2:]
    if kind == "metric":
        rows = metric_table(results, rest)
    elif kind == "paired":
        rows = paired_table(results, rest[0], rest[2])
    elif kind == "gains":
        rows = gains_table(results, rest[0], rest[1:])
    elif kind == "difference":
        rows = difference_table(results, rest[0], rest[2])
    elif kind == "added":
        rows = added_table(results, rest[0], rest[1])
    elif kind == "exponents":
        rows = exponent_table(results, rest[:-2], int(rest[-1]))
    else:
        sys.exit(f"unknown table: {' '.join(words)}")
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def render(page, check):
    with open(page) as file:
        text = file.read()
    folder = os.path.dirname(os.path.abspath(page))
    made = re.sub(r"<!-- table: ([^>]*) -->\n.*?<!-- end -->",
                  lambda m: f"<!-- table: {m.group(1)} -->\n{table(folder, m.group(1).split())}<!-- end -->", text, flags=re.S)
    if check and made != text:
        sys.exit(f"{page}: tables differ from the results in {folder}/claims; tools/claims.py render {page} writes them")
    if not check:
        with open(page, "w") as file:
            file.write(made)


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) == 3 and words[0] == "collect":
        collect(words[1], words[2])
    elif len(words) >= 2 and words[0] == "render" and words[2:] in ([], ["--check"]):
        render(words[1], words[2:] == ["--check"])
    else:
        sys.exit(__doc__)
