#include "eval/likelihood.h"
#include "tests/eval/text_model.h"

namespace {

std::string random_text(Rng& rng, uint32_t most) {
  std::string text;
  for (uint32_t n = 1 + rng.below(most); n > 0; --n) { text += static_cast<char>('!' + rng.below(90)); }
  return text;
}

/// A record, the first choice being right.
ChoiceRecord record(const std::string& context, const std::vector<std::string>& choices) {
  ChoiceRecord r;
  r.context = context;
  r.choices = choices;
  r.gold = {0};
  return r;
}

Outcome choose(const TextModel& model, const std::vector<ChoiceRecord>& records, const std::string& keys = "",
               int64_t training_length = 64) {
  std::string lines;
  for (const ChoiceRecord& r : records) {
    Json line = Fields::write(r);
    if (r.id.empty()) { line.erase("id"); }
    if (!r.group) { line.erase("group"); }
    lines += line.dump() + "\n";
  }
  return model.run_on(lines, R"("kind": "choice")" + keys, training_length);
}

/// The likelihoods of the choices of one record.
const std::vector<Json>& lls_of(const Outcome& o, size_t i) { return o.samples[i].at("ll").items(); }

/// The shares of right predictions, by straight sums over the table.
struct Expected {
  std::map<std::string, std::vector<double>> scores;

  void add(const std::vector<double>& lls, const std::vector<std::string>& choices, int64_t gold,
           const std::string& delimiter) {
    const auto note = [&](const char* name, const std::function<double(const std::string&)>& size) {
      size_t best = 0;
      for (size_t j = 1; j < lls.size(); ++j) {
        if (lls[j] / size(choices[j]) > lls[best] / size(choices[best])) { best = j; }
      }
      scores[name].push_back(static_cast<int64_t>(best) == gold ? 1.0 : 0.0);
    };
    note("acc", [](const std::string&) { return 1.0; });
    note("acc_norm", [](const std::string& choice) {
      double n = 0;
      for (const char c : choice) { n += (c & 0xC0) == 0x80 ? 0 : 1; }
      return n;
    });
    note("acc_byte", [](const std::string& choice) { return static_cast<double>(choice.size()); });
    note("acc_token", [&](const std::string& choice) { return static_cast<double>(delimiter.size() + choice.size()); });
  }
  double mean(const std::string& name) const {
    double sum = 0;
    for (const double x : scores.at(name)) { sum += x; }
    return sum / static_cast<double>(scores.at(name).size());
  }
};

}  // namespace

TEST_CASE("choices are scored as a table of bigrams says", "[fast]") {
  const BigramModel model(random_table(1));
  Rng rng(2, "records");
  std::vector<ChoiceRecord> records;
  Expected expected;
  std::vector<std::vector<double>> lls;
  for (int i = 0; i < 40; ++i) {
    ChoiceRecord r = record(i % 5 == 0 ? "" : random_text(rng, 30), {});
    r.delimiter = i % 3 == 0 ? "" : i % 3 == 1 ? " " : "\n\n";
    for (int j = 0; j < 4; ++j) { r.choices.push_back(random_text(rng, 6) + (rng.below(2) == 0 ? "\xC3\xA9" : "")); }
    r.gold = {rng.below(4)};
    lls.emplace_back();
    for (const std::string& choice : r.choices) {
      lls.back().push_back(model.log_p(r.context.empty() ? kEos : r.context.back(), r.delimiter + choice));
    }
    expected.add(lls.back(), r.choices, r.gold[0], r.delimiter);
    records.push_back(r);
  }
  const Outcome o = choose(model, records);
  for (const char* name : {"acc", "acc_norm", "acc_byte", "acc_token"}) {
    const double p = expected.mean(name);
    CHECK(o.metric(name) == Approx(p).epsilon(1e-12));
    CHECK(o.count(name) == 40);
    // 0 or 1: the squares of the deviations sum to n p (1 - p).
    CHECK(o.result.metrics.at(name).at("stderr").as_double() == Approx(std::sqrt(p * (1 - p) / 39)).epsilon(1e-12));
  }
  REQUIRE(o.samples.size() == 40);
  for (size_t i = 0; i < lls.size(); ++i) {
    for (size_t j = 0; j < 4; ++j) { CHECK(lls_of(o, i)[j].as_double() == Approx(lls[i][j]).epsilon(1e-12)); }
  }
  CHECK(expected.mean("acc") != expected.mean("acc_norm"));  // otherwise the cases say little
}

