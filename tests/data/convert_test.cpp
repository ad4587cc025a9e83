#include "data/convert/convert.h"

#include <algorithm>

#include "core/files.h"
#include "data/convert/csv.h"
#include "data/tasks/records.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

struct Files {
  TempFolder folder;

  std::string convert(const std::string& name, const fs::path& raw, const std::string& wording = "",
                      int64_t shots = 5) const {
    Progress quiet;
    std::string lines;
    ConvertOptions options{name, raw.string(), wording, shots};
    const int64_t n =
        convert_records(options, quiet, [&](std::string_view line) { lines += std::string(line) + "\n"; });
    CHECK(n == std::count(lines.begin(), lines.end(), '\n'));
    return lines;
  }
  /// Records of a data set whose file holds `text`.
  template <class R>
  std::vector<R> records(const std::string& name, const std::string& text,
                         const std::string& file = "raw.jsonl") const {
    return read_records<R>(folder.write("out.jsonl", convert(name, folder.write(file, text))).string());
  }
  std::string error(const std::string& name, const std::string& text, const std::string& file = "raw.jsonl") const {
    const std::string path = folder.write(file, text).string();
    const std::string message = thrown<DataError>([&] { convert(name, path); });
    return message.starts_with(path) ? message.substr(path.size()) : message;
  }
};

using Texts = std::vector<std::string>;
using Gold = std::vector<int64_t>;

}  // namespace

TEST_CASE_METHOD(Files, "hellaswag: activity and context are cleaned, the second half is capitalized", "[fast]") {
  const auto r = records<ChoiceRecord>(
      "hellaswag",
      R"({"ind": 4, "activity_label": "Removing ice", "ctx_a": " A man  [title] sits. [step] He", "ctx_b": "then Starts", "ctx": "unused",
"endings": ["pulls [substeps] it off.", " waits [title] Then goes ", "a[b", "d] e"], "label": 3, "split": "val"})");
  REQUIRE(r.size() == 1);
  CHECK(r[0].context == "Removing ice: A man . sits. He Then starts");
  CHECK(r[0].choices == Texts{"pulls it off.", "waits. Then goes", "a[b", "d] e"});
  CHECK(r[0].gold == Gold{3});
  CHECK(r[0].delimiter == " ");
  const std::string row = R"({"activity_label": "A", "ctx_a": "b", "ctx_b": "", "endings": ["c", "d"], "label": )";
  CHECK(records<ChoiceRecord>("hellaswag", row + "\"1\"}")[0].gold == Gold{1});
  CHECK(records<ChoiceRecord>("hellaswag", row + "\"1\"}")[0].context == "A: b");
  CHECK(records<ChoiceRecord>("hellaswag",
                              R"({"activity_label": "A", "ctx_a": "b", "ctx_b": "éTÉ À Nice", "endings": ["c"],
"label": 0})")[0]
            .context == "A: b Été à nice");
  CHECK(error("hellaswag", row + "0}\n" + row + "\"\"}") == ":2:84: label: found \"\", expected an index from 0 to 1");
  CHECK(error("hellaswag", row + "2}") == ":1:84: label: found 2, expected an index from 0 to 1");
  CHECK(error("hellaswag", R"({"ctx_a": "b"})") == ":1:1: activity_label: found nothing, expected a string");
  CHECK(error("hellaswag", R"({"activity_label": "A", "ctx_a": 5})") == ":1:34: ctx_a: found 5, expected a string");
  CHECK(error("hellaswag", R"({"activity_label": "A", "ctx_a": "b", "ctx_b": "", "endings": ["a", 1]})") ==
        ":1:63: endings: found an array, expected a list of strings");
}

