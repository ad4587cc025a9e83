#!/usr/bin/env bash
# Two ranks on two hosts, which are network namespaces with host names of their own, joined by one cable: the same bytes as on one
# host; over a slow line that loses packets, where the kernel has netem; and with the cable pulled, where every process ends.
# Usage: two_hosts.sh HEBB. Exits with 77 where namespaces are not permitted or mpirun is missing.
set -euo pipefail
hebb=$(realpath "$1")
skip() {
  echo "skipped: $1"
  exit 77
}
for program in ip mpirun unshare; do command -v "$program" >/dev/null || skip "no $program"; done
[[ -e $(dirname "$hebb")/libhebb_mpi.so ]] || skip "this build is without MPI"
id=$$
a=hebb-a-$id b=hebb-b-$id
ip netns add "$a" 2>/dev/null || skip "no permission to make network namespaces"
work=$(mktemp -d /tmp/hebb-hosts-XXXXXX)
end() {
  local code=$?
  for name in "$a" "$b"; do
    for pid in $(ip netns pids "$name" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$name" 2>/dev/null || true
  done
  rm -rf "$work"
  exit $code
}
trap end EXIT
trap 'echo "line $LINENO: $BASH_COMMAND" >&2; tail -n 5 "$work"/*.err >&2 || true' ERR
ip netns add "$b"
ip link add "ha$id" type veth peer name "hb$id" 2>/dev/null || { ip netns del "$b"; skip "no veth"; }
n=1
for name in "$a" "$b"; do
  device=$([[ $name == "$a" ]] && echo "ha$id" || echo "hb$id")
  ip link set "$device" netns "$name"
  ip -n "$name" link set "$device" name eth0
  ip -n "$name" addr add "10.77.0.$n/24" dev eth0
  ip -n "$name" link set lo up
  ip -n "$name" link set eth0 up
  n=$((n + 1))
done

# Runs a command on a host.
on() {
  local host=$1
  shift
  ip netns exec "$([[ $host == 1 ]] && echo "$a" || echo "$b")" unshare --uts sh -c 'hostname "$0" && exec "$@"' "host$host" "$@"
}
cat > "$work/agent" <<END
#!/bin/sh
shift # the address: there is one other host
exec ip netns exec $b unshare --uts sh -c "hostname host2 && \$*"
END
chmod +x "$work/agent"
# Starts training by a rank on each host; options behind the name of the run.
train_on_both() {
  local run=$1
  shift
  on 1 mpirun --allow-run-as-root --quiet --bind-to none --mca plm_rsh_agent "$work/agent" --mca plm rsh --mca routed direct \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_vader_single_copy_mechanism none \
    --mca mpi_yield_when_idle 1 -host 10.77.0.1:1,10.77.0.2:1 -n 2 \
    "$hebb" train "$work/run.json" --run-dir "$work/$run" train.comm.interface='"eth0"' "$@" > "$work/$run.out" 2> "$work/$run.err"
}
weights() {
  cat "$work/$1/checkpoints/step_00000020/model.safetensors" "$work/$1/checkpoints/step_00000020/optimizer.safetensors" | sha256sum
}
cat > "$work/run.json" <<'END'
{"name": "hosts",
 "model": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "layers": {
   "att": {"type": "attention", "num_heads": 2, "head_dim": 16, "rope": {"theta": 10000.0}},
   "mlp": {"type": "swiglu", "intermediate_size": 64}}, "pattern": [{"mixer": "att", "ffn": "mlp"}]},
 "data": {"sources": [{"type": "synthetic", "task": "mqar", "pairs": 4, "vocab": 64}]},
 "train": {"steps": 20, "batch_size": 8, "micro_batch_size": 2, "lanes": 4, "sequence_length": 32, "device": "cpu",
           "precision": "fp32", "threads": 1, "log_every": 1, "checkpoint": {"every": 4, "keep": 9},
           "comm": {"lost_seconds": 4, "init_seconds": 60}},
 "optimizer": {"lr": 3e-3}}
END

"$hebb" train "$work/run.json" --run-dir "$work/one" > "$work/one.out" 2> "$work/one.err"
train_on_both two
grep -q "host1:" "$work/two.out" && grep -q "host2:" "$work/two.out"
[[ $(weights two) == $(weights one) ]]
echo "two hosts: the bytes of one"

if on 1 tc qdisc add dev eth0 root netem delay 5ms loss 1% 2>/dev/null && on 2 tc qdisc add dev eth0 root netem delay 5ms loss 1%; then
  train_on_both slow
  [[ $(weights slow) == $(weights one) ]]
  on 1 tc qdisc del dev eth0 root
  on 2 tc qdisc del dev eth0 root
  echo "5 ms of delay and 1 % of loss: the same bytes"
else
  echo "not tested: delay and loss (this kernel has no netem)"
fi

train_on_both cut train.steps=100000 & launcher=$!
until grep -q "step 9/" "$work/cut.out" 2>/dev/null; do
  kill -0 $launcher
  sleep 0.1
done
ranks() { pgrep -f "^$hebb train $work/run.json --run-dir $work/cut" || true; }
[[ $(ranks | wc -l) == 2 ]]
ip -n "$a" link set eth0 down
SECONDS=0
while [[ -n $(ranks) ]]; do
  [[ $SECONDS -lt 60 ]]
  sleep 0.1
done
grep -q "rank 1 (host2:[0-9]*): lost: no heartbeat for 4 s" "$work/cut.err"
echo "the cable is pulled: every process has ended after $SECONDS s"
ip -n "$a" link set eth0 up
for pid in $(ip netns pids "$a") $(ip netns pids "$b"); do kill -9 "$pid" 2>/dev/null || true; done # mpirun and its daemon
wait $launcher 2>/dev/null || true
# The other host does not take over what it cannot ask about.
code=0
on 2 "$hebb" train "$work/run.json" --run-dir "$work/cut" > "$work/other.out" 2> "$work/other.err" || code=$?
[[ $code == 4 ]]
grep -q "in use by process [0-9]* on host1, which cannot be asked from here; remove the file lock" "$work/other.err"
rm "$work/cut/lock"
last=$(sed 's/step_0*//' "$work/cut/checkpoints/latest")
on 2 "$hebb" train "$work/run.json" --run-dir "$work/cut" train.steps=$((last + 1)) > "$work/other.out" 2> "$work/other.err"
grep -q "resuming after step $last" "$work/other.out"
echo "the other host goes on once the lock is removed"
