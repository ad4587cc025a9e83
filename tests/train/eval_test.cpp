#include "train/eval.h"

#include <cmath>

#include "core/safetensors.h"
#include "data/shard_writer.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "train/generate.h"

using namespace hebb;

namespace {

const char* const kModel = R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "init_std": 0.4,
  "layers": {"g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4, "chunk_size": 16},
             "a": {"type": "attention", "num_heads": 2, "head_dim": 6, "window": 9, "rope": {"theta": 100.0}},
             "m": {"type": "swiglu", "intermediate_size": 16}},
  "pattern": [{"mixer": "g", "ffn": "m"}, {"mixer": "a", "ffn": "m"}]})";

/// A random model with its weights in a file, and documents of several lengths in shards.
struct Fixture {
  TempFolder folder;
  std::vector<std::vector<int32_t>> documents;

  Fixture() {
    folder.write("model.json", kModel);
    ModelConfig config;
    Fields::read(parse_json(kModel, "model.json"), "model", config);
    Stream stream;
    Arena arena(DeviceKind::cpu);
    Model model(config);
    model.params().allocate(arena, DType::f32, false);
    model.params().initialize(stream, 3);
    std::vector<NamedTensor> tensors;
    for (const auto& p : model.params().all()) {
      tensors.push_back({p->name(), p->value});
    }
    write_safetensors(folder / "w.safetensors", tensors);
    ShardWriterOptions options;
    options.directory = folder / "corpus";
    options.vocab_size = 23;
    ShardWriter writer(options);
    Rng rng(5, "documents");
    for (const int length : {1, 2, 70, 33, 129}) {
      std::vector<int32_t> ids;
      for (int i = 0; i < length; ++i) {
        ids.push_back(static_cast<int32_t>(rng.below(23)));
      }
      writer.add_document(ids);
      documents.push_back(ids);
    }
    writer.finish();
  }

  Session session() {
    return Session(read_model_source(folder / "model.json"), folder / "w.safetensors", {DeviceKind::cpu, DType::f64});
  }
  std::string corpus() const { return "\"data\": {\"path\": \"" + (folder / "corpus").string() + "\"}"; }

  EvalResult run(const std::string& keys, int64_t length = 32) {
    auto evaluations = read_evaluations(parse_json("{\"evaluations\": [{\"name\": \"x\", " + corpus() + ", " + keys + "}]}", "eval.json"), "");
    Session s = session();
    Progress quiet;
    EvalContext context{s, nullptr, length, 42, quiet, {}};
    return evaluations[0].task->run(context);
  }
};

double metric(const EvalResult& r, const char* name) { return r.metrics.at(name).at("value").as_double(); }

}  // namespace

TEST_CASE_METHOD(Fixture, "streaming perplexity predicts every token but a document's first once", "[fast]") {
  const EvalResult r = run(R"("kind": "stream_ppl")");
  CHECK(r.metrics.at("nll").at("n").as_int() == 0 + 1 + 69 + 32 + 128);
  CHECK(metric(r, "ppl") == Catch::Approx(std::exp(metric(r, "nll"))));
}

TEST_CASE_METHOD(Fixture, "with all state carried the segment length does not matter", "[fast]") {
  const double whole = metric(run(R"("kind": "stream_ppl", "carry": "all", "sequence_length": 4096)"), "nll");
  for (const int length : {1, 7, 64}) {
    // 1e-12: the same sums in another order, in double.
    CHECK(metric(run(R"("kind": "stream_ppl", "carry": "all", "sequence_length": )" + std::to_string(length)), "nll") ==
          Catch::Approx(whole).epsilon(1e-12));
  }
  CHECK(std::abs(metric(run(R"("kind": "stream_ppl", "sequence_length": 7)"), "nll") - whole) > 1e-6);
}

TEST_CASE_METHOD(Fixture, "max_tokens stops after so many predicted tokens", "[fast]") {
  CHECK(run(R"("kind": "stream_ppl", "max_tokens": 50)").metrics.at("nll").at("n").as_int() == 50);
}

TEST_CASE_METHOD(Fixture, "perplexity by position adds up to the whole and reports tokens per bin", "[fast]") {
  const EvalResult r = run(R"("kind": "position_ppl", "length": 33, "bins": {"kind": "linear", "width": 10})");
  const auto& bins = r.series.at("by_position").items();
  REQUIRE(bins.size() == 4);
  // Documents of at least 33 tokens: 70, 33 (32 predictions) and 129.
  CHECK(bins[0].at("tokens").as_int() == 30);
  CHECK(bins[3].at("tokens").as_int() == 3 + 2 + 3);
  double sum = 0;
  for (const Json& b : bins) {
    sum += b.at("nll").as_double() * static_cast<double>(b.at("tokens").as_int());
  }
  CHECK(sum / 98.0 == Catch::Approx(metric(r, "nll")).epsilon(1e-12));
  CHECK(metric(r, "documents") == 3);
}