TEST_CASE("each measure divides by its own length, and ties go to the lowest index", "[fast]") {
  const BigramModel model({});  // all tokens are equally likely
  const double uniform = std::log(259.0);
  // Lengths with the delimiter: 3, 5 and 4 bytes, so log-likelihoods -3, -5 and -4 times ln 259.
  ChoiceRecord r = record("c", {"ab", "éé", "abc"});
  const Outcome o = choose(model, {r});
  CHECK(lls_of(o, 0)[0].as_double() == Approx(-3 * uniform).epsilon(1e-12));
  CHECK(lls_of(o, 0)[1].as_double() == Approx(-5 * uniform).epsilon(1e-12));
  CHECK(o.metric("acc") == 1);  // -3, -5, -4
  const auto prediction_is = [&](int gold, const char* measure) {
    r.gold = {gold};
    return choose(model, {r}).metric(measure) == 1;
  };
  CHECK(prediction_is(2, "acc_norm"));   // -3/2, -5/2, -4/3
  CHECK(prediction_is(1, "acc_byte"));   // -3/2, -5/4, -4/3
  CHECK(prediction_is(0, "acc_token"));  // -1, -1, -1: a tie
  CHECK(o.result.metrics.at("acc").find("stderr") == nullptr);
}

TEST_CASE("any of several right choices counts", "[fast]") {
  const BigramModel model({});
  ChoiceRecord first = record("c", {"abc", "a", "ab"}), second = first;
  first.gold = {0, 1};
  second.gold = {0, 2};
  const Outcome o = choose(model, {first, second});
  CHECK(o.metric("acc") == 0.5);
  CHECK(o.samples[0].at("prediction").as_int() == 1);
  CHECK(o.samples[0].at("references") == parse_json("[0, 1]", "t"));
  CHECK(o.samples[1].at("score").as_double() == 0);
}

TEST_CASE("groups are reported apart, and their mean does not weigh them by size", "[fast]") {
  const BigramModel model({});
  const auto in_group = [](const std::string& group, int gold) {
    ChoiceRecord r = record("c", {"a", "ab"});
    r.gold = {gold};
    r.group = group;
    return r;
  };
  const Outcome o = choose(model, {in_group("z", 0), in_group("z", 0), in_group("z", 1), in_group("b", 1)});
  CHECK(o.metric("acc") == 0.5);
  CHECK(o.result.groups.at("z").at("acc").at("value").as_double() == Approx(2.0 / 3));
  CHECK(o.result.groups.at("z").at("acc").at("n").as_int() == 3);
  CHECK(o.result.groups.at("b").at("acc").at("value").as_double() == 0);
  CHECK(o.metric("acc_group_mean") == Approx(1.0 / 3));
  CHECK(o.count("acc_group_mean") == 2);
  CHECK(o.result.groups.members()[0].first == "z");
}

TEST_CASE("partial compares one continuation after several contexts", "[fast]") {
  const BigramModel model({{{'a', '.'}, 2.0}, {{'b', '.'}, 3.0}});
  const std::string records =
      "{\"contexts\": [\"a\", \"b\"], \"continuation\": \". c\", \"gold\": 1, \"delimiter\": \"\"}\n"
      "{\"contexts\": [\"a \", \"b\"], \"continuation\": \". c\", \"gold\": 0, \"delimiter\": \"\"}\n";
  const Outcome o = model.run_on(records, R"("kind": "partial")");
  CHECK(o.metric("acc") == 0.5);
  CHECK(o.result.metrics.members().size() == 1);
  const double after_a = 2 - std::log(258 + std::exp(2.0)), after_b = 3 - std::log(258 + std::exp(3.0)),
               other = -std::log(259.0);
  CHECK(o.samples[0].at("ll").items()[0].as_double() == Approx(after_a + 2 * other).epsilon(1e-12));
  CHECK(o.samples[0].at("ll").items()[1].as_double() == Approx(after_b + 2 * other).epsilon(1e-12));
  // The space behind "a" moves to the continuation: one more byte is scored.
  CHECK(o.samples[1].at("ll").items()[0].as_double() ==
        Approx(-std::log(258 + std::exp(2.0)) + 3 * other).epsilon(1e-12));
}

