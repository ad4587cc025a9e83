#!/usr/bin/env bash
# The models that have targets of speed (docs/design/gpu-kernels.md): training steps in bf16 on one GPU, each in a process of its own, beside what they
# must and should reach on an H200.
# Usage: tools/gpu_targets.sh [HEBB]        HEBB: the program (default: build/hebb)    MEASURED=10  measured steps
#        MODEL_SECONDS=40  after which a model is given up
# Exit code 1: a model was not measured, or on an H200 one does not fit or misses what it must reach.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
hebb=${1:-build/hebb}
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
failed=0 gdn=""
printf '%s\n\n| model | rows x tokens | tokens/s, median | must | goal | |\n|---|---|---|---|---|---|\n' "${gpu:-no GPU}; must and goal are for an H200"

# target NAME CONFIG ROWS LENGTH MUST GOAL [RECOMPUTE]: thousands of tokens a second
target() {
  local name=$1 line speed verdict=met
  line=$(timeout -k 5 "${MODEL_SECONDS:-40}" "$hebb" bench "$2" --device cuda --precision bf16 --rows "$3" --length "$4" --warmup 3 --steps "${MEASURED:-10}" --recompute "${7:-none}" 2>&1)
  [ $? != 124 ] || line="its ${MODEL_SECONDS:-40} s were over"
  speed=$(sed -n 's/.*best, *\([0-9,]*\) median.*/\1/p' <<<"$line" | tr -d ,)
  if [ -z "$speed" ]; then
    printf '| %s | %s x %s | not measured: %s | %s,000 | %s,000 | |\n' "$name" "$3" "$4" "$(tail -1 <<<"$line" | cut -c1-150)" "$5" "$6"
    [[ $gpu != *H200* && $line == *"does not fit"* ]] || failed=1
    return
  fi
  [ "$speed" -ge $(($6 * 1000)) ] && verdict="goal met"
  [ "$speed" -ge $(($5 * 1000)) ] || { verdict=missed; [[ $gpu == *H200* ]] && failed=1; }
  printf '| %s | %s x %s | %s | %s,000 | %s,000 | %s |\n' "$name" "$3" "$4" "$speed" "$5" "$6" "$verdict"
  last=$speed
}
target "GDN 112M" configs/fwpkm/gdn.json 8 4096 330 500
gdn=${last:-}
last=""
# Against the model without memories: 0.70 of it, at best 0.85.
if [ -n "$gdn" ]; then
  target "GDN 112M + 3 FwPKM" configs/fwpkm/gdn-fwpkm.json 8 4096 $((gdn * 70 / 100000)) $((gdn * 85 / 100000))
fi
target "hybrid 340M" configs/targets/hybrid-340m.json 16 4096 110 160
target "transformer 340M" configs/targets/transformer-340m.json 16 4096 110 155
target "SDM ladder 8, GDN" configs/sdm/L08-gdn.json 4 8192 50 66
target "SDM ladder 8, SDM" configs/sdm/L08-sdm.json 4 8192 32 52 ffn
target "SDM ladder 8, full attention" configs/sdm/L08-full.json 4 8192 46 62
exit $failed