TEST_CASE_METHOD(Files, "piqa: labels stand in the rows or in a file beside them", "[fast]") {
  const std::string rows =
      "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n{\"goal\": \"h\", \"sol1\": \"c\", \"sol2\": \"d\"}\n";
  folder.write("raw-labels.lst", "1\n0\n");
  const auto r = records<ChoiceRecord>("piqa", rows);
  REQUIRE(r.size() == 2);
  CHECK(r[0].context == "Question: g\nAnswer:");
  CHECK(r[0].choices == Texts{"a", "b"});
  CHECK(r[0].gold == Gold{1});
  CHECK(r[1].gold == Gold{0});
  folder.write("raw-labels.lst", "1\n2\n");
  CHECK(error("piqa", rows).ends_with("raw-labels.lst:2:1: label: found \"2\", expected an index from 0 to 1"));
  folder.write("raw-labels.lst", "1\n0\n1\n");
  CHECK_THAT(error("piqa", rows), Contains("these are the labels of another file (found 3 labels, expected 2,"));
  CHECK(error("piqa", rows, "other.jsonl") == ":1:1: label: found nothing, expected an index from 0 to 1");
  CHECK(
      records<ChoiceRecord>("piqa", R"({"goal": "g", "sol1": "a", "sol2": "b", "label": 1})", "other.jsonl")[0].gold ==
      Gold{1});
}

TEST_CASE_METHOD(Files, "arc, openbookqa and commonsenseqa are read in both of their layouts", "[fast]") {
  const std::string nested =
      R"({"id": "x", "question": {"stem": "Why?", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]}, "answerKey": "2"})";
  const std::string flat =
      R"({"question": "Why?", "question_stem": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"})";
  for (const std::string& row : {nested, flat}) {
    const auto arc = records<ChoiceRecord>("arc", row);
    CHECK(arc[0].context == "Question: Why?\nAnswer:");
    CHECK(arc[0].choices == Texts{"a", "b"});
    CHECK(arc[0].gold == Gold{1});
    CHECK(records<ChoiceRecord>("openbookqa", row)[0].context == "Why?");
    CHECK(records<ChoiceRecord>("openbookqa", row)[0].choices == Texts{"a", "b"});
    const auto common = records<ChoiceRecord>("commonsenseqa", row);
    CHECK(common[0].context == "Question: Why?\nA. a\nB. b\nAnswer:");
    CHECK(common[0].choices == Texts{"A", "B"});
    CHECK(common[0].gold == Gold{1});
  }
  CHECK(
      error("arc", R"({"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"})") ==
      ":1:89: answerKey: found \"C\", expected a label of the choices");
  CHECK(error("arc", R"({"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A"]}, "answerKey": "A"})") ==
        ":1:33: choices: found an object, expected as many labels as texts, at least one");
  CHECK(error("openbookqa", R"({"question_stem": "Why?", "choices": [], "answerKey": "A"})") ==
        ":1:38: choices: found an array, expected as many labels as texts, at least one");
}

TEST_CASE_METHOD(Files, "winogrande: the options fill the gap, the rest is the continuation", "[fast]") {
  const auto r = records<PartialRecord>(
      "winogrande",
      R"({"sentence": "Ann saw Eve because _ was late.", "option1": "Ann", "option2": "Eve", "answer": "2"})");
  CHECK(r[0].contexts == Texts{"Ann saw Eve because Ann", "Ann saw Eve because Eve"});
  CHECK(r[0].continuation == "was late.");
  CHECK(r[0].delimiter == " ");
  CHECK(r[0].gold == Gold{1});
  CHECK(error("winogrande", R"({"sentence": "No gap", "option1": "a", "option2": "b", "answer": "1"})") ==
        ":1:14: sentence: found \"No gap\", expected a sentence with a gap (_)");
  CHECK(error("winogrande", R"({"sentence": "A _ .", "option1": "a", "option2": "b", "answer": ""})") ==
        ":1:65: answer: found \"\", expected \"1\" or \"2\"");
}

TEST_CASE_METHOD(Files, "boolq: no or yes after passage and question", "[fast]") {
  const auto r =
      records<ChoiceRecord>("boolq",
                            "{\"question\": \"is it so\", \"title\": \"T\", \"answer\": true, \"passage\": \"P.\"}\n"
                            "{\"question\": \"is it so\", \"passage\": \"P.\", \"label\": 0}\n");
  CHECK(r[0].context == "P.\nQuestion: is it so?\nAnswer:");
  CHECK(r[0].choices == Texts{"no", "yes"});
  CHECK(r[0].gold == Gold{1});
  CHECK(r[1].gold == Gold{0});
  CHECK(error("boolq", R"({"question": "q", "passage": "P.", "answer": "yes"})") ==
        ":1:46: answer: found \"yes\", expected true or false");
}

