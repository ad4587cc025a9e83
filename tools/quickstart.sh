#!/usr/bin/env bash
# From a fresh checkout to a trained, evaluated model that writes text: installs what is missing,
# builds, prepares a small corpus, trains configs/quickstart.json, shows the loss, evaluates, samples.
# Usage: tools/quickstart.sh [--text FILE] [--steps N] [--cuda on|off|auto] [--fresh]
#   --text FILE  train on this UTF-8 text (documents separated by blank lines)
#   --steps N    optimizer steps (default 300: two to five minutes on two cores)
#   --cuda X     compile the CUDA kernels (default auto: where a GPU is usable; they take longer than all the rest)
#   --fresh      start over: removes the folder quickstart/
set -euo pipefail
cd "$(dirname "$0")/.."
text="" steps=300 cuda=auto fresh=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --text | --steps | --cuda)
      [[ $# -ge 2 ]] || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }
      case $1 in
        --text) text=$(realpath "$2") ;;
        --steps) steps=$2 ;;
        --cuda) cuda=$2 ;;
      esac
      shift 2 ;;
    --fresh) fresh=1; shift ;;
    *) echo "quickstart.sh: unknown option $1 (known: --text --steps --cuda --fresh)" >&2; exit 2 ;;
  esac
done
chosen=$cuda
case $cuda in
  on | off) cuda=${cuda^^} ;;
  auto) if nvidia-smi >/dev/null 2>&1; then cuda=AUTO; else cuda=OFF; fi ;;
  *) echo "quickstart.sh: --cuda $cuda, expected on, off or auto" >&2; exit 2 ;;
esac
bold="" plain="" begun=$SECONDS
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\033[1m' plain=$'\033[0m'; fi
# A headline, behind the time that the step before it took.
say() {
  [[ $1 == 1/* ]] || echo "($((SECONDS - begun)) s)"
  begun=$SECONDS
  printf '\n%s%s%s\n' "$bold" "$*" "$plain"
}

say "1/7 Packages"
if [[ -n $text ]]; then tools/setup.sh; else tools/setup.sh --text || tools/setup.sh; fi

say "2/7 Build"
# A build that is there keeps its choice: another one would compile everything again.
[[ $chosen != auto || ! -f build/CMakeCache.txt ]] || cuda=$(sed -n 's/^HEBB_CUDA:[A-Z]*=//p' build/CMakeCache.txt)
[[ $cuda != OFF ]] || echo "without CUDA kernels (--cuda on compiles them)"
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA="$cuda" >build.log 2>&1 || { cat build.log >&2; exit 1; }
cmake --build build --target hebb
rm -f build.log
hebb=build/hebb

work=quickstart
[[ $fresh -eq 0 ]] || rm -rf "$work"
mkdir -p "$work"
say "3/7 Text"
if [[ -n $text ]]; then
  echo "using $text"
  if [[ -f $work/corpus/dataset.json ]] && ! cmp -s "$text" "$work/text.txt"; then
    echo "quickstart.sh: $work/ holds the tokens of another text; --fresh removes it" >&2
    exit 2
  fi
  cp "$text" "$work/text.txt"
elif command -v bible >/dev/null; then
  # One document per chapter: "Ge1:2 And the earth ..." becomes "And the earth ...", a blank line
  # stands between chapters.
  bible -f gen1:1-rev22:21 | awk '{ split($1, place, ":"); if (place[1] != chapter && NR > 1) print ""; chapter = place[1];
                                    sub(/^[^ ]+ /, ""); print }' >"$work/text.txt"
  echo "the King James Bible (public domain), from the package bible-kjv-text"
else
  echo "no text at hand (no --text FILE, and the package bible-kjv cannot be installed): using the built-in synthetic corpus"
  $hebb data synth --documents 4000 --seed 0 --out "$work/text.jsonl"
fi
input=$work/text.txt split=(--split $'\n\n')
[[ -f $input ]] || { input=$work/text.jsonl; split=(); }

say "4/7 Tokenizer and token shards"
if [[ ! -f $work/corpus/dataset.json ]]; then
  $hebb tokenizer train "$input" "${split[@]}" --vocab-size 2048 --out "$work/tokenizer.model" --overwrite
  $hebb data encode "$input" "${split[@]}" --tokenizer "$work/tokenizer.model" --val-fraction 0.05 --out "$work/corpus"
fi
$hebb data inspect "$work/corpus"

say "5/7 Training (Ctrl-C saves; run this again to go on)"
$hebb train configs/quickstart.json "train.steps=$steps" --run-dir "$work/run"

say "6/7 What it learned"
$hebb report "$work/run" -o "$work/report"
$hebb eval configs/quickstart-eval.json --checkpoint "$work/run"

say "7/7 A sample"
$hebb generate "$work/run" --prompt "And it came to pass" --max-new-tokens 80 --temperature 0.8 --top-k 40 --seed 1

say "Done. Everything lies in $work/: run/ (checkpoints, metrics.jsonl, TensorBoard events), report/index.html (loss curves),"
echo "corpus/ (token shards), tokenizer.model. Next: docs/ explains each verb; try"
echo "  build/hebb generate $work/run --prompt 'In the beginning'"
echo "  build/hebb plan configs/quickstart.json"
