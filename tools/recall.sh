#!/usr/bin/env bash
# Trains a sliding-window model of 4 blocks, and hybrids of it with every memory layer, on associative recall
# (configs/recall), and prints the share of right answers to queries that lie farther from their pair than the
# windows of all blocks reach together; of fwpkm also the share after a second and a third reading of the same row.
# A model with a configuration MODEL-first.json is trained with that before, and goes on from its weights.
# docs/recall.md holds the results of a run.
# Usage: tools/recall.sh [MODEL ...]      e.g. tools/recall.sh swa gdn sdm; default: all. Minutes each on 2 cores.
# HEBB=build/hebb  OUT=runs/recall  OVERRIDES="train.steps=500" (whitespace separated)
set -euo pipefail
cd "$(dirname "$0")/.."
hebb=${HEBB:-build/hebb} out=${OUT:-runs/recall}
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(swa gdn sdm ham ovq kvm lact fwpkm vq mamba2 mesanet)
mkdir -p "$out"
train() { # NAME OPTIONS...
  local name=$1
  shift
  # shellcheck disable=SC2086 # overrides are words
  "$hebb" train "configs/recall/$name.json" --run-dir "$out/$name" "$@" ${OVERRIDES:-} >"$out/$name.log" 2>&1 ||
    { echo "recall.sh: training of $name failed; see $out/$name.log" >&2; exit 1; }
}
for model in "${models[@]}"; do
  weights=()
  if [ -e "configs/recall/$model-first.json" ]; then
    train "$model-first"
    weights=(--init-from "$out/$model-first")
  fi
  train "$model" "${weights[@]}"
  evaluate() { "$hebb" eval "configs/recall/$1.json" --checkpoint "$out/$model" --out "$out/$model/recall" >>"$out/$model.log" 2>&1; }
  accuracy() { sed -n '/"accuracy"/,/}/s/.*"value": *\([0-9.e+-]*\).*/\1/p' "$out/$model/recall/$1.json" | head -1; }
  evaluate eval
  printf '%-10s all queries %s   far queries %s' "$model" "$(accuracy near-and-far)" "$(accuracy far)"
  if [ "$model" = fwpkm ]; then # its fast weights stay from one reading of a row to the next
    evaluate second-reading
    printf '   read twice %s, three times %s' "$(accuracy twice)" "$(accuracy three-times)"
  fi
  echo
done
