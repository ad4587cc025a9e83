// Evaluations that score what a model generates: niah, ruler, generate.
#include "eval/answer_text.h"
#include "eval/prompt.h"
#include "tests/eval/text_model.h"
#include "train/run_config.h"

namespace {

/// Every pair of characters in `text` leads from the first to the second, its end to EOS.
BigramModel says(const std::string& text, BigramModel::Table table = {}) {
  for (size_t i = 0; i < text.size(); ++i) {
    table[{static_cast<unsigned char>(text[i]), i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : kEos}] =
        5;
  }
  return BigramModel(table);
}

std::string niah_line(const std::string& haystack, const std::string& answer) {
  return R"({"haystack": ")" + haystack + R"(", "question_key": "K", "answer": ")" + answer +
         R"(", "all_inserted_needles": [{"value": ")" + answer + R"("}, {"value": "123456"}]})" + "\n";
}

std::string value(const Outcome& o, const char* group, const char* metric) {
  return o.result.groups.at(group).at(metric).at("value").dump();
}

std::vector<std::string> predictions(const Outcome& o) {
  std::vector<std::string> texts;
  for (const Json& sample : o.samples) { texts.push_back(sample.at("prediction").as_string()); }
  return texts;
}

std::string quoted(const fs::path& path) { return "\"" + path.string() + "\""; }

/// One pass over all tokens at once, with one update at its end.
std::unique_ptr<ModelState> whole_pass(ScoringModel& s, std::span<const int32_t> ids, ModelState* before) {
  std::unique_ptr<ModelState> state = s.new_state(before);
  const auto n = static_cast<int64_t>(ids.size());
  const Rows rows = Rows::streams(s.stream(), s.arena(), 1, n);
  const Buffer tokens(s.arena(), {n}, DType::i32, "tokens");
  copy_to_device(s.stream(), tokens, ids.data());
  Tape tape(s.stream(), s.arena(), false);
  Pass pass{tape, rows};
  pass.fast.update = FastUpdate::at_end;
  s.model().hidden(pass, tokens, state.get());
  return state;
}

double largest_difference(const std::vector<std::vector<char>>& a, const std::vector<std::vector<char>>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto* x = reinterpret_cast<const double*>(a[i].data());
    const auto* y = reinterpret_cast<const double*>(b[i].data());
    for (size_t k = 0; k < a[i].size() / sizeof(double); ++k) { worst = std::max(worst, std::abs(x[k] - y[k])); }
  }
  return worst;
}

/// Fast weights that an evaluation leaves behind.
std::vector<std::vector<char>> weights_after(const TextModel& m, const std::string& keys) {
  ScoringModel s = m.load();
  evaluate(s, keys, m.tokenizer, 64);
  return s.save_fast_weights();
}

}  // namespace

TEST_CASE("a needle's value is read from the first six characters after white space", "[fast]") {
  const BigramModel m = says(" 777777", {{{'7', '7'}, 9}});
  const auto file = m.folder.write(
      "niah.jsonl", niah_line("The hay.", "777777") + niah_line("Some hay.", "777778") + niah_line("Hay.", "123456"));
  const Outcome o = m.run(R"("kind": "niah", "passes": [3], "samples": )" + quoted(file));
  CHECK(o.result.source == "official");
  CHECK(predictions(o) == std::vector<std::string>{"777777", "777777", "777777"});
  CHECK(o.metric("exact") == Approx(1.0 / 3));
  CHECK(o.metric("digits") == Approx((1 + 5.0 / 6 + 0) / 3));
  CHECK(o.metric("candidate") == Approx(1.0 / 3));
  CHECK(o.count("exact") == 3);
  CHECK(o.result.metrics.at("exact").at("stderr").as_double() == Approx(std::sqrt(2.0 / 3 / 2 / 3)));
  CHECK(value(o, "3", "exact") == o.result.metrics.at("exact").at("value").dump());
}

