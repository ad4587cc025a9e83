#!/usr/bin/env bash
# From a fresh checkout to a trained, evaluated model that writes text: installs what is missing,
# builds, prepares a small corpus, trains configs/quickstart.json, shows the loss, evaluates, samples.
# Usage: tools/quickstart.sh [--text PATH] [--steps N] [--cuda on|off|auto] [--hebb FILE] [--fresh]
#   --text PATH  train on this UTF-8 text of 2 KB or more: a file, or a folder of files
#   --steps N    optimizer steps (default 300)
#   --cuda X     compile the CUDA kernels (default auto: where a GPU is usable; they take longer than all the rest)
#   --hebb FILE  this program in place of one that is built here
#   --fresh      start over: removes the folder quickstart/
set -euo pipefail
text="" steps=300 cuda=auto hebb="" fresh=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --text | --steps | --cuda | --hebb)
      [[ $# -ge 2 ]] || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }
      case $1 in
        --text) text=$(realpath -- "$2") ;;
        --steps) steps=$2 ;;
        --cuda) cuda=$2 ;;
        --hebb) hebb=$(realpath -- "$2") ;;
      esac
      shift 2 ;;
    --fresh) fresh=1; shift ;;
    *) echo "quickstart.sh: unknown option $1 (known: --text --steps --cuda --hebb --fresh)" >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."
chosen=$cuda
case $cuda in
  on | off) cuda=${cuda^^} ;;
  auto) if nvidia-smi >/dev/null 2>&1; then cuda=AUTO; else cuda=OFF; fi ;;
  *) echo "quickstart.sh: --cuda $cuda, expected on, off or auto" >&2; exit 2 ;;