TEST_CASE("choices of one token share a pass, and nothing else changes", "[fast]") {
  for (const bool memory : {false, true}) {
    const TextModel model(byte_model(memory));
    Rng rng(4, "records");
    std::vector<ChoiceRecord> together, apart;
    for (int i = 0; i < 5; ++i) {
      ChoiceRecord& all = together.emplace_back(record(random_text(rng, 40), {"A", "B", "C", "D"}));
      all.delimiter = "";
      for (const std::string& choice : all.choices) { apart.emplace_back(all).choices = {choice, "longer"}; }
    }
    const Outcome a = choose(model, together), b = choose(model, apart);
    for (size_t i = 0; i < 5; ++i) {
      for (size_t j = 0; j < 4; ++j) { CHECK(lls_of(a, i)[j] == lls_of(b, 4 * i + j)[0]); }
    }
  }
}

TEST_CASE("examples and choices do not influence each other, fast weights included", "[fast]") {
  const TextModel model(byte_model(true));
  const ChoiceRecord first = record("a context that is longer than a chunk", {"one", "two more"}),
                     second = record("another one, of some length as well", {"two more", "one"}),
                     swapped = record("a context that is longer than a chunk", {"two more", "one"});
  const Outcome a = choose(model, {first, second}), b = choose(model, {second, swapped});
  CHECK(lls_of(a, 1) == lls_of(b, 0));
  CHECK(lls_of(a, 0)[0] == lls_of(b, 1)[1]);
  CHECK(lls_of(a, 0)[1] == lls_of(b, 1)[0]);
  const Outcome frozen = choose(model, {first, second}, R"(, "freeze_fast_weights": true)");
  CHECK(lls_of(frozen, 0)[0] != lls_of(a, 0)[0]);
}

TEST_CASE("an example's likelihood is the sum of the losses of its last tokens", "[fast]") {
  for (const bool memory : {false, true}) {
    const TextModel model(byte_model(memory));
    const std::string context = "some context of more than one chunk", choice = " and more";
    const Outcome o = choose(model, {record(context, {"and more", "x"})});
    ScoringModel s = model.load();
    const std::vector<int32_t> ids = model.tokenizer->encode(context + choice);
    const auto state = s.new_state();
    const std::vector<double> losses =
        s.score(std::span(ids).first(ids.size() - 1), std::span(ids).subspan(1), *state, {});
    double ll = 0;
    for (size_t i = losses.size() - choice.size(); i < losses.size(); ++i) { ll -= losses[i]; }
    CHECK(lls_of(o, 0)[0].as_double() == Approx(ll).epsilon(1e-11));
  }
}

TEST_CASE("inputs longer than max_length lose their start", "[fast]") {
  const TextModel model(byte_model(false));
  const auto run = [&](const std::string& context, const std::string& keys, int64_t training_length) {
    return lls_of(choose(model, {record(context, {"yes", "no"})}, keys, training_length), 0)[0];
  };
  // " yes": 4 of the 9 + 1 ids that are kept, so 6 of the context.
  CHECK(run("0123456789abcdef", ", \"max_length\": 9", 64) == run("abcdef", "", 64));
  CHECK(run("0123456789abcdef", "", 9) == run("abcdef", "", 64));
  CHECK_FALSE(run("0123456789abcdef", "", 64) == run("abcdef", "", 64));
}

TEST_CASE("solved examples stand in front, each with a blank line behind it", "[fast]") {
  const TextModel model(byte_model(false));
  const std::string shots = model.folder
                                .write("shots.jsonl", R"({"context": "q1", "choices": ["x", "a1"], "gold": 1}
{"context": "q2", "choices": ["a2"], "gold": 0, "delimiter": ": "}
{"context": "q3", "choices": ["a3"], "gold": 0}
)")
                                .string();
  const auto lls = [&](const std::vector<std::string>& contexts, const std::string& keys) {
    std::vector<ChoiceRecord> records;
    for (const std::string& context : contexts) { records.push_back(record(context, {"yes", "no"})); }
    std::string text;
    for (const Json& sample : choose(model, records, R"(, "max_length": 500)" + keys).samples) {
      text += sample.at("ll").dump();
    }
    return text;
  };
  const auto with_shots = [&](const std::string& keys) {
    return R"(, "seed": 9, "fewshot": {"file": ")" + shots + "\", " + keys + "}";
  };
  CHECK(lls({"c"}, with_shots("\"k\": 2")) == lls({"q1 a1\n\nq2: a2\n\nc"}, ""));

  const std::vector<std::string> texts = {"q1 a1\n\n", "q2: a2\n\n", "q3 a3\n\n"};
  std::vector<std::string> rendered;
  for (uint64_t i = 0; i < 6; ++i) {
    const auto drawn = Rng(9, "fewshot", i).sample(3, 2);
    rendered.push_back(texts[drawn[0]] + texts[drawn[1]] + "c");
  }
  CHECK(lls(std::vector<std::string>(6, "c"), with_shots(R"("k": 2, "order": "sample")")) == lls(rendered, ""));
}