TEST_CASE("an answer ends at EOS or after twelve tokens, too", "[fast]") {
  const auto answer = [](const BigramModel& m) {
    return predictions(m.run(R"("kind": "niah", "passes": [1], "samples": )" +
                             quoted(m.folder.write("n.jsonl", niah_line("h", "777777")))))[0];
  };
  CHECK(answer(says(" 12")) == "12");
  CHECK(answer(BigramModel({{{' ', '\n'}, 5}, {{'\n', '\n'}, 5}})).empty());
}

TEST_CASE("lengths and passes are reported apart, and built-in text is the same in every run", "[fast]") {
  const BigramModel m = says(" 7", {{{'7', '7'}, 9}});
  const std::string keys = R"("kind": "niah", "context_words": [20, 45], "passes": [1, 2], "samples": 3)";
  const Outcome o = m.run(keys), again = m.run(keys), other = m.run(R"("seed": 7, )" + keys);
  const auto& points = o.result.series.at("by_length").items();
  REQUIRE(points.size() == 4);
  CHECK(points[1].at("context_words").as_int() == 20);
  CHECK(points[1].at("passes").as_int() == 2);
  CHECK(points[0].at("prompt_tokens").as_double() < points[2].at("prompt_tokens").as_double());
  CHECK(o.result.groups.members().size() == 2);
  CHECK(o.count("exact") == 6);
  CHECK(o.result.source == "builtin");
  CHECK(o.samples == again.samples);
  CHECK(o.samples != other.samples);
  CHECK(o.samples.size() == 6);  // without fast weights more passes change nothing
  CHECK(m.run(keys + R"(, "question": "And {key}? ")").result.source == "custom");
}

TEST_CASE("needles are reported by the depth of the one that is asked for", "[fast]") {
  const BigramModel m = says(" 7", {{{'7', '7'}, 9}});
  const std::string keys = R"("kind": "niah", "context_words": [20, 45], "passes": [1], "samples": 12)";
  const Outcome given = m.run(keys + R"(, "depths": [0, 0.25, 0.5, 0.75, 1])");
  std::map<std::pair<int64_t, double>, int64_t> counts;
  int64_t samples = 0;
  for (const Json& point : given.result.series.at("by_depth").items()) {
    counts[{point.at("context_words").as_int(), point.at("depth").as_double()}] = point.at("n").as_int();
    samples += point.at("n").as_int();
  }
  CHECK(samples == 24);
  std::map<double, int64_t> logged;
  for (size_t i = 0; i < 12; ++i) {  // the needle of the question stands at that share of the words
    const Json& sample = given.samples[i];
    const std::string prompt = sample.at("prompt").as_string();
    const std::string question = prompt.substr(prompt.rfind("The code of "));
    const double at = static_cast<double>(prompt.find(question)), depth = sample.at("depth").as_double();
    ++logged[depth];
    CHECK(at / static_cast<double>(prompt.size()) == Approx(depth).margin(0.3));
    CHECK((depth != 0 || at == 0));
  }
  for (const auto& [depth, n] : logged) { CHECK(counts[{20, depth}] == n); }

  const Outcome drawn = m.run(keys);
  for (const Json& point : drawn.result.series.at("by_depth").items()) {
    const double tenth = 10 * point.at("depth").as_double() - 0.5;
    CHECK(tenth == Approx(std::round(tenth)).margin(1e-9));
  }
  const auto ready = m.folder.write("niah.jsonl", niah_line("The hay.", "777777"));
  CHECK(m.run(R"("kind": "niah", "passes": [1], "samples": )" + quoted(ready)).result.series.find("by_depth") ==
        nullptr);
}