esac
if [[ -n $text && ! -e $text ]]; then echo "quickstart.sh: --text $text: no such file or folder" >&2; exit 2; fi
bold="" plain="" begun=$SECONDS
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\033[1m' plain=$'\033[0m'; fi
# A headline, behind the time that the step before it took.
say() {
  [[ $1 == 1/* ]] || echo "($((SECONDS - begun)) s)"
  begun=$SECONDS
  printf '\n%s%s%s\n' "$bold" "$*" "$plain"
}

cat <<END
What follows, on two cores that have nothing else to do (busy or slower ones take several times as long):
  1 packages    seconds where all are there, a few minutes where they are fetched
  2 build       5 to 15 minutes the first time, seconds later
  3-4 text, tokenizer, token shards    seconds for some MB
  5 training    about a second a step with 256 tokens a row: 300 steps are 2 to 6 minutes
  6-7 loss curves, evaluation, a sample    less than a minute
Ctrl-C ends any step; the script goes on where it stopped when it is started again.
END

say "1/7 Packages"
if [[ -n $hebb ]]; then
  echo "none: $hebb is used"
elif [[ -n $text ]]; then
  tools/setup.sh
else
  tools/setup.sh --text || tools/setup.sh
fi

say "2/7 Build"
if [[ -n $hebb ]]; then
  echo "none: $hebb is used"
else
  # A build that is there keeps its choice: another one would compile everything again.
  [[ $chosen != auto || ! -f build/CMakeCache.txt ]] || cuda=$(sed -n 's/^HEBB_CUDA:[A-Z]*=//p' build/CMakeCache.txt)
  [[ $cuda != OFF ]] || echo "without CUDA kernels (--cuda on compiles them)"
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA="$cuda" >build.log 2>&1 || { cat build.log >&2; exit 1; }
  cmake --build build --target hebb
  rm -f build.log
  hebb=build/hebb
fi

work=quickstart
[[ $fresh -eq 0 ]] || rm -rf "$work"
mkdir -p "$work"
say "3/7 Text"
# Documents of some thousand bytes, with a form feed between them: a text ends one at a blank line from 4,000 bytes on, at
# any line from 8,000 on. CR LF becomes LF.
documents() {
  LC_ALL=C awk 'FNR == 1 && NR > 1 { print "\f"; size = 0 }
    { sub(/\r$/, ""); gsub(/\f/, " "); print; size += length($0) + 1 }
    (size > 4000 && $0 == "") || size > 8000 { print "\f"; size = 0 }' "$@"
}
split=(--split $'\n\f\n') new=$work/text.new prompt="" held_out=()
case $text in
  "")
    if command -v bible >/dev/null; then
      # One document per chapter: "Ge1:2 And the earth ..." becomes "And the earth ...".
      bible -f gen1:1-rev22:21 | awk '{ split($1, place, ":"); if (place[1] != chapter && NR > 1) print "\f"; chapter = place[1];
                                        sub(/^[^ ]+ /, ""); print }' >"$new"
      echo "the King James Bible (public domain), from the package bible-kjv-text"
      prompt="And it came to pass" held_out=(--val-fraction 0.05)
    else
      echo "no text at hand (no --text PATH, and the package bible-kjv is not installed): the built-in synthetic corpus"
      "$hebb" data synth --documents 4000 --seed 0 --out "$new"
      split=(--format jsonl) prompt="The number of"
    fi ;;
  *.jsonl | *.ndjson | *.json | *.jsonl.gz | *.jsonl.zst)
    echo "using the lines of $text"
    cp -- "$text" "$new"
    split=(--format jsonl) prompt="The" ;;
  *)
    echo "using $text"
    files=("$text")
    if [[ -d $text ]]; then
      mapfile -d '' files < <(find "$text" -type f -not -path "$text/*/.*" -not -path "$text/.*" -print0 | LC_ALL=C sort -z)
      [[ ${#files[@]} -gt 0 ]] || { echo "quickstart.sh: --text $text: no files in this folder" >&2; exit 2; }
    fi
    documents "${files[@]}" >"$new"
    grep -q $'\f' "$new" || split=()
    # The first words of the text, whole characters of it.
    prompt=$({ grep -m 1 '[^[:space:]]' "$new" || true; } | head -c 40 | iconv -c -f UTF-8 -t UTF-8 2>/dev/null || true)
    [[ $prompt != ?*" "* ]] || prompt=${prompt% *} ;;
esac
bytes=$(wc -c <"$new")
if [[ $bytes -lt 2000 ]]; then
  echo "quickstart.sh: the text has $bytes bytes, expected 2,000 or more" >&2
  exit 2
fi
if [[ -f $work/corpus/dataset.json ]] && ! cmp -s "$new" "$work/text"; then
  echo "quickstart.sh: $work/ holds the tokens of another text; --fresh removes it" >&2
  exit 2
fi
mv "$new" "$work/text"

say "4/7 Tokenizer and token shards"
# A token needs some hundred bytes of text to be learned from; below 400 tokens single bytes do as well.
tokenizer=bytes vocab=$((260 + bytes / 100))
[[ $vocab -le 2048 ]] || vocab=2048
if [[ ${#held_out[@]} -eq 0 ]]; then
  held_out=(--val-tokens 0.05)
  [[ $bytes -ge 100000 ]] || held_out=(--val-tokens 0.1)
fi
if [[ ! -f $work/corpus/dataset.json ]]; then
  if [[ $vocab -ge 400 ]]; then
    if "$hebb" tokenizer train "$work/text" "${split[@]}" --vocab-size "$vocab" --fit-vocab --out "$work/tokenizer.model" --overwrite; then
      tokenizer=$work/tokenizer.model
    else
      echo "no tokenizer could be trained on this text: its bytes are the tokens"
    fi
  fi
  "$hebb" data encode "$work/text" "${split[@]}" --tokenizer "$tokenizer" "${held_out[@]}" --out "$work/corpus"
fi
"$hebb" data inspect "$work/corpus"
# What the configuration takes from the text: the vocabulary, a row that fits into the validation part at least twice, and
# a length for the loss by position that half of its documents have.
vocab=$(sed -n 's/^  "vocab_size": \([0-9]*\),$/\1/p' "$work/corpus/dataset.json")
held=$("$hebb" data inspect "$work/corpus/val_*.bin")
held_tokens=$(sed -n 's/^  tokens: //p' <<<"$held" | head -n 1)
median=$(sed -n 's/.*median \([0-9]*\),.*/\1/p' <<<"$held" | head -n 1)
row=256 length=512
while [[ $((2 * row + 1)) -gt $held_tokens && $row -gt 16 ]]; do row=$((row / 2)); done
while [[ $length -gt $median && $length -gt 16 ]]; do length=$((length / 2)); done
cat >"$work/config.json" <<END
{
  "extends": "../configs/quickstart.json",
  "model": {"vocab_size": $vocab},
  "train": {"steps": $steps, "sequence_length": $row}
}
END
cat >"$work/eval.json" <<END
{
  "evaluations": [
    {"name": "held-out", "kind": "stream_ppl", "data": {"path": "corpus"}, "max_tokens": 50000},
    {"name": "by-position", "kind": "position_ppl", "data": {"path": "corpus"}, "length": $length, "max_documents": 40}
  ]
}
END

say "5/7 Training (Ctrl-C saves; run this again to go on)"
"$hebb" train "$work/config.json" --run-dir "$work/run"

say "6/7 What it learned"
"$hebb" report "$work/run" -o "$work/report"
"$hebb" eval "$work/eval.json" --checkpoint "$work/run" || echo "quickstart.sh: not every evaluation is done; see above" >&2

say "7/7 A sample"
"$hebb" generate "$work/run" --prompt "$prompt" --max-new-tokens 80 --temperature 0.8 --top-k 40 --seed 1

say "Done. Everything lies in $work/: run/ (checkpoints, metrics.jsonl, TensorBoard events), report/index.html (loss curves),"
echo "corpus/ (token shards), config.json, eval.json. Next: docs/ explains each verb; try"
printf '  %s generate %s --prompt %q\n' "$hebb" "$work/run" "$prompt"
echo "  $hebb plan $work/config.json"