TEST_CASE_METHOD(Files, "race: earlier questions come with their answers, the last one is asked", "[fast]") {
  const std::string passage = R"({"id": "high1.txt", "article": "Text.", "questions": ["Who?", "He is  _  .", "What?"],
 "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"], ["i", "j", "k", "l"]], "answers": ["B", "A", "D"]})";
  folder.write("race/1.txt", passage);
  folder.write("race/2.txt", passage);
  const std::string lines = convert("race", folder / "race");
  const auto r = read_records<ChoiceRecord>(folder.write("out.jsonl", lines).string());
  REQUIRE(r.size() == 2);
  CHECK(r[0].context == "Article: Text.\n\nQuestion: Who?\nAnswer: b\nHe is e\nWhat?");
  CHECK(r[0].choices == Texts{"i", "j", "k", "l"});
  CHECK(r[0].gold == Gold{3});
  const auto apart = records<ChoiceRecord>(
      "race",
      "{\"article\": \"Text.\", \"question\": \"Who?\", \"options\": [\"a\", \"b\"], \"answer\": \"B\"}\n"
      "{\"article\": \"Text.\", \"question\": \"What?\", \"options\": [\"i\", \"j\"], \"answer\": \"A\"}\n"
      "{\"article\": \"Other.\", \"question\": \"How?\", \"options\": [\"k\", \"l\"], \"answer\": \"B\"}\n");
  REQUIRE(apart.size() == 2);
  CHECK(apart[0].context == "Article: Text.\n\nQuestion: Who?\nAnswer: b\nWhat?");
  CHECK(apart[0].gold == Gold{0});
  CHECK(apart[1].context == "Article: Other.\n\nHow?");
  CHECK(error("race", R"({"article": "T", "question": "a", "options": ["a"], "answer": "B"})") ==
        ":1:63: answer: found \"B\", expected a letter of the options for each question");
  CHECK(error("race", R"({"article": "T", "questions": ["a", "b"], "options": [["a"]], "answers": ["A", "A"]})") ==
        ":1:31: questions: found an array, expected as many questions as answers and lists of options");
  CHECK(error("race", R"({"article": "T", "questions": ["a"], "options": [["a"]], "answers": ["B"]})") ==
        ":1:69: answers: found an array, expected a letter of the options for each question");
}

TEST_CASE_METHOD(Files, "mmlu: the subject's first questions for development stand in front", "[fast]") {
  folder.write("mmlu/dev/high_school_physics_dev.csv",
               "Q1,a,b,c,d,B\n\"Q2, \"\"quoted\"\"\nand long\",1,2,3,4,D\nQ3,x,x,x,x,A\n");
  folder.write("mmlu/test/high_school_physics_test.csv", " Q? ,\"e, f\",g,h,i,C\r\n\r\nR?,1,2,3,4,A\r\n");
  const std::string lines = convert("mmlu", folder / "mmlu", "", 2);
  const auto r = read_records<ChoiceRecord>(folder.write("out.jsonl", lines).string());
  REQUIRE(r.size() == 2);
  CHECK(r[0].context ==
        "The following are multiple choice questions (with answers) about high school physics.\n\n"
        "Q1\nA. a\nB. b\nC. c\nD. d\nAnswer: B\n\nQ2, \"quoted\"\nand long\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: D\n\n"
        "Q?\nA. e, f\nB. g\nC. h\nD. i\nAnswer:");
  CHECK(r[0].choices == Texts{"A", "B", "C", "D"});
  CHECK(r[0].gold == Gold{2});
  CHECK(r[0].group == "high_school_physics");
  CHECK(r[1].gold == Gold{0});
  CHECK(convert("mmlu", folder / "mmlu", "", 0).find("Q1") == std::string::npos);
  CHECK_THROWS_WITH(convert("mmlu", folder / "mmlu", "", 4),
                    Contains("too few solved examples (found 3, expected at least 4)"));
  folder.write("mmlu/test/high_school_physics_test.csv", "Q?,a,b,c,d,A\n\nQ?,e,f,g,C\n");
  CHECK_THROWS_WITH(convert("mmlu", folder / "mmlu", "", 1),
                    Contains("high_school_physics_test.csv:3: no question of this data set (found 5 fields, the "
                             "last one \"C\", expected"));
  CHECK_THROWS_AS(convert("mmlu", folder / "none"), MissingFileError);
  folder.write("mmlu/test/anatomy_test.csv", "Q?,a,b,c,d,A\n");
  CHECK_THROWS_AS(convert("mmlu", folder / "mmlu", "", 1), MissingFileError);
}