TEST_CASE("fast weights move once at the end of each pass, also where it takes several segments", "[fast]") {
  const TextModel m(byte_model(true));
  const std::string hay(700, 'x'), more = "Other hay, and more of it.";
  const auto file = m.folder.write("niah.jsonl", niah_line(hay, "123456") + niah_line(more, "654321"));
  const std::string keys = R"("kind": "niah", "segment": 300, "passes": [3], "samples": )" + quoted(file);
  for (const bool at_prompt : {true, false}) {
    for (const bool carries : {true, false}) {
      INFO("update after the prompt: " << at_prompt << ", carry: " << carries);
      ScoringModel s = m.load();
      const auto fresh = s.save_fast_weights();
      std::unique_ptr<ModelState> last;
      for (const std::string& haystack : {hay, more}) {
        if (!carries) {
          s.restore_fast_weights(fresh);
          last.reset();
        }
        for (int pass = 0; pass < 3; ++pass) {
          const std::string text = haystack + (pass == 2 && at_prompt ? " The code of K is " : "");
          last = whole_pass(s, m.tokenizer->encode(text), last.get());
        }
      }
      const auto left =
          weights_after(m, keys + std::string(R"(, "update_after": ")") + (at_prompt ? "prompt" : "haystack") +
                               R"(", "fast_weights": ")" + (carries ? "carry" : "reset") + '"');
      CHECK(largest_difference(left, fresh) > 1e-3);
      // 1e-9: the same sums in other pieces, in double.
      CHECK(largest_difference(left, s.save_fast_weights()) < 1e-9);
    }
  }
}

TEST_CASE("each number of passes is a run of its own, and more passes change what is read", "[fast]") {
  const TextModel m(byte_model(true));
  const std::string keys = R"("kind": "niah", "context_words": [30], "samples": 4, )";
  const std::vector<std::string> all = predictions(m.run(keys + R"("passes": [1, 3])"));
  const std::vector<std::string> one = predictions(m.run(keys + R"("passes": [1])")),
                                 three = predictions(m.run(keys + R"("passes": [3])"));
  REQUIRE(all.size() == 8);
  CHECK(std::vector<std::string>(all.begin(), all.begin() + 4) == one);
  CHECK(std::vector<std::string>(all.begin() + 4, all.end()) == three);
  CHECK(one != three);
}

TEST_CASE("needle evaluations that cannot run are refused", "[fast]") {
  const BigramModel m = says("7");
  const auto read = [&](const std::string& keys) { return m.run(R"("kind": "niah", )" + keys); };
  CHECK_THROWS_WITH(read(R"("passes": [])"), Contains("passes"));
  CHECK_THROWS_WITH(read(R"("passes": [2, 2])"), Contains("different"));
  CHECK_THROWS_WITH(read(R"("passes": [0])"), Contains(">= 1"));
  CHECK_THROWS_WITH(read(R"("context_words": [40, 40])"), Contains("different"));
  CHECK_THROWS_WITH(read(R"("samples": 0)"), Contains("samples"));
  CHECK_THROWS_WITH(read(R"("samples": 20000)"), Contains("samples"));
  CHECK_THROWS_WITH(read(R"("samples": true)"), Contains("samples"));
  CHECK_THROWS_WITH(read(R"("samples": "")"), Contains("a number of samples, or a file"));
  CHECK_THROWS_WITH(read(R"("samples": "x.jsonl", "context_words": [40])"), Contains("context_words"));
  CHECK_THROWS_WITH(read(R"("needles": 5)"), Contains("needles"));
  CHECK_THROWS_AS(read(R"("samples": "nowhere.jsonl")"), MissingFileError);
  std::string text;
  for (int i = 0; i < 20; ++i) { text += "word "; }
  const std::string of_text = R"("samples": 1, "passes": [1], "text": {"path": )" +
                              quoted(m.folder.write("short.txt", text)) + R"(}, "context_words": )";
  const EvalResult none = read(of_text + "[60]").result;
  CHECK(none.status == "skipped");
  CHECK_THAT(none.reason, Contains("haystacks of 60 words (found no document long enough"));
  const Outcome some = read(of_text + "[60, 30]");
  CHECK(some.result.status == "ok");
  REQUIRE(some.result.series.at("skipped").items().size() == 1);
  CHECK(some.result.series.at("skipped").items()[0].at("context_words").as_int() == 60);
  REQUIRE(some.result.series.at("by_length").items().size() == 1);
  CHECK(some.result.series.at("by_length").items()[0].at("context_words").as_int() == 30);
  TextModel bare(byte_model(false));
  bare.tokenizer = nullptr;
  CHECK_THROWS_WITH(bare.run(R"("kind": "niah", "samples": 1)"), Contains("tokenizer"));
}

