#include "eval/likelihood.h"
#include "tests/eval/text_model.h"
#include "train/model_source.h"
#include "train/run_config.h"

namespace {

const char* const kFastKeys = R"("kind": "answer_ppl")";

double sum_of(const std::vector<double>& losses, size_t last) {
  double sum = 0;
  for (size_t i = losses.size() - last; i < losses.size(); ++i) { sum += losses[i]; }
  return sum;
}

/// Loss of an answer, with two passes of the model.
double answer_loss(ScoringModel& s, const Tokenizer& tokenizer, const std::string& context, const std::string& question,
                   const std::string& answer) {
  const auto state = s.new_state();
  s.read(tokenizer.encode(context), *state, {FastUpdate::at_end, false});
  const std::vector<int32_t> rest = tokenizer.encode(question + answer);
  return sum_of(
      s.score(std::span(rest).first(rest.size() - 1), std::span(rest).subspan(1), *state, {FastUpdate::never, false}),
      answer.size());
}

}  // namespace

TEST_CASE("cloze counts targets that are greedy throughout, and perplexity is per target", "[fast]") {
  const BigramModel model({{{' ', 'o'}, 2.0}, {{'o', 'n'}, 1.0}, {{'x', ' '}, 1.5}});
  const std::string records =
      "{\"context\": \"x\", \"target\": \" on\"}\n{\"context\": \"\", \"target\": \" on\"}\n{\"context\": \"x\", "
      "\"target\": \" o!\"}\n";
  const Outcome o = model.run_on(records, R"("kind": "cloze")");
  const double space = 1.5 - std::log(258 + std::exp(1.5)), letter = 2 - std::log(258 + std::exp(2.0)),
               last = 1 - std::log(258 + std::exp(1.0)), other = -std::log(259.0),
               after_o = -std::log(258 + std::exp(1.0));
  CHECK(o.metric("acc") == Approx(1.0 / 3));  // after EOS the first id is as likely as the space, and lower
  CHECK(o.metric("ppl") ==
        Approx(std::exp(-((space + letter + last) + (other + letter + last) + (space + letter + after_o)) / 3))
            .epsilon(1e-12));
  CHECK(o.count("ppl") == 3);
  CHECK(o.samples[0].at("score").as_double() == 1);
  CHECK(o.samples[2].at("score").as_double() == 0);
  CHECK(o.samples[0].at("references").as_string() == " on");
  CHECK(o.samples[0].at("prediction").as_string() == " on");
  CHECK(o.samples[1].at("prediction").as_string() == std::string("\0on", 3));
  CHECK(o.samples[2].at("prediction").as_string() == " on");
  CHECK(o.result.metrics.at("acc").at("stderr").as_double() == Approx(std::sqrt(2.0 / 3 / 2 / 3)));
}

TEST_CASE("of equally likely tokens the lowest id is greedy", "[fast]") {
  const BigramModel model({{{'x', 'a'}, 1.0}, {{'x', 'b'}, 1.0}});
  CHECK(model.run_on(R"({"context": "x", "target": "a"})", R"("kind": "cloze")").metric("acc") == 1);
  CHECK(model.run_on(R"({"context": "x", "target": "b"})", R"("kind": "cloze")").metric("acc") == 0);
}

TEST_CASE("rolling perplexity is the table's, whatever the length of segments", "[fast]") {
  const BigramModel model(random_table(3));
  const std::string first = " A text of\n\nsome words ", second = "two words";
  const std::string records =
      "{\"text\": " + Json(first).dump() + "}\n{\"text\": \"" + second + "\", \"words\": 5, \"bytes\": 100}\n";
  const double ll = model.log_p(kEos, first) + model.log_p(kEos, second);
  for (const int length : {1, 5, 64, 4096}) {
    const Outcome o = model.run_on(records, R"("kind": "rolling", "max_length": )" + std::to_string(length));
    const double tokens = static_cast<double>(first.size() + second.size());
    CHECK(o.metric("token_ppl") == Approx(std::exp(-ll / tokens)).epsilon(1e-12));
    CHECK(o.count("token_ppl") == static_cast<int64_t>(tokens));
    CHECK(o.metric("word_ppl") == Approx(std::exp(-ll / (7 + 5))).epsilon(1e-12));  // "", A, text, of, some, words, ""
    CHECK(o.count("word_ppl") == 12);
    CHECK(o.metric("bits_per_byte") ==
          Approx(-ll / ((static_cast<double>(first.size()) + 100) * std::log(2.0))).epsilon(1e-12));
    CHECK(o.samples[1].at("ll").as_double() == Approx(model.log_p(kEos, second)).epsilon(1e-12));
  }
}

