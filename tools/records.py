#!/usr/bin/env python3
"""Writes the records of hebb eval from a data set's own files (docs/formats/records.md, From data sets).

records.py NAME RAW OUT [--template FILE] [--shots N]
"""
import argparse
import csv
import glob
import gzip
import io
import json
import os
import re
import sys


class Bad(Exception):
    """What is not as a data set's files are. The text says where, what was found and what was expected."""


def read(path):
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            return file.read().decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise Bad(f"{path}: {error.strerror if isinstance(error, OSError) and error.strerror else error}") from None


def files(raw):
    """A file, all files in a folder and below it, or those that match a pattern; by name."""
    if os.path.isdir(raw):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(raw) for name in names if not name.startswith(".")]
    else:
        found = [raw] if os.path.exists(raw) else glob.glob(raw, recursive=True)
    if not found:
        raise Bad(f"{raw}: no file matches")
    return sorted(found)


class Row:
    """A JSON object of a file. Its members are of the kind that is asked for, or the row is an error."""

    def __init__(self, where, value):
        self.where, self.value = where, value
        if not isinstance(value, dict):
            raise Bad(f"{where}: found {json.dumps(value)[:60]}, expected a JSON object")

    def fail(self, key, expected):
        found = json.dumps(self.value[key], ensure_ascii=False)[:60] if key in self.value else "nothing"
        raise Bad(f"{self.where}: {key}: found {found}, expected {expected}")

    def get(self, key, kind, expected):
        if not isinstance(self.value.get(key), kind) or (kind is int and isinstance(self.value[key], bool)):
            self.fail(key, expected)
        return self.value[key]

    def text(self, key):
        return self.get(key, str, "a string")

    def texts(self, key):
        found = self.get(key, list, "a list of strings")
        if not found or not all(isinstance(text, str) for text in found):
            self.fail(key, "a list of strings")
        return found

    def object(self, key):
        return Row(f"{self.where}: {key}", self.get(key, dict, "an object"))

    def index(self, key, count):
        """A number below `count`, or a string that is one."""
        found = self.value.get(key)
        if isinstance(found, str) and re.fullmatch("[0-9]+", found):
            found = int(found)
        if type(found) is not int or not 0 <= found < count:
            self.fail(key, f"an index from 0 to {count - 1}")
        return found


def rows(raw, container=None):
    """JSON lines, a file that is one array, or the array that an object holds under `container`."""
    def each(where, value):
        inner = value.get(container, value) if isinstance(value, dict) else value
        for i, row in enumerate(inner if isinstance(inner, list) else [value]):
            yield Row(f"{where}: {i}" if isinstance(inner, list) else where, row)

    def parse(text, path, line):
        try:
            return json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise Bad(f"{path}:{line + getattr(error, 'lineno', 1) - 1}: broken JSON: {getattr(error, 'msg', error)}") from None

    for path in files(raw):
        text = read(path)
        lines = [(i + 1, line) for i, line in enumerate(text.split("\n")) if line.strip()]
        try:
            if lines:
                json.loads(lines[0][1])
        except (json.JSONDecodeError, RecursionError):  # the value goes over several lines
            yield from each(path, parse(text, path, 1))
            continue
        for number, line in lines:
            yield from each(f"{path}:{number}", parse(line, path, number))


def choice(context, choices, gold, **more):
    return {"context": context, "choices": choices, "gold": gold, **more}


def asked(context):
    return f"Question: {context}\nAnswer:"


def lettered(question, options):
    return question.strip() + "".join(f"\n{letter}. {option}" for letter, option in zip("ABCDEFGHIJKLMNOP", options)) + "\nAnswer:"


def hellaswag(o):
    def clean(text):
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    for row in rows(o.raw):
        endings = [clean(ending) for ending in row.texts("endings")]
        context = f'{row.text("activity_label")}: {row.text("ctx_a")} {row.text("ctx_b").capitalize()}'
        yield row, choice(clean(context), endings, row.index("label", len(endings)))


