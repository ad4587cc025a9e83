#!/usr/bin/env bash
# Two ranks on two hosts, which are network namespaces with host names of their own, joined by a cable (cable.py): the same bytes
# as on one host, also over a slow line that loses packets and over one that is cut for a while; where it stays cut, every
# process ends, and the other host takes the lock over.
# Usage: two_hosts.sh HEBB. Exits with 77 where namespaces are not permitted or mpirun is missing.
set -euo pipefail
hebb=$(realpath "$1")
skip() {
  echo "skipped: $1"
  exit 77
}
for program in ip mpirun unshare python3; do command -v "$program" >/dev/null || skip "no $program"; done
[[ -e $(dirname "$hebb")/libhebb_mpi.so ]] || skip "this build is without MPI"
id=$$
a=hebb-a-$id b=hebb-b-$id
ip netns add "$a" 2>/dev/null || skip "no permission to make network namespaces"
work=$(mktemp -d /tmp/hebb-hosts-XXXXXX)
# Ends what runs on either host.
kill_all() {
  for name in "$a" "$b"; do
    for pid in $(ip netns pids "$name" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
  done
}
end() {
  local code=$?
  [[ -z ${line_pid:-} ]] || kill "$line_pid" 2>/dev/null || true
  kill_all
  for name in "$a" "$b"; do ip netns del "$name" 2>/dev/null || true; done
  rm -rf "$work"
  exit $code
}
trap end EXIT
trap 'echo "line $LINENO: $BASH_COMMAND" >&2; tail -n 5 "$work"/*.err >&2 || true' ERR
ip netns add "$b"
ip -n "$a" tuntap add dev probe mode tun 2>/dev/null || skip "no TUN devices"
ip -n "$a" tuntap del dev probe mode tun
coproc line { exec python3 "$(dirname "$0")/cable.py" "$a" "$b" 2> "$work/cable.err"; }
line_pid=$!
read -r answer <&"${line[0]}"
n=1
for name in "$a" "$b"; do
  ip -n "$name" addr add "10.77.0.$n/24" dev eth0
  ip -n "$name" link set lo up
  ip -n "$name" link set eth0 up
  n=$((n + 1))
done
# Tells the cable what to do; `answer` is how many packets it has carried and lost so far.
cable() {
  echo "$*" >&"${line[1]}"
  read -r answer <&"${line[0]}"
}

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
# Waits until a run has done so many steps; false where it has ended before.
await() {
  while ! grep -q "step $2/" "$work/$1.out" 2>/dev/null; do
    if ! kill -0 $! 2>/dev/null; then
      grep -q "step $2/" "$work/$1.out"
      return
    fi
    sleep 0.1
  done
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
           "comm": {"lost_seconds": 600, "init_seconds": 600}},
 "optimizer": {"lr": 3e-3}}
END

"$hebb" train "$work/run.json" --run-dir "$work/one" > "$work/one.out" 2> "$work/one.err"
train_on_both two
grep -q "host1:" "$work/two.out" && grep -q "host2:" "$work/two.out"
[[ $(weights two) == $(weights one) ]]
echo "two hosts: the bytes of one"

# A run on a host, which the other must leave alone.
on 1 "$hebb" train "$work/run.json" --run-dir "$work/held" train.steps=1000000 train.checkpoint.every=1000000 \
  > "$work/held.out" 2> "$work/held.err" & holder=$!
await held 1

cable delay 40 10 0.02
SECONDS=0
train_on_both slow
cable delay 20 0 0
[[ $(weights slow) == $(weights one) ]]
[[ $(cut -d' ' -f3 <<< "$answer") -gt 0 ]]
echo "30 to 50 ms of delay and 2 % of loss: the same bytes after $SECONDS s ($answer)"

code=0
on 2 "$hebb" train "$work/run.json" --run-dir "$work/held" > "$work/other.out" 2> "$work/other.err" || code=$?
[[ $code == 4 ]]
grep -q "in use by process [0-9]* on host1, which touches the lock" "$work/other.err"
kill_all
wait "$holder" 2>/dev/null || true
echo "a run that lives on the other host is left alone"

for delay in 20 80 320 1280; do # a slower line where the run came to its end before the cut
  cable delay $delay 0 0
  run=gap$delay
  train_on_both $run & launcher=$!
  await $run 5
  cable cut
  sleep 5
  [[ -e $work/$run/checkpoints/step_00000020 ]] || break
  cable join
  wait $launcher
done
[[ ! -e $work/$run/checkpoints/step_00000020 ]]
cable join
wait $launcher
cable delay 0 0 0
[[ $(weights $run) == $(weights one) ]]
echo "a cut of 5 s: the same bytes"

ranks() { pgrep -f "^$hebb train $work/run.json --run-dir $work/$run " || true; }
for lost in 10 40 160; do # a longer limit where a rank got no processor for so long
  run=cut$lost
  train_on_both $run train.steps=1000000 train.comm.lost_seconds=$lost & launcher=$!
  if await $run 9 && [[ $(ranks | wc -l) == 2 ]]; then break; fi
done
cable cut
SECONDS=0
while [[ -n $(ranks) ]]; do
  sleep 0.1
done
grep -q "rank 1 (host2:[0-9]*): lost: no heartbeat for $lost s" "$work/$run.err"
echo "the cable stays cut: every process has ended after $SECONDS s"
kill_all # mpirun and its daemon
wait $launcher 2>/dev/null || true
last=$(sed 's/step_0*//' "$work/$run/checkpoints/latest")
SECONDS=0
on 2 "$hebb" train "$work/run.json" --run-dir "$work/$run" train.steps=$((last + 1)) > "$work/other.out" 2> "$work/other.err"
grep -q "in use by process [0-9]* on host1: its lock is taken over if it does not change for 60 s" "$work/other.out"
grep -q "took over the lock that process [0-9]* on host1 left behind" "$work/other.out"
grep -q "resuming after step $last" "$work/other.out"
echo "the other host takes the lock over and goes on, after $SECONDS s"