TEST_CASE_METHOD(Files, "mmlu: the name of its folder is no pattern", "[fast]") {
  for (const auto& [name, decoy] : std::vector<std::pair<std::string, std::string>>{
           {"Title [2004]", "Title 2"}, {"[ab]", "a"}, {"star*", "star1"}, {"what?", "what1"}}) {
    folder.write(name + "/test/anatomy_test.csv", "right?,a,b,c,d,A\n");
    folder.write(decoy + "/test/anatomy_test.csv", "wrong?,a,b,c,d,A\n");
    CHECK_THAT(convert("mmlu", folder / name, "", 0), Contains("right?") && !Contains("wrong?"));
  }
}

TEST_CASE_METHOD(Files, "lambada: the last word is the target", "[fast]") {
  const auto r = records<ClozeRecord>("lambada", R"({"text": "he said to\nher and left the house"})");
  CHECK(r[0].context == "he said to\nher and left the");
  CHECK(r[0].target == " house");
  CHECK(error("lambada", R"({"text": "word"})") ==
        ":1:10: text: found \"word\", expected a text that ends with a space and a word");
  CHECK_THAT(error("lambada", R"({"text": "two "})"), Contains("expected a text that ends with a space and a word"));
}

TEST_CASE_METHOD(Files, "wikitext: words are joined again, counts are those of the page as it was", "[fast]") {
  const std::string page =
      " = A title = \n \n It ( the \" old \" one ) cost 5 @,@ 000 , or 2 @.@ 5 @-@ fold . \n = = Part = = \n The cats "
      "' \n it 's \n";
  const auto r = records<RollingRecord>("wikitext", "{\"page\": " + Json(page).dump() + "}");
  CHECK(r[0].text ==
        " = A title =\n\nIt (the \"old\" one) cost 5,000, or 2.5-fold.\n== Part ==\nThe cats'it's\n");  // single quotes
                                                                                                        // are taken as
                                                                                                        // a pair
  CHECK(r[0].bytes == static_cast<int64_t>(page.size()));
  CHECK(r[0].words == 36);  // with an empty piece before the first and one after the last word
  const auto marks = records<RollingRecord>(
      "wikitext", R"({"page": "[ a ] { b } ' c ' 20 \u00B0 C ; x : y ! N z ? ( ( n ) m ) ' open"})");
  CHECK(marks[0].text == "[a] {b} 'c' 20\u00B0C; x: y! 1 z? (( n) m ) ' open");
  CHECK(marks[0].words == 28);

  const std::string text =
      " \n = One = \n \n Text . \n \n = = Part = = \n \n = no title = \n more \n \n = Two = \n \n Text . \n";
  const auto pages = records<RollingRecord>("wikitext", text, "wiki.test.tokens");
  REQUIRE(pages.size() == 2);
  CHECK(pages[0].text.ends_with("more\n\n"));
  CHECK(pages[1].text == " = Two =\n\nText.\n");
}

TEST_CASE_METHOD(Files, "triviaqa and naturalquestions ask for a short answer", "[fast]") {
  const auto check = [](const std::vector<GenerateRecord>& r, const std::string& prompt, const char* score = "exact") {
    REQUIRE(r.size() == 2);
    CHECK(r[1].prompt == prompt);
    CHECK(r[1].answers == Texts{"Jane Austen", "Austen"});
    CHECK(r[1].score == score);
    CHECK(r[1].until == Texts{"\n", ".", ","});
    CHECK_FALSE(r[1].max_new_tokens);
  };
  const std::string official =
      R"({"Question": "Who wrote Emma", "Answer": {"Aliases": ["Jane Austen", "Austen"], "Value": "Jane Austen"}})";
  const std::string flat =
      R"({"question": "Who wrote Emma", "answer": {"aliases": ["Jane Austen", "Austen"], "value": "Jane Austen"}})";
  check(records<GenerateRecord>("triviaqa", "{\"Data\": [" + official + ",\n" + official + "],\n\"Version\": 1}\n",
                                "web.json"),
        "Question: Who wrote Emma?\nAnswer:");
  check(records<GenerateRecord>("triviaqa", "{\"Data\": [" + official + ", " + official + "], \"Version\": 1}"),
        "Question: Who wrote Emma?\nAnswer:");
  check(records<GenerateRecord>("triviaqa", flat + "\n" + flat), "Question: Who wrote Emma?\nAnswer:");
  check(records<GenerateRecord>("triviaqa", "[" + flat + ",\n" + flat + "]"), "Question: Who wrote Emma?\nAnswer:");
  const std::string open = R"({"question": "who wrote Emma", "answer": ["Jane Austen", "Austen"]})";
  check(records<GenerateRecord>("naturalquestions", open + "\n" + open), "Q: who wrote Emma?\nA:", "nq_open");
  CHECK(error("naturalquestions", R"({"question": "q", "answer": []})") ==
        ":1:29: answer: found an array, expected a list of strings");
  CHECK(error("triviaqa", "{\"Data\": [\n{\"Question\": \"q\"}]}") ==
        ":2:1: Answer: found nothing, expected an object");
}

TEST_CASE_METHOD(Files, "gsm8k keeps the solution with its number", "[fast]") {
  const auto r = records<GenerateRecord>("gsm8k", R"({"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"})");
  CHECK(r[0].prompt == "Question: 2 + 2?\nAnswer:");
  CHECK(r[0].answers == Texts{"2 + 2 = <<2+2=4>>4\n#### 4"});
  CHECK(r[0].score == "gsm8k");
  CHECK(r[0].until == Texts{"Question:", "</s>", "<|im_end|>"});
  CHECK_THAT(error("gsm8k", R"({"question": "q", "answer": "4"})"),
             Contains("answer: found \"4\", expected a solution"));
}

TEST_CASE_METHOD(Files, "longbench: wording stands around context and question, or comes from a file", "[fast]") {
  const std::string row =
      R"({"input": "Who?", "context": "Long {question}.", "answers": ["Ada", "She"], "length": 900, "dataset": "hotpotqa", "all_classes": null})";
  const auto r = records<AnswerRecord>("longbench", row);
  const std::string instruction = "Read the text and answer the question about it in a few words.";
  CHECK(r[0].context == instruction + "\n\nLong {question}.\n\n");
  CHECK(r[0].question == instruction + "\n\nQuestion:\nWho?\nAnswer:\n");
  CHECK(r[0].answers == Texts{"Ada", "She"});
  CHECK(r[0].length == 900);

  const auto with = [&](const std::string& wording) {
    return convert("longbench", folder.write("raw.jsonl", row), folder.write("wording.json", wording).string());
  };
  CHECK(with(R"({"context": "T: {context}", "question": "Q: {question} {A}"})") ==
        R"({"context":"T: Long {question}.","question":"Q: Who? {A}","answers":["Ada","She"],"length":900})"
        "\n");
  CHECK_THROWS_WITH(with(R"({"context": "{context}"})"),
                    Contains("wording.json:1:1: question: found nothing, expected a string"));
  CHECK_THROWS_WITH(with(R"({"context": "{context}", "question": "Q"})"),
                    Contains("wording.json: no text contains the placeholder {question}"));
  CHECK_THROWS_WITH(with(R"({"context": "{context}", "question": "{question}", "prompt": ""})"),
                    Contains("prompt: found an unknown key"));
  CHECK_THAT(error("longbench", R"({"input": "q", "context": "c", "answers": ["a"], "length": "9"})"),
             Contains("length: found \"9\", expected an integer"));
}

TEST_CASE_METHOD(Files, "longbench-fewshot: each of the three sets has its score", "[fast]") {
  const auto row = [](const std::string& dataset, const std::string& classes) {
    return R"({"input": "Question: x\nType:", "context": "Question: y\nType: City", "answers": ["City"], "dataset": ")" +
           dataset + "\", \"all_classes\": " + classes + "}\n";
  };
  const auto r = records<GenerateRecord>(
      "longbench-fewshot", row("trec", "[\"City\", \"Date\"]") + row("triviaqa", "null") + row("samsum", "null"));
  REQUIRE(r.size() == 3);
  CHECK(r[0].prompt == "Solved examples:\n\nQuestion: y\nType: City\nQuestion: x\nType:");
  CHECK(r[0].score == "classification");
  CHECK(r[0].classes == Texts{"City", "Date"});
  CHECK(r[0].max_new_tokens == 64);
  CHECK(r[0].until == Texts{"\n"});
  CHECK(r[1].score == "f1");
  CHECK(r[1].max_new_tokens == 32);
  CHECK(r[2].score == "rouge_l");
  CHECK(r[2].max_new_tokens == 128);
  CHECK_THAT(error("longbench-fewshot", row("hotpotqa", "null")),
             Contains("dataset: found \"hotpotqa\", expected trec, triviaqa or samsum"));
  CHECK_THAT(error("longbench-fewshot", row("trec", "null")),
             Contains("all_classes: found null, expected a list of strings"));
}