TEST_CASE("RULER scores are means over samples, tasks and lengths", "[fast]") {
  const BigramModel m = says("is 12345");
  const Outcome o = m.run(R"("kind": "ruler", "samples": 3, "lengths": [1024, 1500],
    "tasks": ["niah_multikey_2", "niah_single_1", "qa_2"])");
  CHECK(o.result.source == "builtin");
  REQUIRE(o.samples.size() == 12);
  for (const Json& sample : o.samples) { CHECK(sample.at("prediction").as_string() == " 12345"); }
  const auto& points = o.result.series.at("by_task").items();
  REQUIRE(points.size() == 4);
  CHECK(points[1].at("task").as_string() == "niah_multikey_2");
  CHECK(points[1].at("length").as_int() == 1500);
  CHECK(points[1].at("tokens").as_double() <= 1500);
  CHECK(o.count("niah_single_1") == 6);
  CHECK(o.count("average") == 2);
  CHECK(o.result.groups.at("1500").at("niah_single_1").at("n").as_int() == 3);
  CHECK(o.result.metrics.find("average_6") == nullptr);
  const auto& skipped = o.result.series.at("skipped").items();
  REQUIRE(skipped.size() == 1);
  CHECK(skipped[0].at("reason").as_string() == "no key \"hotpotqa\"");
}

TEST_CASE("ready-made RULER samples are grouped by the smallest length that holds them", "[fast]") {
  const BigramModel m = says(":ab");
  const auto file =
      m.folder.write("s.jsonl", R"({"input": "abc", "outputs": ["AB", "x"], "answer_prefix": " so:", "length": 9}
{"input": "0123456789 0123456789 0123456789 0123456789 0123456789:", "outputs": ["b"], "task": "qa_1"}
)");
  const std::string keys = R"("kind": "ruler", "samples": )" + quoted(file);
  CHECK_THROWS_WITH(m.run(keys), Contains("tasks") && Contains("whose samples name none"));
  CHECK_THROWS_WITH(m.run(keys + R"(, "tasks": ["vt"], "squad": "x")"), Contains("squad"));
  const Outcome o = m.run(keys + R"(, "tasks": ["fwe"], "lengths": [70, 64])");  // 50 tokens for the answer
  CHECK(o.result.source == "official");
  CHECK(o.metric("fwe") == 0.5);
  CHECK(o.samples.size() == 1);
  CHECK(o.result.groups.members().size() == 1);
  CHECK(o.result.groups.at("64").at("average").at("value").as_double() == 0.5);
  CHECK_THROWS_WITH(m.run(keys + R"(, "tasks": ["vt"], "lengths": [64])").metric("qa_1"), Contains("member"));
  CHECK_THROWS_WITH(m.run(keys + R"(, "tasks": ["niah_single_1"], "lengths": [64])"), Contains("at least 135"));
}

TEST_CASE("the six-task average needs its six tasks", "[fast]") {
  const BigramModel m = says(":ab");
  std::string lines;
  for (const char* task :
       {"niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_2", "niah_multiquery", "vt", "cwe"}) {
    lines += R"({"input": "x:", "outputs": [")" + std::string(task == std::string("vt") ? "zz" : "ab") +
             R"("], "task": ")" + task + "\"}\n";
  }
  const Outcome o = m.run(R"("kind": "ruler", "samples": )" + quoted(m.folder.write("s.jsonl", lines)));
  CHECK(o.metric("average_6") == Approx(5.0 / 6));
  CHECK(o.metric("average") == Approx(6.0 / 7));
  CHECK(o.count("average") == 7);
}