def piqa(o):
    """The labels stand in the rows, or one a line in a file beside them."""
    beside = os.path.splitext(o.raw)[0] + "-labels.lst"
    labels = read(beside).split() if os.path.exists(beside) else []
    count = 0
    for row in rows(o.raw):
        if count < len(labels) and "label" not in row.value:
            row.where, row.value["label"] = f"{beside}:{count + 1}", labels[count]
        count += 1
        yield row, choice(asked(row.text("goal")), [row.text("sol1"), row.text("sol2")], row.index("label", 2))
    if labels and len(labels) != count:
        raise Bad(f"{beside}: found {len(labels)} labels, expected {count}, one for each line of {o.raw}")


def labelled(o, flat_key):
    """Row, question, options and the index of the right one. Options are [{"text", "label"}] or {"text": [], "label": []}."""
    for row in rows(o.raw):
        holder = row.object("question") if isinstance(row.value.get("question"), dict) else row
        question = holder.text("stem" if holder is not row else flat_key)
        options = holder.get("choices", (list, dict), "options with labels")
        if isinstance(options, list):
            options = [Row(f"{holder.where}: choices", option) for option in options]
            texts, labels = [option.text("text") for option in options], [option.text("label") for option in options]
        else:
            texts, labels = holder.object("choices").texts("text"), holder.object("choices").texts("label")
        if not texts or len(texts) != len(labels):
            holder.fail("choices", "as many labels as texts, at least one")
        if row.text("answerKey") not in labels:
            row.fail("answerKey", "a label of the choices")
        yield row, question, texts, labels.index(row.value["answerKey"])


def arc(o):
    for row, question, texts, gold in labelled(o, "question"):
        yield row, choice(asked(question), texts, gold)


def openbookqa(o):
    for row, question, texts, gold in labelled(o, "question_stem"):
        yield row, choice(question, texts, gold)


def commonsenseqa(o):
    for row, question, texts, gold in labelled(o, "question"):
        yield row, choice("Question: " + lettered(question, texts), list("ABCDEFGHIJKLMNOP"[:len(texts)]), gold)


def winogrande(o):
    for row in rows(o.raw):
        before, gap, after = row.text("sentence").partition("_")
        if not gap:
            row.fail("sentence", "a sentence with a gap (_)")
        if row.text("answer") not in ("1", "2"):
            row.fail("answer", '"1" or "2"')
        yield row, {"contexts": [before + row.text("option1"), before + row.text("option2")], "continuation": after.strip(),
                    "gold": int(row.value["answer"]) - 1}


def boolq(o):
    for row in rows(o.raw):
        gold = int(row.get("answer", bool, "true or false")) if "answer" in row.value else row.index("label", 2)
        yield row, choice(f'{row.text("passage")}\nQuestion: {row.text("question")}?\nAnswer:', ["no", "yes"], gold)


def race(o):
    """A passage is a row with all its questions, or rows of one question each that stand together."""
    passages = []
    for row in rows(o.raw):
        is_whole = "questions" in row.value
        if not is_whole:
            row.value.update(questions=[row.text("question")], options=[row.value.get("options")], answers=[row.text("answer")])
        questions, answers, options = row.texts("questions"), row.texts("answers"), row.get("options", list, "a list of options for each question")
        if not len(questions) == len(answers) == len(options):
            row.fail("questions", "as many questions as answers and lists of options")
        if is_whole or not passages or passages[-1][1] or passages[-1][2] != row.text("article"):
            passages.append((row, is_whole, row.text("article"), []))
        for i, (question, answer) in enumerate(zip(questions, answers)):
            texts = Row(f"{row.where}: {i}", {"options": options[i]}).texts("options")
            gold = ord(answer) - ord("A") if len(answer) == 1 else -1
            if not 0 <= gold < len(texts):
                row.fail("answers", "a letter of the options for each question")
            passages[-1][3].append((question, texts, gold))
    for row, _, article, questions in passages:
        context = f"Article: {article}\n\n"
        for question, texts, gold in questions[:-1]:
            gap = question.endswith("  _  .")  # the answer stands in it
            context += question[:-5] + texts[gold] + "\n" if gap else f"Question: {question}\nAnswer: {texts[gold]}\n"
        yield row, choice(context + questions[-1][0], questions[-1][1], questions[-1][2])


