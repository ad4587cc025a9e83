#!/usr/bin/env python3
"""Reference of evaluations: lm-evaluation-harness (pip install "lm_eval[hf]==0.4.13") on invented rows.

  lm_eval_tasks.py golden FOLDER     what tests/golden/lm-eval holds

Generated tasks (triviaqa, nq_open, gsm8k): a scripted model gives prepared texts; kept are the prompts that the harness
makes and its scores. race: the texts that it scores. Likelihoods (choice, cloze, rolling): a small random Llama in
float64 with a byte-level BPE tokenizer; kept are the model, the texts and their log-likelihoods."""
import json
import sys
import tempfile
from pathlib import Path

import lm_eval
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

YAML = {"triviaqa": "triviaqa/default", "nq_open": "nq_open/nq_open", "gsm8k": "gsm8k/gsm8k", "race": "race/race"}
TRIVIAQA = [
    ("Which tower stands on the hill", ["The Old Tower", "Old Tower"]),
    ("Who keeps the lamp", ["Ada", "ADA L"]),
    ("What grows there", ["École d'été", "Apple-Tree"]),
    ("Which day is it", ["New Year's Day"]),
    ("What is on the roof", ["a  flag", " pole"]),
    ("Which mark", ["!"]),
]
TRIVIAQA_TEXTS = [[" Old Tower", " the old tower!", " The Tower", " old  tower", " An Old Tower"],
                  ["ADA", "Ada-L", " ada l ", "The Ada"],
                  ["école dété", "appletree", "apple tree", "ECOLE d'été"],
                  ["new years day", "New Year’s Day", "the New Year's Day"],
                  ["a flag", "a  flag", "pole", " pole", "flag"],
                  ["", " ", "?", "x"]]
NQ = [
    ("who carries the letters", ["The Miller", "Miller and Son"]),
    ("when does the gate open", ["14 May", "May 14"]),
    ("what is in the box", ["A bell", "An old bell"]),
]
NQ_TEXTS = [[" Miller", " the miller", " The The Miller", " THE Miller", " miller and the son", "a Miller", "(the miller)"],
            ["the 14 May", "14 may", "may 14!", "AN 14 May", "14 a May", "é the 14 May", "éthe 14 May"],
            ["bell", "A bell", "an Old bell", "The a bell", "A  bell", "_A bell", "-A bell", "old bell"]]
GSM8K = [
    ("Ada has 3 pens and buys 15. How many has she", "3 + 15 = <<3+15=18>>18\n#### 18"),
    ("What do 1,200 and 34 make", "They make 1,234.\n#### 1,234"),
    ("How cold is it", "It falls by 5.\n#### -5"),
]
GSM8K_TEXTS = [[" It is 18.\n#### 18", "#### $18", "#### 18.", "so 18", "#### 18 or #### 19", "####18", "$18.00", "18 - 3 =",
                "#### 1 8", "18.", "#### .", "...", "-18", "#### 18,", "no number", ""],
               ["#### 1234", "#### 1,234", "#### $1,234.", "1234 apples", "$1,234.", "1.234", "#### 1234.0"],
               ["#### -5", "-5", "#### - 5", "it is -5 degrees", "--5", "#### 5", "it is 5"]]
RACE = [{"article": "The river rose in spring. Nobody crossed it.",
         "problems": [{"question": "Who crossed the river?", "answer": "B", "options": ["All", "Nobody", "Ada", "Both"]},
                      {"question": "The river rose in  _  .", "answer": "C", "options": ["autumn", "winter", "spring", "May"]},
                      {"question": "It was _ .", "answer": "A", "options": ["high", "low", "dry", "far"]},
                      {"question": "What is the text about?", "answer": "D", "options": ["pens", "bells", "snow", "a river"]}]},
        {"article": "One bell.", "problems": [{"question": "It has  _  .", "answer": "A", "options": ["one", "two", "no", "ten"]}]}]
TEXTS = ["The river rose in spring and the old mill stood still. ", "Ada rang the bell. ", "Nobody crossed it, not even the miller's son. ",
         "The letters came late in the winter. "]