TEST_CASE_METHOD(Fixture, "the gain against restarts is zero where nothing was dropped", "[fast]") {
  const EvalResult r = run(R"("kind": "position_ppl", "length": 33, "baseline_context": 20, "bins": {"kind": "linear", "width": 20})");
  CHECK(std::abs(r.series.at("by_position").items()[0].at("gain").as_double()) < 1e-12);
  CHECK(r.series.at("by_position").items()[1].at("gain").as_double() != 0);
}

TEST_CASE("bins by octave repeat no edge and reach the length", "[fast]") {
  Fixture f;
  const EvalResult r = f.run(R"("kind": "position_ppl", "length": 120, "bins": {"kind": "log", "first": 2, "per_octave": 3})");
  const auto& bins = r.series.at("by_position").items();
  int64_t last = 0;
  for (const Json& b : bins) {
    CHECK(b.at("from").as_int() == last);
    CHECK(b.at("to").as_int() > last);
    last = b.at("to").as_int();
  }
  CHECK(last >= 120);
}

TEST_CASE_METHOD(Fixture, "evaluations are checked before any of them runs", "[fast]") {
  const auto read = [](const std::string& text) { return read_evaluations(parse_json(text, "e.json"), ""); };
  CHECK_THROWS_WITH(read("{}"), Catch::Contains("evaluations: found nothing, expected a list"));
  CHECK_THROWS_WITH(read(R"({"evaluations": [{"name": "a", "kind": "steam_ppl"}]})"), Catch::Contains("evaluations.0.kind: found \"steam_ppl\""));
  CHECK_THROWS_WITH(read(R"({"evaluations": [{"name": "a", "kind": "position_ppl", "data": {"path": "x"}}]})"), Catch::Contains("evaluations.0.length"));
  CHECK_THROWS_WITH(read(R"({"length": 5, "data": {"path": "x"}, "evaluations": [{"name": "a", "kind": "position_ppl"}, {"name": "a", "kind": "position_ppl"}]})"),
                    Catch::Contains("evaluations.1.name: found \"a\" again"));
}

TEST_CASE_METHOD(Fixture, "results are written, a missing file is skipped and a failure does not stop the others", "[fast]") {
  auto evaluations = read_evaluations(
      parse_json("{\"evaluations\": [{\"name\": \"gone\", \"kind\": \"stream_ppl\", \"data\": {\"path\": \"/nowhere/x.bin\"}},"
                 "{\"name\": \"short\", \"kind\": \"position_ppl\", \"length\": 5000, " + corpus() + "},"
                 "{\"name\": \"fine\", \"kind\": \"stream_ppl\", " + corpus() + "}]}", "e.json"), "");
  Session s = session();
  Progress quiet;
  std::vector<std::string> lines;
  const int failed = run_evaluations(evaluations, EvalContext{s, nullptr, 32, 42, quiet, {}}, EvalSource{"c", "cpu", "F64", 7, 70},
                                     folder / "out", [&](const std::string& line) { lines.push_back(line); });
  CHECK(failed == 1);
  CHECK(lines.size() == 3);
  const auto status = [&](const char* name) { return parse_json_file((folder / "out" / (std::string(name) + ".json")).string()); };
  CHECK(status("gone").at("status").as_string() == "skipped");
  CHECK(status("short").at("status").as_string() == "failed");
  CHECK(status("fine").at("status").as_string() == "ok");
  CHECK(status("fine").at("step").as_int() == 7);
}

TEST_CASE_METHOD(Fixture, "generation equals repeated scoring of the whole text", "[fast]") {
  Session s = session();
  const std::vector<int32_t> prompt(documents[2].begin(), documents[2].begin() + 11);
  const auto state = s.new_state();
  std::vector<double> logits = s.read(prompt, *state, {});
  std::vector<int32_t> text = prompt;
  for (int i = 0; i < 15; ++i) {
    Rng rng(0, "unused");
    const int32_t id = sample_token(logits, {0.0, 0, 1.0}, rng);
    text.push_back(id);
    logits = s.read({&id, 1}, *state, {});
    const auto fresh = s.new_state();
    const std::vector<double> again = s.read(text, *fresh, {});
    double worst = 0;
    for (size_t v = 0; v < again.size(); ++v) {
      worst = std::max(worst, std::abs(again[v] - logits[v]));
    }
    CHECK(worst < 1e-11);  // double; logits are of order 1 to 10
  }
}