TEST_CASE_METHOD(Files, "files that are not those of a data set are refused", "[fast]") {
  CHECK(error("arc", "{\"question\": \"q\"\n") == ":2:1: found end of input, expected '}'");
  CHECK(error("arc", "5\n") == ":1:1: found 5, expected a JSON object");
  CHECK(error("arc", "\n\n") == ": no record (found nothing to convert, expected JSONL)");
  CHECK_THROWS_AS(convert("arc", folder / "none.jsonl"), MissingFileError);
  CHECK(error("piqa",
              "\n"
              R"({"goal": "g", "sol1": "", "sol2": "b", "label": 0})") ==
        ":2:1: choices: found an empty text, expected texts of at least one character");
  CHECK(error("winogrande", R"({"sentence": "Ann saw _", "option1": "a", "option2": "b", "answer": "1"})") ==
        ":1:1: continuation: found \"\", expected a text of at least one character");
  CHECK_THROWS_WITH(convert("arcs", folder / "none.jsonl"),
                    Contains("NAME: found \"arcs\", expected one of hellaswag, piqa, arc,"));
}

TEST_CASE_METHOD(Files, "CSV files are read as RFC 4180 says, and refused where they break it", "[fast]") {
  const auto read = [&](const std::string& text) {
    std::string result;
    each_csv_record(folder.write("t.csv", text).string(), [&](const std::vector<std::string>& fields, int64_t line) {
      result += std::to_string(line) + ":";
      for (const std::string& field : fields) { result += "<" + field + ">"; }
    });
    return result;
  };
  CHECK(read("a,b\n\"c\"\"d\",\"e\nf\"\n,\n") == "1:<a><b>2:<c\"d><e\nf>4:<><>");
  CHECK(read("\xEF\xBB\xBF"
             "a\r\n\r\nb") == "1:<a>3:<b>");
  CHECK(read("\"\",") == "1:<><>");
  CHECK(read("").empty());
  CHECK_THROWS_WITH(
      read("a\n\"b\nc"),
      Contains("t.csv:2: a field without its closing quote (found the end of the file, expected a quote)"));
  CHECK_THROWS_WITH(read("a\nb\"c\n"), Contains("t.csv:2: a quote inside a field"));
  CHECK_THROWS_WITH(
      read("\"a\"b\n"),
      Contains("t.csv:1: text after the closing quote of a field (found b, expected a comma or the end of the line)"));
  CHECK_THROWS_WITH(read("a\xFF\n"), Contains("invalid UTF-8 at byte 1"));
}