TEST_CASE("RULER leaves out what cannot be made, and is skipped when nothing can", "[fast]") {
  const BigramModel m = says("7");
  const EvalResult skipped = m.run(R"("kind": "ruler", "tasks": ["qa_1", "qa_2"])").result;
  CHECK(skipped.status == "skipped");
  CHECK(skipped.reason.find("squad") != std::string::npos);
  const EvalResult none = m.run(R"("kind": "ruler", "lengths": [1024], "tasks": ["niah_single_2"])").result;
  CHECK(none.status == "skipped");
  CHECK_THAT(none.reason, Contains("niah_single_2 at length 1024"));
  const Outcome some =
      m.run(R"("kind": "ruler", "samples": 1, "lengths": [1024, 1500], "tasks": ["niah_single_2", "niah_single_1"])");
  CHECK(some.result.status == "ok");
  CHECK(some.result.metrics.find("niah_single_2") == nullptr);
  CHECK(some.count("niah_single_1") == 2);
  const auto& left_out = some.result.series.at("skipped").items();
  REQUIRE(left_out.size() == 2);
  CHECK(left_out[1].at("length").as_int() == 1500);
  CHECK_THAT(left_out[1].at("reason").as_string(), Contains("with the least text"));
  CHECK(some.samples[0].at("prompt").as_string().size() > 500);
  CHECK_THROWS_WITH(m.run(R"("kind": "ruler", "tasks": ["niah"])"), Contains("niah_single_1"));
  CHECK_THROWS_WITH(m.run(R"("kind": "ruler", "tasks": ["vt", "vt"])"), Contains("different"));
  CHECK_THROWS_WITH(m.run(R"("kind": "ruler", "lengths": [])"), Contains("lengths: found an empty list"));
  CHECK_THROWS_AS(m.run(R"("kind": "ruler", "squad": "nowhere.json")"), MissingFileError);
}

TEST_CASE("generated answers are scored as the record or the evaluation says", "[fast]") {
  const BigramModel m = says(":The-box.");
  const Outcome o = m.run_on(R"({"prompt": "q:", "answers": ["THE-box"]}
{"prompt": "q:", "answers": ["thebox other"], "score": "f1"}
{"prompt": "q:", "answers": ["Other", "box"], "score": "contains", "max_new_tokens": 5}
{"prompt": "q:", "answers": ["no"], "score": "none", "until": []}
)",
                             R"("kind": "generate", "score": "exact")");
  CHECK(predictions(o) == std::vector<std::string>{"The-box", "The-box.", "The-b", "The-box."});
  CHECK(o.metric("exact") == 1);
  CHECK(o.metric("f1") == Approx(2.0 / 3));
  CHECK(o.metric("contains") == 0);
  CHECK(o.count("exact") == 1);
  CHECK(o.metric("examples") == 4);
  CHECK(o.samples[3].find("score") == nullptr);
}

TEST_CASE("the text is cut before the first of several ends, also where one reaches over tokens", "[fast]") {
  const BigramModel m = says("=abcdef");
  const auto text = [&](const std::string& until) {
    return predictions(
        m.run_on(R"({"prompt": "=", "answers": []})", R"("kind": "generate", "score": "none", "until": )" + until))[0];
  };
  CHECK(text(R"(["ef", "cde"])") == "ab");
  CHECK(text(R"(["bc", "b"])") == "a");
  CHECK(text(R"(["x"])") == "abcdef");
  CHECK(text("[]") == "abcdef");
}

TEST_CASE("characters that were begun are written as such, those behind the end are not", "[fast]") {
  const BigramModel m({{{'=', 0xC3}, 5},
                       {{0xC3, 0xA9}, 5},
                       {{0xA9, 0xE6}, 5},
                       {{0xE6, kEos}, 5}});  // e with an accent, the start of another
  const auto text = [&](const std::string& keys) {
    return predictions(
        m.run_on(R"({"prompt": "=", "answers": []})", R"("kind": "generate", "score": "none")" + keys))[0];
  };
  CHECK(text("") == "\u00e9\ufffd");
  CHECK(text(R"(, "max_new_tokens": 2)") == "\u00e9");
  CHECK(text(R"(, "until": ["\u00e9"])").empty());
}