TEST_CASE("a text starts with BOS where the tokenizer adds it", "[fast]") {
  BigramModel model(random_table(5));
  model.tokenizer = Tokenizer::load({"bytes", "", true, true});
  const Outcome o = model.run_on(R"({"text": "some text"})", R"("kind": "rolling")");
  CHECK(o.samples[0].at("ll").as_double() == Approx(model.log_p(kBos, "some text")).epsilon(1e-12));
  const Outcome c = model.run_on(R"({"context": "", "target": "text"})", R"("kind": "cloze")");
  CHECK(c.samples[0].at("ll").as_double() == Approx(model.log_p(kBos, "text")).epsilon(1e-12));
}

TEST_CASE("segments of a text start anew, fast weights go on within a text", "[fast]") {
  for (const bool memory : {false, true}) {
    const TextModel model(byte_model(memory));
    const std::string text = "a text that is cut into segments of eleven tokens";
    const std::string line = "{\"text\": \"" + text + "\"}\n";
    const Outcome o = model.run_on(line + line, R"("kind": "rolling", "max_length": 11)");
    ScoringModel s = model.load();
    std::vector<int32_t> ids = {kEos};
    for (const char c : text) { ids.push_back(c); }
    double sum = 0;
    for (size_t from = 0; from + 1 < ids.size(); from += 11) {
      const size_t n = std::min<size_t>(11, ids.size() - 1 - from), again = std::min(from, 11 - n);
      const auto state = s.new_state();
      if (again > 0) {  // the last window is full: it reads the end of the one before, without learning it again
        s.advance(std::span(ids).subspan(from - again, again), *state, {FastUpdate::never, false});
      }
      sum += sum_of(s.score(std::span(ids).subspan(from, n), std::span(ids).subspan(from + 1, n), *state, {}), n);
      s.flush(*state, {});
    }
    CHECK(o.samples[0].at("ll").as_double() == Approx(-sum).epsilon(1e-12));
    if (!memory) {  // one pass over the last eleven inputs
      const auto state = s.new_state();
      const std::span<const int32_t> last = std::span(ids).last(12);
      const std::vector<double> losses = s.score(last.first(11), last.subspan(1), *state, {});
      const auto before = s.new_state();
      const std::vector<double> cut =
          s.score(std::span(ids).subspan(44, 5), std::span(ids).subspan(45, 5), *before, {});
      const double kept = sum_of({losses.begin() + 6, losses.end()}, 5);
      CHECK(kept != Approx(sum_of(cut, 5)));
      double rest = 0;
      for (size_t from = 0; from < 44; from += 11) {
        const auto own = s.new_state();
        rest += sum_of(s.score(std::span(ids).subspan(from, 11), std::span(ids).subspan(from + 1, 11), *own, {}), 11);
      }
      CHECK(o.samples[0].at("ll").as_double() == Approx(-(rest + kept)).epsilon(1e-10));
    }
    CHECK(o.samples[1].at("ll").as_double() == Approx(-sum).epsilon(1e-12));  // texts do not influence each other
    if (memory) {
      const Outcome frozen = model.run_on(line, R"("kind": "rolling", "max_length": 11, "freeze_fast_weights": true)");
      CHECK(frozen.metric("token_ppl") != o.metric("token_ppl"));
    }
  }
}

TEST_CASE("perplexity of answers is the table's, over all answer tokens of the file", "[fast]") {
  const BigramModel model(random_table(8));
  const std::string records =
      "{\"context\": \"A report. \", \"question\": \"Who?\", \"answers\": [\"Ada\", \"unused\"]}\n"
      "{\"context\": \"\", \"question\": \"What? \", \"answers\": [\"A longer answer\"]}\n";
  const Outcome o = model.run_on(records, kFastKeys, 0);
  const double first = model.log_p('?', "Ada"), second = model.log_p(' ', "A longer answer");
  CHECK(o.metric("nll") == Approx(-(first + second) / 18).epsilon(1e-12));
  CHECK(o.metric("ppl") == Approx(std::exp(-(first + second) / 18)).epsilon(1e-12));
  CHECK(o.count("ppl") == 18);
  CHECK(o.metric("examples") == 2);
  CHECK(o.metric("left_out") == 0);
  CHECK(o.samples[1].at("ll").as_double() == Approx(second).epsilon(1e-12));
  CHECK(o.samples[0].at("tokens").as_int() == 3);
  CHECK(o.samples[0].at("references").as_string() == "Ada");
}