class Scripted(LM):
    """Gives the texts of a list in order and keeps the requests."""

    def __init__(self, texts):
        super().__init__()
        self.texts, self.prompts, self.until = texts, [], None

    def generate_until(self, requests, disable_tqdm=False):
        self.prompts = [r.args[0] for r in requests]
        self.until = requests[0].args[1]["until"]
        return self.texts

    def loglikelihood(self, requests, disable_tqdm=False):
        self.prompts = [list(r.args) for r in requests]
        return [(0.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def run(task, lm, rows_file, shots, **more):
    """The harness's own task on other rows."""
    own = next((Path(lm_eval.__file__).parent / "tasks").glob(YAML[task] + ".yaml"))
    config = {"include": str(own), "task": task, "dataset_path": "json", "dataset_name": None,
              "dataset_kwargs": {"data_files": {part: rows_file for part in ("train", "validation", "test")}}, **more}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.yaml"
        file.write_text(json.dumps(config))
        return simple_evaluate(model=lm, tasks=[str(file)], num_fewshot=shots, log_samples=True,
                               task_manager=TaskManager(), bootstrap_iters=0, verbosity="ERROR")


def generated(folder, task, rows, texts, shots, filters):
    """Prompts of one pass over the rows, and the scores of every text."""
    file = write_rows(folder / (task + ".jsonl"), rows)
    out = {"shots": shots, "prompts": None, "until": None, "texts": texts, "scores": {f: [] for f in filters}}
    for k in range(max(map(len, texts))):
        lm = Scripted([t[min(k, len(t) - 1)] for t in texts])
        result = run(task, lm, file, shots, fewshot_config={"sampler": "first_n"})
        out["prompts"], out["until"] = lm.prompts, lm.until
        for f in filters:
            scores = {s["doc_id"]: s["exact_match"] for s in result["samples"][task] if s["filter"] == f}
            out["scores"][f].append([scores[i] for i in range(len(rows))])
    for f in filters:  # by row, then by text
        out["scores"][f] = [[out["scores"][f][k][i] for k in range(len(texts[i]))] for i in range(len(rows))]
    return out


def race(folder):
    file = write_rows(folder / "race-harness.jsonl", [{"article": r["article"], "problems": repr(r["problems"])} for r in RACE])
    lm = Scripted([])
    result = run("race", lm, file, 0)
    (folder / "race-harness.jsonl").unlink()
    write_rows(folder / "race.jsonl",
               [{"article": r["article"], "questions": [p["question"] for p in r["problems"]],
                 "options": [p["options"] for p in r["problems"]], "answers": [p["answer"] for p in r["problems"]]} for r in RACE])
    samples = sorted(result["samples"]["race"], key=lambda s: s["doc_id"])
    return {"pairs": lm.prompts, "gold": [s["target"] for s in samples]}


def model(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                       special_tokens=["<eos>"], show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True,
                         initializer_range=0.5, bos_token_id=None, eos_token_id=0)
    net = LlamaForCausalLM(config)
    net.save_pretrained(folder / "model")
    fast.save_pretrained(folder / "model")
    for name in ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / "model" / name).unlink(missing_ok=True)
    net = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    return lambda length: HFLM(pretrained=net, tokenizer=fast, max_length=length, batch_size=1, dtype="float64", device="cpu")


def likelihoods(folder):
    lm_of = model(folder)
    out = {"rolling": [], "pairs": []}
    whole = "".join(TEXTS * 2)
    texts = ["A", "The river rose", whole[:60], whole[:97], whole]
    for length in (8, 16, 64):
        lm = lm_of(length)
        requests = [Instance("loglikelihood_rolling", {}, (t,), i) for i, t in enumerate(texts)]
        for text, ll in zip(texts, lm.loglikelihood_rolling(requests, disable_tqdm=True)):
            out["rolling"].append({"max_length": length, "text": text, "tokens": len(lm.tok_encode(text)), "ll": ll})
    lm = lm_of(24)
    pairs = [("The river", " rose"), ("Ada rang the ", "bell"), ("", "The letters"), ("The old mill \n", " stood"),
             (whole, " bell"), (whole, " the miller's son"), ("The r", "iver rose"), ("Nobody cr", "ossed it"), ("The river ros", "e"), ("Ada rang the b", "ell")]
    for context, continuation in pairs:
        try:
            (ll, greedy), = lm.loglikelihood([Instance("loglikelihood", {}, (context, continuation), 0)], disable_tqdm=True)
        except AssertionError:  # the continuation is a part of the context's last token
            ll, greedy = None, None
        out["pairs"].append({"max_length": 24, "context": context, "continuation": continuation, "ll": ll, "greedy": greedy})
    return out


def golden(folder):
    folder.mkdir(exist_ok=True)
    rows = {"triviaqa": [{"question": q, "answer": {"aliases": a}} for q, a in TRIVIAQA],
            "nq_open": [{"question": q, "answer": a} for q, a in NQ],
            "gsm8k": [{"question": q, "answer": a} for q, a in GSM8K]}
    answers = {"triviaqa": generated(folder, "triviaqa", rows["triviaqa"], TRIVIAQA_TEXTS, 2, ["remove_whitespace"]),
               "nq_open": generated(folder, "nq_open", rows["nq_open"], NQ_TEXTS, 2, ["remove_whitespace"]),
               "nq_open-0": generated(folder, "nq_open", rows["nq_open"], [[""]] * len(NQ), 0, ["remove_whitespace"]),
               "gsm8k": generated(folder, "gsm8k", rows["gsm8k"], GSM8K_TEXTS, 2, ["strict-match", "flexible-extract"]),
               "race": race(folder)}
    (folder / "answers.json").write_text(json.dumps(answers, ensure_ascii=False, indent=1) + "\n")
    (folder / "likelihoods.json").write_text(json.dumps(likelihoods(folder), ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "golden":
        sys.exit(__doc__)
    golden(Path(sys.argv[2]))