def mmlu(o):
    def questions(path):
        reader = csv.reader(io.StringIO(read(path), newline=""), strict=True)
        try:
            for fields in reader:
                if fields and (len(fields) != 6 or fields[5] not in tuple("ABCD")):
                    raise Bad(f"{path}:{reader.line_num}: found {len(fields)} fields, the last one \"{fields[-1]}\", "
                              "expected a question, four options and a letter from A to D")
                if fields:
                    yield Row(f"{path}:{reader.line_num}", {}), lettered(fields[0], fields[1:5]), fields[5]
        except csv.Error as error:
            raise Bad(f"{path}:{reader.line_num}: {error}") from None

    tests = [file for file in files(os.path.join(glob.escape(o.raw), "test", "*_test.csv"))]
    for path in tests:
        subject = os.path.basename(path)[:-len("_test.csv")]
        before = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
        if o.shots > 0:
            dev = os.path.join(o.raw, "dev", subject + "_dev.csv")
            solved = list(questions(dev))
            if len(solved) < o.shots:
                raise Bad(f"{dev}: found {len(solved)} solved examples, expected at least {o.shots}")
            before += "".join(f"{question} {letter}\n\n" for _, question, letter in solved[:o.shots])
        for row, question, letter in questions(path):
            yield row, choice(before + question, list("ABCD"), ord(letter) - ord("A"), group=subject)


def lambada(o):
    for row in rows(o.raw):
        context, space, word = row.text("text").rpartition(" ")
        if not space or not word:
            row.fail("text", "a text that ends with a space and a word")
        yield row, {"context": context, "target": " " + word}