FOLDER_TEST("an example is never its own solved example", "[fast]") {
  const std::string file =
      folder
          .write("own.jsonl",
                 "{\"context\": \"a\", \"target\": \" 1\"}\n{\"context\": \"b\", \"target\": \" 2\"}\n"
                 "{\"context\": \"c\", \"target\": \" 3\"}\n")
          .string();
  const auto shots = [&](const std::string& order, int64_t k) {
    return Shots::read<ClozeRecord>({"", FewShot{.file = file, .order = order, .k = k}},
                                    (folder / "./own.jsonl").string(), 7);
  };
  CHECK(shots("first", 2).before(0) == "b 2\n\nc 3\n\n");
  CHECK(shots("first", 2).before(1) == "a 1\n\nc 3\n\n");
  CHECK(shots("first", 1).before(2) == "a 1\n\n");
  const std::vector<std::string> others = {"a 1\n\n", "c 3\n\n"};
  const auto drawn = Rng(7, "fewshot", 1).sample(2, 2);
  CHECK(shots("sample", 2).before(1) == others[drawn[0]] + others[drawn[1]]);
  CHECK_THROWS_WITH(shots("first", 3),
                    Contains("fewshot.k: found 3, expected at most 2, the other examples of " + file));
  CHECK(Shots::read<ClozeRecord>({}, file, 7).before(0).empty());
  CHECK(Shots::read<ClozeRecord>({"All: ", FewShot{.file = file, .separator = "; ", .k = 2}}, file, 7).before(1) ==
        "All: a 1; c 3; ");
}

TEST_CASE("what cannot be scored is refused", "[fast]") {
  const BigramModel model({});
  const std::vector<ChoiceRecord> one{record("c", {"yes", "no"})};
  CHECK_THROWS_WITH(choose(model, one, "", 0), Contains("max_length: found nothing, expected a length"));
  CHECK_THROWS_WITH(
      choose(model, one, R"(, "max_length": 3)"),
      Contains("records.jsonl:1: the continuation is too long (found 4 tokens, expected at most max_length (3))"));
  CHECK_THROWS_WITH(choose(model, {record("c", {"yes"})}),
                    Contains("records.jsonl:1: choices (found one, which is always right, expected at least two)"));
  CHECK_THROWS_WITH(model.run(R"("kind": "choice")"), Contains("file: found nothing"));
  CHECK_THROWS_AS(model.run(R"("kind": "choice", "file": "/nowhere/records.jsonl")"), MissingFileError);
  CHECK_THROWS_WITH(choose(model, one, R"(, "fewshot": {"file": "x"})"), Contains("fewshot.k: found nothing"));
  CHECK_THROWS_WITH(choose(model, one, R"(, "fewshot": {"file": "x", "k": 1, "order": "last"})"),
                    Contains("fewshot.order: found \"last\""));
  CHECK_THROWS_WITH(choose(model, one, R"(, "data": {})"), Contains("data: found an unknown key"));
  BigramModel without({});
  without.tokenizer = nullptr;
  CHECK_THROWS_WITH(choose(without, one),
                    Contains("--tokenizer: found a checkpoint whose configuration names no tokenizer"));
  const TextModel broken(byte_model(false), [](Param& p, double* values) {
    if (p.name() == "lm_head.weight") { values[0] = std::nan(""); }
  });
  CHECK_THROWS_WITH(choose(broken, one), Contains("a logit that is no finite number"));
  ScoringModel model_of_nan = broken.load();
  const auto state = model_of_nan.new_state();
  const std::vector<int32_t> two{5, 6};
  CHECK_THROWS_AS(model_of_nan.read({two.data(), 1}, *state, {}), NumericError);
  CHECK_THROWS_AS(model_of_nan.read(two, *state, {}), NumericError);
  CHECK_THROWS_AS(model_of_nan.score(two, two, *state, {}), NumericError);
}

TEST_CASE("max_examples takes the first examples", "[fast]") {
  const BigramModel model({});
  const ChoiceRecord r = record("c", {"yes", "no"});
  CHECK(choose(model, {r, r, r}, R"(, "max_examples": 2)").count("acc") == 2);
}