TEST_CASE("with a temperature each example draws from its own stream", "[fast]") {
  const BigramModel m(random_table(3));
  const std::string records = R"({"prompt": "a", "answers": []})"
                              "\n"
                              R"({"prompt": "a", "answers": []})"
                              "\n";
  const std::string keys = R"("kind": "generate", "score": "none", "temperature": 2.0, "max_new_tokens": 8)";
  const auto texts = predictions(m.run_on(records, keys));
  CHECK(texts == predictions(m.run_on(records, keys)));
  CHECK(texts[0] != texts[1]);
  ScoringModel s = m.load();
  for (uint64_t i = 0; i < 2; ++i) {
    const auto state = s.new_state();
    Rng rng(42, "sample", i);
    const int32_t first = sample_token(s.read(std::vector<int32_t>{'a'}, *state, {}), {2.0, 0, 1.0}, rng);
    CHECK(texts[i].starts_with(m.tokenizer->decode(std::vector<int32_t>{first})));
  }
}

TEST_CASE("texts that are only to be written are written without being asked for", "[fast]") {
  const BigramModel m = says("=ab");
  const std::string file = m.folder.write("r.jsonl", R"({"prompt": "=", "answers": []})").string();
  ScoringModel s = m.load();
  const std::string list = R"({"name": "x", "kind": "generate", "score": "none", "file": ")" + file + "\"}";
  CHECK(run_list(s, list, m.folder / "out", m.tokenizer).failed == 0);
  CHECK(read_file(m.folder / "out/x.samples.jsonl").find(R"("prediction":"ab")") != std::string::npos);
}

TEST_CASE("records that could never score are refused", "[fast]") {
  const BigramModel m = says("7");
  const auto run = [&](const std::string& record, const std::string& keys = "") {
    return m.run_on(record, R"("kind": "generate")" + keys);
  };
  CHECK_THROWS_WITH(run(R"({"prompt": "q", "answers": ["a"]})"), Contains("records.jsonl:1") && Contains("score"));
  CHECK_THROWS_WITH(run(R"({"prompt": "q", "answers": [], "score": "f1"})"), Contains("at least one"));
  CHECK_THROWS_WITH(run(R"({"prompt": "q", "answers": ["the"], "score": "f1"})"), Contains("no text can match"));
  CHECK_THROWS_WITH(run(R"({"prompt": "q", "answers": ["none"], "score": "gsm8k"})"), Contains("no text can match"));
  CHECK_THROWS_WITH(run(R"({"prompt": "q", "answers": ["x"], "score": "classification", "classes": ["y"]})"),
                    Contains("no text can match"));
  CHECK_THROWS_WITH(run(R"({"prompt": "q", "answers": [" "], "score": "match_all"})"), Contains("no text can match"));
  const std::string good = R"({"prompt": "q", "answers": ["a"]})";
  CHECK_THROWS_WITH(run(good, R"(, "score": "bleu")"), Contains("rouge_l"));
  CHECK_THROWS_WITH(run(good, R"(, "score": "f1", "until": [""])"), Contains("until"));
  CHECK_THROWS_WITH(run(good, R"(, "score": "f1", "temperature": 0)"), Contains("temperature"));
  CHECK_THROWS_AS(m.run(R"("kind": "generate", "score": "f1", "file": "nowhere.jsonl")"), MissingFileError);
}

TEST_CASE("generation stops at a signal", "[fast]") {
  const BigramModel m = says("=ab");
  const auto evaluations = evaluations_of(R"({"name": "x", "kind": "niah", "samples": 1, "context_words": [20]})");
  ScoringModel s = m.load();
  Progress quiet;
  int asked = 0;
  EvalContext context{s,  m.tokenizer, 64,
                      42, quiet,       [&] { return ++asked > 1; }};  // not before the sample, but inside it
  CHECK_THROWS_WITH(evaluations[0].task->run(context), Contains("signal"));
}