def joined_words(page):
    """Undoes the word splitting of WikiText, in the order of the common harness."""
    for old, new in (("s '", "s'"), (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" : ", ": "), (" ; ", "; "), (" . ", ". "), (" ! ", "! "),
                     (" ? ", "? "), (" , ", ", ")):
        page = page.replace(old, new)
    for begin, end in ("()", "[]", "{}", '""', "''"):
        page = re.sub(rf"\{begin}\s*([^\{end}]*?)\s*\{end}", rf"{begin}\1{end}", page)
    for old, new in (("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00B0 ", "\u00B0"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "),
                     (" 's", "'s")):
        page = page.replace(old, new)
    return page


def wikitext(o):
    """Rows with a page, or the data set's text: pages begin with their titles, between blank lines."""
    def record(page):
        return {"text": joined_words(page), "words": len(re.split(r"\s+", page)), "bytes": len(page.encode())}

    def pages(lines):
        page, is_after_blank = "", True
        for line, following in zip(lines, lines[1:] + [""]):
            is_title = re.fullmatch(r"= [^=](.*[^=])? =", line.strip())
            if is_after_blank and is_title and not following.strip():
                yield page
                page = ""
            page, is_after_blank = page + line, not line.strip()
        yield page

    for path in files(o.raw):
        if re.search(r"\.(json|ndjson)", path):
            for row in rows(path):
                yield row, record(row.text("page"))
        else:
            for page in pages(re.findall(r"[^\n]*\n|[^\n]+", read(path))):
                if page.strip():
                    yield Row(path, {}), record(page)


def short_answer(prompt, answers, score):
    return {"prompt": prompt, "answers": answers, "until": ["\n", ".", ","], "score": score}


def triviaqa(o):
    for row in rows(o.raw, "Data"):
        question, answer, aliases = ("Question", "Answer", "Aliases") if "Question" in row.value else ("question", "answer", "aliases")
        yield row, short_answer(f"Question: {row.text(question)}?\nAnswer:", row.object(answer).texts(aliases), "exact")


def naturalquestions(o):
    for row in rows(o.raw):
        yield row, short_answer(f'Q: {row.text("question")}?\nA:', row.texts("answer"), "nq_open")


def gsm8k(o):
    for row in rows(o.raw):
        if "#### " not in row.text("answer"):
            row.fail("answer", 'a solution with "#### " before its number')
        yield row, {"prompt": asked(row.text("question")), "answers": [row.text("answer")], "until": ["Question:", "</s>", "<|im_end|>"],
                    "score": "gsm8k"}


def wording(o, built_in):
    """The built-in wording, or that of a file. Both placeholders must stand in it."""
    if not o.template:
        return built_in
    texts = next(rows(o.template)).value
    if set(texts) != set(built_in) or not all(isinstance(text, str) for text in texts.values()):
        raise Bad(f"{o.template}: expected texts under {', '.join(built_in)}, and nothing else")
    for placeholder in ("{context}", "{question}"):
        if not any(placeholder in text for text in texts.values()):
            raise Bad(f"{o.template}: no text contains the placeholder {placeholder}")
    return texts


def worded(text, row):
    return re.sub(r"\{(context|question)\}", lambda m: row.text("context" if m[1] == "context" else "input"), text)


def longbench(o):
    instruction = "Read the text and answer the question about it in a few words.\n\n"
    texts = wording(o, {"context": instruction + "{context}\n\n", "question": instruction + "Question:\n{question}\nAnswer:\n"})
    for row in rows(o.raw):
        length = {"length": row.get("length", int, "an integer")} if "length" in row.value else {}
        yield row, {"context": worded(texts["context"], row), "question": worded(texts["question"], row), "answers": row.texts("answers"), **length}


def longbench_fewshot(o):
    tasks = {"trec": ("classification", 64), "triviaqa": ("f1", 32), "samsum": ("rouge_l", 128)}
    texts = wording(o, {"prompt": "Solved examples:\n\n{context}\n{question}"})
    for row in rows(o.raw):
        if row.text("dataset") not in tasks:
            row.fail("dataset", "trec, triviaqa or samsum")
        score, tokens = tasks[row.value["dataset"]]
        classes = {"classes": row.texts("all_classes")} if score == "classification" else {}
        yield row, {"prompt": worded(texts["prompt"], row), "answers": row.texts("answers"), "until": ["\n"], "max_new_tokens": tokens,
                    "score": score, **classes}


DATA_SETS = {f.__name__.replace("_", "-"): f for f in (hellaswag, piqa, arc, winogrande, openbookqa, boolq, race, commonsenseqa, mmlu, lambada,
                                                       wikitext, triviaqa, naturalquestions, gsm8k, longbench, longbench_fewshot)}


def records(o):
    """The lines of OUT. hebb eval takes no empty text where it needs one."""
    lines = []
    for row, record in DATA_SETS[o.name](o):
        for key in ("choices", "continuation", "text"):
            if not all(record[key] if isinstance(record.get(key), list) else [record.get(key, True)]):
                raise Bad(f"{row.where}: {key}: found an empty text, expected at least one character")
        lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    if not lines:
        raise Bad(f"{o.raw}: no record")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", metavar="NAME", choices=DATA_SETS, help=", ".join(DATA_SETS))
    parser.add_argument("raw", metavar="RAW", help="file, folder or quoted pattern; mmlu: the folder with dev and test")
    parser.add_argument("out", metavar="OUT", help="file to write; - = standard output")
    parser.add_argument("--template", metavar="FILE", help="longbench: wording (JSON) in place of the built-in one")
    parser.add_argument("--shots", type=int, metavar="N", help="mmlu: solved examples in front of each question (5)")
    o = parser.parse_args()
    if o.template and not o.name.startswith("longbench"):
        parser.error(f"--template: found {o.name}, expected longbench or longbench-fewshot")
    if o.shots is not None and (o.name != "mmlu" or o.shots < 0):
        parser.error(f"--shots: found {o.name} {o.shots}, expected mmlu and a number >= 0")
    o.shots = 5 if o.shots is None else o.shots
    try:
        lines = records(o)
        if o.out == "-":
            sys.stdout.reconfigure(encoding="utf-8")
            sys.stdout.writelines(lines)
            return 0
        with open(o.out + ".partial", "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        os.replace(o.out + ".partial", o.out)
    except (Bad, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(f"{len(lines)} record{'s' * (len(lines) != 1)} in {o.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
