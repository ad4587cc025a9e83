// Log-likelihoods of lm-evaluation-harness 0.4.13 (tests/reference/lm_eval_tasks.py).
#include "data/text/characters.h"
#include "inspect/convert/convert.h"
#include "tests/eval/model_file.h"
#include "tests/paths.h"
#include "tests/test.h"

namespace {

fs::path harness_file(const std::string& name) { return fs::path(HEBB_TEST_DATA) / "golden/lm-eval" / name; }

}  // namespace

FOLDER_TEST("log-likelihoods of texts and of continuations are the harness's", "[fast]") {
  convert_checkpoint(harness_file("model"), folder / "model");
  ScoringModel model(read_model_source((folder / "model").string()), folder / "model/model.safetensors",
                     {DeviceKind::cpu, DType::f64});
  const std::shared_ptr<const Tokenizer> tokenizer =
      Tokenizer::load({"huggingface", harness_file("model/tokenizer.json").string(), false, true});
  const Json golden = parse_json_file(harness_file("likelihoods.json").string());
  // Tolerance: the model there has norms and rotary angles in fp32.
  const auto sample_of = [&](const std::string& kind, const Json& record, int64_t length) {
    std::vector<Json> samples;
    const std::string file = folder.write("records.jsonl", record.dump() + "\n").string();
    evaluate(model, "\"kind\": \"" + kind + "\", \"file\": \"" + file + "\", \"max_length\": " + std::to_string(length),
             tokenizer, 64, &samples);
    return samples.empty() ? Json() : samples[0];
  };
  for (const Json& one : golden.at("rolling").items()) {
    INFO(one.dump());
    const Json sample = sample_of("rolling", Json::object({{"text", one.at("text")}}), one.at("max_length").as_int());
    CHECK(sample.at("tokens") == one.at("tokens"));
    CHECK(sample.at("ll").as_double() == Approx(one.at("ll").as_double()).epsilon(1e-6));
  }
  int64_t merged = 0;
  for (const Json& one : golden.at("pairs").items()) {
    INFO(one.dump());
    const Json record = Json::object({{"context", one.at("context")}, {"target", one.at("continuation")}});
    if (one.at("ll").is_null()) {  // the harness ends with an error
      ++merged;
      CHECK(sample_of("cloze", record, one.at("max_length").as_int()).is_null());
      continue;
    }
    const Json sample = sample_of("cloze", record, one.at("max_length").as_int());
    CHECK(sample.at("ll").as_double() == Approx(one.at("ll").as_double()).epsilon(1e-6));
    CHECK((sample.at("score").as_double() == 1) == one.at("greedy").as_bool());
  }
  CHECK(merged > 0);
}

FOLDER_TEST("records that merge are left out and counted, and contexts that are cut are counted", "[fast]") {
  convert_checkpoint(harness_file("model"), folder / "model");
  ScoringModel model(read_model_source((folder / "model").string()), folder / "model/model.safetensors",
                     {DeviceKind::cpu, DType::f64});
  const std::shared_ptr<const Tokenizer> tokenizer =
      Tokenizer::load({"huggingface", harness_file("model/tokenizer.json").string(), false, true});
  const std::string good = R"({"context": "Ada rang the", "choices": ["bell", "letters"], "gold": 0})",
                    merged = R"({"context": "The river ros", "delimiter": "", "choices": ["s", "e"], "gold": 1})",
                    longer = R"({"context": "Nobody crossed the river in the winter. Ada rang the", "choices": ["bell",
 "letters"], "gold": 0})";
  struct Heard final : Progress {
    void message(std::string_view text) override { messages.emplace_back(text); }
    std::vector<std::string> messages;
  } heard;
  const auto run = [&](const std::string& kind, const std::string& records) {
    const std::string file = folder.write("records.jsonl", replace_all(records, ",\n", ", ")).string();
    const auto list =
        evaluations_of(R"({"name": "x", "kind": ")" + kind + R"(", "max_length": 12, "file": ")" + file + "\"}");
    EvalContext context{model, tokenizer, 64, 42, heard, {}};
    heard.messages.clear();
    return list[0].task->run(context);
  };
  EvalResult r = run("choice", good + "\n" + merged + "\n" + longer + "\n" + merged + "\n");
  CHECK(r.metrics.at("acc").at("n").as_int() == 2);
  CHECK(metric(r, "merged") == 2);
  CHECK(r.metrics.at("merged").at("n").as_int() == 4);
  CHECK(metric(r, "truncated") == 1);
  REQUIRE(heard.messages.size() == 2);
  CHECK_THAT(heard.messages[0], Contains("records.jsonl: 2 of 4 records are left out"));
  CHECK_THAT(heard.messages[1], Contains("contexts of 1 of 4 records lost their start") && Contains("(12 tokens)"));
  r = run("choice", good + "\n");
  CHECK(r.metrics.find("merged") == nullptr);
  CHECK(r.metrics.find("truncated") == nullptr);
  CHECK(heard.messages.empty());
  r = run("choice", merged + "\n");
  CHECK(r.status == "failed");
  CHECK_THAT(r.reason, Contains("in every record a continuation is a part"));
  r = run("cloze", R"({"context": "The river ros", "target": "e"})"
                   "\n"
                   R"({"context": "Nobody crossed the river in the winter. Ada rang the", "target": " bell"})"
                   "\n");
  CHECK(metric(r, "merged") == 1);
  CHECK(metric(r, "truncated") == 1);
  CHECK(r.metrics.at("ppl").at("n").as_int() == 1);
}