TEST_CASE("examples that are too long are left out and counted", "[fast]") {
  const BigramModel model(random_table(8));
  const std::string records =
      "{\"context\": \"0123456789\", \"question\": \"Who?\", \"answers\": [\"Ada\"]}\n"
      "{\"context\": \"0123456789+\", \"question\": \"Who?\", \"answers\": [\"Ada\"]}\n"
      "{\"context\": \"0\", \"question\": \"Who?\", \"answers\": [\"Bob\"], \"length\": 65536}\n"
      "{\"context\": \"0\", \"question\": \"Who?\", \"answers\": [\"Bob\"], \"length\": 65537}\n";
  const Outcome o = model.run_on(records, R"("kind": "answer_ppl", "max_tokens": 17)");
  CHECK(o.metric("examples") == 2);
  CHECK(o.metric("left_out") == 2);
  CHECK(o.samples[0].at("id").as_string() == "0");
  CHECK(o.samples[1].at("id").as_string() == "2");
  CHECK(model.run_on(records, R"("kind": "answer_ppl", "max_record_length": 65537)").metric("examples") == 4);
  CHECK(model.run_on(records, R"("kind": "answer_ppl", "max_examples": 3)").metric("examples") == 3);
  const Outcome none = model.run_on(records, R"("kind": "answer_ppl", "max_tokens": 7)");
  CHECK(none.result.status == "failed");
  CHECK(none.result.reason.find("no example of at most max_tokens (7) tokens") != std::string::npos);
}

TEST_CASE("fast weights move once, after the context, and are carried on where asked", "[fast]") {
  const TextModel model(byte_model(true));
  std::string context;
  for (int i = 0; i < 30; ++i) { context += "fact " + std::to_string(i * i) + "; "; }
  const auto line = [&](const std::string& text) {
    return "{\"context\": \"" + text + "\", \"question\": \"Which? \", \"answers\": [\"this\"]}\n";
  };
  const std::string records = line(context) + line("short") + line(context);
  constexpr int64_t kSegment = 100;  // the context goes over several
  REQUIRE(context.size() > 2 * kSegment);

  ScoringModel s = model.load();
  s.set_reading({kSegment, {}});
  const auto weights = s.save_fast_weights();
  std::vector<double> carried, reset;
  for (const std::string& text : {context, std::string("short"), context}) {
    carried.push_back(answer_loss(s, *model.tokenizer, text, "Which? ", "this"));
  }
  for (const std::string& text : {context, std::string("short"), context}) {
    s.restore_fast_weights(weights);
    reset.push_back(answer_loss(s, *model.tokenizer, text, "Which? ", "this"));
  }
  const std::string segment = ", \"segment\": " + std::to_string(kSegment);
  const Outcome a = model.run_on(records, kFastKeys + segment),
                b = model.run_on(records, R"("kind": "answer_ppl", "fast_weights": "reset")" + segment);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(a.samples[i].at("ll").as_double() == Approx(-carried[i]).epsilon(1e-12));
    CHECK(b.samples[i].at("ll").as_double() == Approx(-reset[i]).epsilon(1e-12));
  }
  CHECK(carried[2] != reset[2]);
  CHECK(b.samples[0].at("ll") == b.samples[2].at("ll"));
  ScoringModel unread = model.load();
  unread.set_reading({kSegment, {}});
  const auto state = unread.new_state();
  unread.read(model.tokenizer->encode(context), *state, {FastUpdate::never, false});
  CHECK(unread.save_fast_weights() == weights);
}

TEST_CASE("texts without a token are refused", "[fast]") {
  const BigramModel model({});
  CHECK_THROWS_WITH(model.run_on(R"({"context": "c", "question": "", "answers": ["a"]})", kFastKeys),
                    Contains("records.jsonl:1: the question has no token"));
  CHECK_THROWS_WITH(model.run(R"("kind": "answer_ppl", "file": "x", "fast_weights": "keep")"),
                    Contains("fast_weights: found \"keep\""));
  CHECK_THROWS_AS(model.run(R"("kind": "answer_ppl", "file": "/nowhere/x.jsonl")"), MissingFileError);
  CHECK_THROWS_WITH(model.run_on(R"({"text": "a"})", R"("kind": "rolling")", 0), Contains("max_length: found nothing"));
}

