#!/usr/bin/env python3
"""tools/records.py: the records of each data set, the files that it refuses, and the golden rows of lm-evaluation-harness.

check_records.py SOURCE
"""
import json
import os
import subprocess
import sys
import tempfile

SOURCE = os.path.abspath(sys.argv[1])
folder = tempfile.TemporaryDirectory()


def write(name, text):
    path = os.path.join(folder.name, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return path


def run(*arguments):
    return subprocess.run([sys.executable, os.path.join(SOURCE, "tools/records.py"), *arguments], capture_output=True, text=True, cwd=folder.name)


def records(name, text, file="raw.jsonl", *options):
    write(file, text) if text is not None else None
    done = run(name, file, "-", *options)
    assert done.returncode == 0, (name, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(name, text, *expected, file="raw.jsonl", options=()):
    found = records(name, text, file, *options)
    assert found == list(expected), (name, found, expected)


def error(name, text, says, file="raw.jsonl", options=()):
    write(file, text) if text is not None else None
    done = run(name, file, "out.jsonl", *options)
    assert done.returncode == 3 and says in done.stderr, (name, says, done)
    assert not os.path.exists(os.path.join(folder.name, "out.jsonl")), name


# hellaswag: marks go, also those that an ending alone has; the second half is capitalised as Python does it.
check("hellaswag", r"""{"activity_label": "Removing ice", "ctx_a": " A man  [title] sits. [step] He", "ctx_b": "then Starts", "ctx": "unused",
"endings": ["pulls [substeps] it off.", " waits [title] Then goes ", "a[b", "d] e"], "label": 3}""",
      {"context": "Removing ice: A man . sits. He Then starts", "choices": ["pulls it off.", "waits. Then goes", "a[b", "d] e"], "gold": 3})
ROW = '{"activity_label": "A", "ctx_a": "b", "ctx_b": "", "endings": ["c", "d"], "label": '
check("hellaswag", ROW + '"1"}', {"context": "A: b", "choices": ["c", "d"], "gold": 1})
assert records("hellaswag", ROW.replace('""', '"éTÉ À Nice"') + "0}")[0]["context"] == "A: b Été à nice"
error("hellaswag", ROW + "0}\n" + ROW + '""}', 'raw.jsonl:2: label: found "", expected an index from 0 to 1')
error("hellaswag", ROW + "2}", "raw.jsonl:1: label: found 2, expected an index from 0 to 1")
error("hellaswag", '{"ctx_a": "b"}', ":1: endings: found nothing, expected a list of strings")
error("hellaswag", ROW.replace('["c", "d"]', '["c", 1]') + "0}", 'endings: found ["c", 1], expected a list of strings')

# piqa: labels stand in the rows or in a file beside them.
TWO = '{"goal": "g", "sol1": "a", "sol2": "b"}\n{"goal": "h", "sol1": "c", "sol2": "d"}\n'
write("raw-labels.lst", "1\n0\n")
check("piqa", TWO, {"context": "Question: g\nAnswer:", "choices": ["a", "b"], "gold": 1},
      {"context": "Question: h\nAnswer:", "choices": ["c", "d"], "gold": 0})
write("raw-labels.lst", "1\n2\n")
error("piqa", TWO, 'raw-labels.lst:2: label: found "2", expected an index from 0 to 1')
write("raw-labels.lst", "1\n0\n1\n")
error("piqa", TWO, "found 3 labels, expected 2")
error("piqa", TWO, "label: found nothing", file="other.jsonl")
error("piqa", '{"goal": "g", "sol1": "", "sol2": "b", "label": 0}', ":1: choices: found an empty text", file="other.jsonl")

# arc, openbookqa and commonsenseqa are read in both of their layouts.
for row in ('{"question": {"stem": "Why?", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]}, "answerKey": "2"}',
            '{"question": "Why?", "question_stem": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}'):
    check("arc", row, {"context": "Question: Why?\nAnswer:", "choices": ["a", "b"], "gold": 1})
    check("openbookqa", row, {"context": "Why?", "choices": ["a", "b"], "gold": 1})
    check("commonsenseqa", row, {"context": "Question: Why?\nA. a\nB. b\nAnswer:", "choices": ["A", "B"], "gold": 1})
FLAT = '{"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"}'
error("arc", FLAT, 'answerKey: found "C", expected a label of the choices')
error("arc", FLAT.replace('["A", "B"]', '["A"]'), "expected as many labels as texts")

check("winogrande", '{"sentence": "Ann saw Eve because _ was late.", "option1": "Ann", "option2": "Eve", "answer": "2"}',
      {"contexts": ["Ann saw Eve because Ann", "Ann saw Eve because Eve"], "continuation": "was late.", "gold": 1})
error("winogrande", '{"sentence": "No gap", "option1": "a", "option2": "b", "answer": "1"}', "expected a sentence with a gap (_)")
error("winogrande", '{"sentence": "A _ .", "option1": "a", "option2": "b", "answer": ""}', 'answer: found "", expected "1" or "2"')
error("winogrande", '{"sentence": "A _", "option1": "a", "option2": "b", "answer": "1"}', "continuation: found an empty text")

check("boolq", '{"question": "is it so", "answer": true, "passage": "P."}\n{"question": "is it so", "passage": "P.", "label": 0}\n',
      *({"context": "P.\nQuestion: is it so?\nAnswer:", "choices": ["no", "yes"], "gold": gold} for gold in (1, 0)))
error("boolq", '{"question": "q", "passage": "P.", "answer": "yes"}', 'answer: found "yes", expected true or false')

# race: earlier questions come with their answers, the last one is asked; rows of one question belong together.
PASSAGE = """{"article": "Text.", "questions": ["Who?", "He is  _  .", "What?"],
 "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"], ["i", "j", "k", "l"]], "answers": ["B", "A", "D"]}"""
write("race/1.txt", PASSAGE)
write("race/high/2.txt", PASSAGE)
check("race", None, *[{"context": "Article: Text.\n\nQuestion: Who?\nAnswer: b\nHe is e\nWhat?", "choices": ["i", "j", "k", "l"], "gold": 3}] * 2, file="race")
check("race", "".join(f'{{"article": "{a}", "question": "{q}", "options": {o}, "answer": "{x}"}}\n' for a, q, o, x in (
    ("Text.", "Who?", '["a", "b"]', "B"), ("Text.", "What?", '["i", "j"]', "A"), ("Other.", "How?", '["k", "l"]', "B"))),
      {"context": "Article: Text.\n\nQuestion: Who?\nAnswer: b\nWhat?", "choices": ["i", "j"], "gold": 0},
      {"context": "Article: Other.\n\nHow?", "choices": ["k", "l"], "gold": 1})
error("race", '{"article": "T", "question": "a", "options": ["a"], "answer": "B"}', "expected a letter of the options")
error("race", '{"article": "T", "questions": ["a", "b"], "options": [["a"]], "answers": ["A", "A"]}', "expected as many questions as answers")

# mmlu: the subject's first questions for development stand in front; the name of its folder is no pattern.
write("m[1]/dev/high_school_physics_dev.csv", 'Q1,a,b,c,d,B\n"Q2, ""quoted""\nand long",1,2,3,4,D\nQ3,x,x,x,x,A\n')
write("m[1]/test/high_school_physics_test.csv", ' Q? ,"e, f",g,h,i,C\r\n\r\nR?,1,2,3,4,A\r\n')
write("m1/test/anatomy_test.csv", "wrong?,a,b,c,d,A\n")
found = records("mmlu", None, "m[1]", "--shots", "2")
assert found[0] == {"context": "The following are multiple choice questions (with answers) about high school physics.\n\n"
                    'Q1\nA. a\nB. b\nC. c\nD. d\nAnswer: B\n\nQ2, "quoted"\nand long\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: D\n\n'
                    "Q?\nA. e, f\nB. g\nC. h\nD. i\nAnswer:", "choices": list("ABCD"), "gold": 2, "group": "high_school_physics"}, found
assert len(found) == 2 and found[1]["gold"] == 0
assert "Q1" not in records("mmlu", None, "m[1]", "--shots", "0")[0]["context"]
error("mmlu", None, "found 3 solved examples, expected at least 5", file="m[1]")
error("mmlu", None, "anatomy_dev.csv: No such file", file="m1")
write("m1/test/anatomy_test.csv", "Q?,a,b,c,d,A\n\nQ?,e,f,g,C\n")
error("mmlu", None, 'anatomy_test.csv:3: found 5 fields, the last one "C"', file="m1", options=("--shots", "0"))
write("m1/test/anatomy_test.csv", 'a,"b')
error("mmlu", None, "anatomy_test.csv:1: unexpected end of data", file="m1", options=("--shots", "0"))

check("lambada", '{"text": "he said to\\nher and left the house"}', {"context": "he said to\nher and left the", "target": " house"})
for text in "word", "two ":
    error("lambada", json.dumps({"text": text}), "expected a text that ends with a space and a word")

# wikitext: words are joined again, counts are those of the page as it was.
PAGE = " = A title = \n \n It ( the \" old \" one ) cost 5 @,@ 000 , or 2 @.@ 5 @-@ fold . \n = = Part = = \n The cats ' \n it 's \n"
check("wikitext", json.dumps({"page": PAGE}),
      {"text": " = A title =\n\nIt (the \"old\" one) cost 5,000, or 2.5-fold.\n== Part ==\nThe cats'it's\n", "words": 36, "bytes": len(PAGE)})
MARKS = "[ a ] { b } ' c ' 20 \u00b0 C ; x : y ! N z ? ( ( n ) m ) ' open"
check("wikitext", json.dumps({"page": MARKS}), {"text": "[a] {b} 'c' 20\u00b0C; x: y! 1 z? (( n) m ) ' open", "words": 28, "bytes": len(MARKS) + 1})
pages = records("wikitext", " \n = One = \n \n Text . \n \n = = Part = = \n \n = no title = \n more \n \n = Two = \n \n Text . \n", "wiki.test.tokens")
assert len(pages) == 2 and pages[0]["text"].endswith("more\n\n") and pages[1]["text"] == " = Two =\n\nText.\n", pages

WHO = {"prompt": "Question: Who wrote Emma?\nAnswer:", "answers": ["Jane Austen", "Austen"], "until": ["\n", ".", ","], "score": "exact"}
OFFICIAL = '{"Question": "Who wrote Emma", "Answer": {"Aliases": ["Jane Austen", "Austen"], "Value": "Jane Austen"}}'
LOWER = OFFICIAL.replace("Question", "question").replace("Answer", "answer").replace("Aliases", "aliases")
for text in (f'{{"Data": [{OFFICIAL},\n{OFFICIAL}],\n"Version": 1}}\n', f'{{"Data": [{OFFICIAL}, {OFFICIAL}]}}', f"{LOWER}\n{LOWER}", f"[{LOWER},\n{LOWER}]"):
    check("triviaqa", text, WHO, WHO)
check("naturalquestions", '{"question": "who wrote Emma", "answer": ["Jane Austen", "Austen"]}',
      {**WHO, "prompt": "Q: who wrote Emma?\nA:", "score": "nq_open"})
error("naturalquestions", '{"question": "q", "answer": []}', "answer: found [], expected a list of strings")
error("triviaqa", '{"Data": [\n{"Question": "q"}]}', "raw.jsonl: 0: Answer: found nothing, expected an object")

check("gsm8k", '{"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\\n#### 4"}',
      {"prompt": "Question: 2 + 2?\nAnswer:", "answers": ["2 + 2 = <<2+2=4>>4\n#### 4"], "until": ["Question:", "</s>", "<|im_end|>"], "score": "gsm8k"})
error("gsm8k", '{"question": "q", "answer": "4"}', 'answer: found "4", expected a solution')

# longbench: the wording stands around context and question, or comes from a file; the page shows one.
LONG = '{"input": "Who?", "context": "Long {question}.", "answers": ["Ada", "She"], "length": 900}'
READ = "Read the text and answer the question about it in a few words.\n\n"
check("longbench", LONG, {"context": READ + "Long {question}.\n\n", "question": READ + "Question:\nWho?\nAnswer:\n", "answers": ["Ada", "She"], "length": 900})
with open(os.path.join(SOURCE, "docs/formats/records.md")) as file:
    page = file.read()
write("wording.json", page[page.index('{"context": "Read the report'):].split("\n")[0])
check("longbench", LONG, {"context": "Read the report.\n\nLong {question}.\n\n", "question": "Question: Who?\nAnswer:", "answers": ["Ada", "She"], "length": 900},
      options=("--template", "wording.json"))
for text, says in (('{"context": "{context}"}', "expected texts under context, question"), ('{"context": "{context}", "question": "Q"}', "placeholder {question}")):
    write("wording.json", text)
    error("longbench", LONG, says, options=("--template", "wording.json"))
error("longbench", LONG.replace("900", '"9"'), 'length: found "9", expected an integer')


def fewshot(data_set, classes):
    return f'{{"input": "Question: x\\nType:", "context": "Question: y\\nType: City", "answers": ["City"], "dataset": "{data_set}", "all_classes": {classes}}}\n'


PROMPT = {"prompt": "Solved examples:\n\nQuestion: y\nType: City\nQuestion: x\nType:", "answers": ["City"], "until": ["\n"]}
check("longbench-fewshot", fewshot("trec", '["City", "Date"]') + fewshot("triviaqa", "null") + fewshot("samsum", "null"),
      {**PROMPT, "max_new_tokens": 64, "score": "classification", "classes": ["City", "Date"]}, {**PROMPT, "max_new_tokens": 32, "score": "f1"},
      {**PROMPT, "max_new_tokens": 128, "score": "rouge_l"})
error("longbench-fewshot", fewshot("hotpotqa", "null"), 'dataset: found "hotpotqa", expected trec, triviaqa or samsum')
error("longbench-fewshot", fewshot("trec", "null"), "all_classes: found null, expected a list of strings")

# Files that are not those of a data set, and command lines that are none.
error("arc", '{"question": "q"\n', "raw.jsonl:2: broken JSON")
error("arc", "5\n", "raw.jsonl:1: found 5, expected a JSON object")
error("arc", "\n\n", "raw.jsonl: no record")
error("arc", b"\xff\n", "raw.jsonl: 'utf-8' codec can't decode byte 0xff in position 0")
error("arc", None, "none.jsonl: no file matches", file="none.jsonl")
for arguments in (["glue", "raw.jsonl", "-"], ["boolq", "raw.jsonl", "-", "--shots", "3"], ["boolq", "raw.jsonl", "-", "--template", "t"]):
    assert run(*arguments).returncode == 2, arguments

# The golden rows, whose records the tests of hebb eval compare with the harness.
golden = os.path.join(SOURCE, "tests/golden/lm-eval")
for rows, name in {"triviaqa": "triviaqa", "nq_open": "naturalquestions", "gsm8k": "gsm8k", "race": "race"}.items():
    done = run(name, os.path.join(golden, rows + ".jsonl"), "out.jsonl")
    assert done.returncode == 0 and done.stdout.endswith(" in out.jsonl\n"), done
    with open(os.path.join(folder.name, "out.jsonl"), "rb") as made, open(os.path.join(golden, rows + ".records.jsonl"), "rb") as kept:
        assert made.read() == kept.read(), name
