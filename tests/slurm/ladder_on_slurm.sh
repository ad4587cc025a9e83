#!/usr/bin/env bash
# A ladder on a real Slurm of two nodes of one core each: a job is killed, one stops early and is put back into the queue, a node is
# drained, the controller is restarted; the results are those of a ladder that ran in peace on this machine.
# Usage: ladder_on_slurm.sh HEBB. Exits with 77 where Slurm is not installed (tools/setup.sh --slurm).
set -euo pipefail
hebb=$(realpath "$1")
source "$(dirname "$0")/cluster.sh"
missing=$(slurm_missing)
if [[ -n $missing ]]; then
  echo "skipped: $missing (tools/setup.sh --slurm installs it)"
  exit 77
fi
work=$(mktemp -d /tmp/hebb-slurm-XXXXXX)
end() {
  local code=$?
  slurm_stop
  if [[ $code != 0 ]]; then
    echo "--- slurmctld.log"
    tail -n 20 "$work/cluster/slurmctld.log" || true
    for ladder in "$work"/shaken/runs/*; do
      "$hebb" ladder "$ladder" --status || true
      tail -n 5 "$ladder"/jobs/*.log || true
    done
  fi
  rm -rf "$work"
  exit $code
}
trap end EXIT
trap 'echo "line $LINENO: $BASH_COMMAND" >&2' ERR
mkdir "$work"/{cluster,calm,shaken}
slurm_start "$work/cluster"

# Eight runs of some seconds, so that two are always at work.
python3 - "$work/tokens.bin" <<'END'
import struct, sys
state, tokens = 1, []
for _ in range(4000):
    state = (state * 1103515245 + 12345) % 2**31
    tokens.append(0 if state % 17 == 0 else 1 + (state >> 8) % 28)
open(sys.argv[1], "wb").write(struct.pack(f"<{len(tokens)}H", *tokens))
END
cat >"$work/base.json" <<'END'
{"model": {"vocab_size": 29, "hidden_size": 16, "num_layers": 2,
   "layers": {"full": {"type": "attention", "num_heads": 2, "head_dim": 8}, "gdn": {"type": "gdn", "num_heads": 2, "key_head_dim": 8, "value_head_dim": 8},
              "mlp": {"type": "swiglu", "intermediate_size": 32}},
   "pattern": [{"mixer": "full", "ffn": "mlp"}]},
 "data": {"sources": [{"path": "tokens.bin", "format": "raw_u16", "split_token": 0}]},
 "train": {"steps": 12000, "batch_size": 4, "sequence_length": 16, "device": "cpu", "threads": 1, "log_every": 5, "checkpoint": {"every": 500, "keep": 1}},
 "optimizer": {"lr": 0.01}}
END
cat >"$work/sweep.json" <<'END'
{"name": "tiny", "base": "base.json", "max_parallel": 2,
 "axes": {"arch": {"full": {}, "gdn": {"set": {"model.pattern.0.mixer": "gdn"}}}, "size": {"small": {}, "large": {"set": {"model.hidden_size": 24}}}},
 "grid": {"train.seed": [1, 2]}, "cluster": {"partition": "p", "time": "10", "memory": "100M"}, "fit": {"by": "arch"}}
END

cd "$work/calm"
"$hebb" ladder ../sweep.json >calm.log 2>&1

cd "$work/shaken"
ladder() { "$hebb" ladder ../sweep.json "$@"; }
submit() { ladder --launcher slurm; }
# task STATE: the first array task in that state, as 3_1.
task() { squeue --me --noheader --array --states="$1" --format=%F_%K | head -n 1; }
running() { squeue --me --noheader --array --states=RUNNING | wc -l; }
run_of() { sed -n "s/.*start \([^ ]*\).*/\1/p" "runs/tiny/jobs/0001.${1#*_}.log" | tail -n 1; }
steps() { [[ -s runs/tiny/$1/metrics.jsonl ]] && [[ -e runs/tiny/$1/checkpoints/latest || -n $(ls runs/tiny/"$1"/checkpoints 2>/dev/null) ]]; }

submit
[[ $(submit) == *" 0 to submit"* ]] # nothing twice
slurm_await "two runs train" '[[ $(running) == 2 ]] && steps "$(run_of "$(task RUNNING)")"'

echo "== a job is killed"
killed=$(task RUNNING)
run=$(run_of "$killed")
trainer=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "runs/tiny/$run/status.json")
kill -9 "$(ps -o ppid= -p "$trainer" | tr -d ' ')" "$trainer"
slurm_await "the job has gone" '! squeue --me --noheader --array --format=%F_%K | grep -qx "$killed"'
status=$(ladder --status)
[[ $status == *"job $killed was killed"* ]]
[[ $(submit) == *"submitted $run as job"* ]]

echo "== a run stops early and goes back into the queue"
slurm_await "two runs train" '[[ $(running) == 2 ]] && steps "$(run_of "$(task RUNNING)")"'
stopped=$(task RUNNING)
timeout 60 scancel --signal=USR1 --batch "$stopped" || true # it asks again and again where the job has gone already
slurm_await "it waits again" '[[ $(scontrol show job "$stopped") == *"Restarts=1"* ]]'

echo "== a node is drained"
scontrol update nodename=n2 state=drain reason=test
slurm_await "n2 is empty" '[[ $(sinfo -h -n n2 -o %T) == drained ]]'

echo "== the controller is restarted"
slurm_end slurmctld
ladder --status | grep -q "the states are those of the run folders"
if submit 2>refused.txt; then exit 1; fi
grep -q "squeue: " refused.txt
slurm_controller
slurm_await "n2 is back" 'scontrol update nodename=n2 state=resume; [[ $(sinfo -h -n n2 -o %T) =~ ^(idle|mixed|allocated)$ ]]'

slurm_await "the queue is empty" '[[ -z $(squeue --me --noheader) ]]'
submit | tee last.txt
grep -q "report in" last.txt

# results.jsonl without what was measured and the hash of paths.
table() {
  python3 - "$1/results.jsonl" <<'END'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    for key in ("tokens_per_s", "mem_bytes", "seconds", "setting"): row.pop(key, None)
    print(json.dumps(row))
END
}
diff <(table "$work/calm/runs/tiny") <(table runs/tiny)
[[ $(table runs/tiny | wc -l) == 8 ]]
diff "$work/calm/runs/tiny/fit.json" runs/tiny/fit.json
echo "the results of the disturbed ladder are those of the calm one"

if ! slurm_has_pmix || [[ ! -e $(dirname "$hebb")/libhebb_mpi.so ]]; then
  echo "no ranks by srun: Slurm's pmix plugin or hebb's MPI module is missing"
  exit 0
fi
echo "== two ranks, one on each node, stop early and go on"
cat >"$work/ranks.json" <<'END'
{"name": "ranks", "base": "base.json", "runs": [{"id": "a", "set": {"train.lanes": 2, "train.steps": 20000}}],
 "cluster": {"ranks": 2, "nodes": 2, "time": "10", "memory": "100M"}}
END
(cd "$work/calm" && "$hebb" ladder ../ranks.json) >/dev/null
"$hebb" ladder ../ranks.json --launcher slurm
slurm_await "it trains" '[[ -s runs/ranks/a/metrics.jsonl ]]'
timeout 60 scancel --signal=USR1 --batch "$(task RUNNING)" || true
slurm_await "it stops" 'grep -q "SIGUSR1: a saves and stops" runs/ranks/jobs/0001.0.log'
slurm_await "the queue is empty" '[[ -z $(squeue --me --noheader) ]]'
"$hebb" ladder ../ranks.json
grep -q "start a at step" runs/ranks/jobs/0001.0.log
diff <(table "$work/calm/runs/ranks") <(table runs/ranks)
cmp "$work"/calm/runs/ranks/a/checkpoints/step_00020000/model.safetensors runs/ranks/a/checkpoints/step_00020000/model.safetensors
echo "two ranks have the bits of one"