TEST_CASE("without a run, max_length is max_position_embeddings of the folder, and a line says so", "[fast]") {
  const TextModel files(byte_model(false));
  const fs::path folder = files.folder / "converted";
  const std::string records =
      files.folder.write("records.jsonl", R"({"text": "a text of more than eleven characters"})").string();
  fs::create_directories(folder);
  fs::copy_file(files.folder / "w.safetensors", folder / "model.safetensors");
  const auto write = [&](const std::string& positions, const std::string& more = "") {
    files.folder.write("converted/config.json",
                       "{\"model\": " + byte_model(false) + ", \"max_position_embeddings\": " + positions + more + "}");
  };
  struct Heard final : Progress {
    void message(std::string_view text) override { lines += std::string(text) + "\n"; }
    std::string lines;
  } heard;
  const auto run = [&](const std::string& keys) {
    heard.lines.clear();
    EvalRequest request{folder.string(), find_weights(folder), {}, "bytes", {DeviceKind::cpu, DType::f64}};
    auto list = evaluations_of(R"({"name": "t", "kind": "rolling", "file": ")" + records + "\"" + keys + "}");
    const EvalCounts counts = evaluate_checkpoint(std::move(list), request, heard, [](const std::string&) {});
    REQUIRE(counts.ok == 1);
    return counts.results.at(0).at("metrics");
  };
  write("11");
  const Json found = run("");
  CHECK(heard.lines == "t: max_length is 11 tokens, max_position_embeddings of config.json\n");
  CHECK(run(", \"max_length\": 11") == found);
  CHECK_THAT(heard.lines, !Contains("max_length is"));
  write("9");  // another result
  const Json shorter = run("");
  CHECK_FALSE(shorter == found);
  write("11", R"(, "train": {"sequence_length": 9})");  // a run has its own
  CHECK(run("") == shorter);
  CHECK_THAT(heard.lines, !Contains("max_length is"));
  write("0");
  CHECK_THROWS_WITH(run(""), Contains("max_position_embeddings: found 0, expected an integer >= 1"));
}

TEST_CASE("scores of texts do not depend on the segments in which they are read", "[fast]") {
  for (const bool memory : {false, true}) {
    const TextModel model(byte_model(memory));
    std::string context;
    for (int i = 0; i < 40; ++i) { context += "line " + std::to_string(i * i) + ". "; }
    const std::map<std::string, std::string> records = {
        {"choice", "{\"context\": \"" + context + "\", \"choices\": [\"one\", \"another\"], \"gold\": 0}"},
        {"cloze", "{\"context\": \"" + context + "\", \"target\": \" word\"}"},
        {"rolling", "{\"text\": \"" + context + "\"}"},
        {"answer_ppl", "{\"context\": \"" + context + "\", \"question\": \"Which?\", \"answers\": [\"this one\"]}"}};
    for (const auto& entry : records) {
      const std::string &kind = entry.first, &record = entry.second;
      const auto ll = [&](const std::string& segment) {
        const std::string length = kind == "answer_ppl" ? "" : ", \"max_length\": 4096";
        return model.run_on(record, "\"kind\": \"" + kind + "\", \"segment\": " + segment + length)
            .samples.at(0)
            .at("ll");
      };
      const Json whole = ll("4096"), parts = ll("64");
      INFO(kind);
      const auto number = [](const Json& j) { return j.is_array() ? j.items()[1].as_double() : j.as_double(); };
      CHECK(number(parts) == Approx(number(whole)).epsilon(1e-10));
    }
  }
}

TEST_CASE("solved examples stand in front of prompts, too", "[fast]") {
  const TextModel model(byte_model(false));
  const std::string shots = model.folder
                                .write("shots.jsonl",
                                       "{\"prompt\": \"Q: a?\\nA:\", \"answers\": [\"b\", \"c\"]}\n{\"prompt\": \"Q: "
                                       "d?\\nA:\", \"answers\": [\"e\"]}\n")
                                .string();
  const auto hash = [&](const std::string& prompt, const std::string& keys) {
    const std::string record = Json::object({{"prompt", prompt}, {"answers", Json::array({Json("x")})}}).dump();
    return model.run_on(record, R"("kind": "generate", "score": "exact", "max_new_tokens": 3)" + keys)
        .samples[0]
        .at("input_hash");
  };
  CHECK(hash("Q: f?\nA:", R"(, "fewshot": {"k": 2, "file": ")" + shots + "\"}") ==
        hash("Q: a?\nA: b\n\nQ: d?\nA: e\n\nQ: f?\nA:", ""));
  const std::string empty = model.folder.write("empty.jsonl", "{\"prompt\": \"Q\", \"answers\": []}\n").string();
  CHECK_THROWS_WITH(hash("Q", R"(, "fewshot": {"k": 1, "file": ")" + empty + "\"}"),
                    Contains("empty.jsonl:1: \"answers\" of a solved example (found none, expected at least one)"));
}

TEST_CASE("solutions of gsm8k are answers that can be compared", "[fast]") {
  const TextModel model(byte_model(false));
  const std::string record =
      R"({"prompt": "Question: 2 + 2?\nAnswer:", "answers": ["2 + 2 = <<2+2=4>>4\n#### 4"], "until": ["Question:"], "score": "gsm8k"})";
  CHECK(model.run_on(record, R"("kind": "generate", "max_new_tokens": 3)").count("gsm8k") == 1);
}
