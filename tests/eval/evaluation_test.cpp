#include <cmath>
#include <set>
#include <sstream>

#include "eval/generate.h"
#include "eval/result_files.h"
#include "inspect/trace_file.h"
#include "tests/eval/eval_fixture.h"
#include "tests/thrown.h"
#include "train/run_config.h"

namespace {

const char* const kFastModel = R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 1, "init_std": 0.4,
  "layers": {"f": {"type": "fwpkm", "num_subkeys": 3, "key_dim": 4, "value_dim": 6, "top_k": 2, "chunk_size": 5},
             "a": {"type": "attention", "num_heads": 2, "head_dim": 6, "window": 9, "rope": {"theta": 100.0}},
             "m": {"type": "swiglu", "intermediate_size": 16}},
  "pattern": [{"memory": "f", "mixer": "a", "ffn": "m"}]})";

}  // namespace

TEST_CASE_METHOD(EvalFixture, "streaming perplexity predicts every token but a document's first once", "[fast]") {
  const EvalResult r = run(R"("kind": "stream_ppl")");
  CHECK(r.metrics.at("nll").at("n").as_int() == 0 + 1 + 69 + 32 + 128);
  CHECK(metric(r, "ppl") == Approx(std::exp(metric(r, "nll"))));
}

TEST_CASE("streaming leaves no token unlearned at the end of a segment", "[fast]") {
  const EvalFixture f(kFastModel, {76});
  ScoringModel s = f.load();
  const std::span<const int32_t> ids = f.documents[0];
  const auto weights = s.save_fast_weights();
  const auto nll = [&](bool flushes) {
    s.restore_fast_weights(weights);
    double sum = 0;
    for (size_t at = 0; at < 75; at += 25) {  // chunks of five; the last one lacks its last target
      const auto state = s.new_state();
      for (const double loss : s.score(ids.subspan(at, 25), ids.subspan(at + 1, 25), *state, {})) { sum += loss; }
      if (flushes) { s.flush(*state, {}); }
    }
    return sum / 75;
  };
  const double expected = nll(true);
  REQUIRE(expected != Approx(nll(false)).epsilon(1e-6));
  CHECK(metric(f.run(R"("kind": "stream_ppl", "sequence_length": 25)"), "nll") == Approx(expected).epsilon(1e-12));
}

TEST_CASE("curves of streaming are those of the first ten documents", "[fast]") {
  const EvalFixture f(kModel, std::vector<int>(13, 5));
  const EvalResult r = f.run(R"("kind": "stream_ppl")");
  const auto& curve = r.series.at("curve").items();
  REQUIRE(curve.size() == 10);
  for (size_t d = 0; d < 10; ++d) { CHECK(curve[d].at("document").as_int() == static_cast<int64_t>(d)); }
}

TEST_CASE_METHOD(EvalFixture, "tokens of another tokenizer than the model's are refused", "[fast]") {
  ShardWriterOptions options;
  options.tokenizer_hash = 7;
  write_shards(folder / "other", 23, {documents[2]}, options);
  ScoringModel s = load();
  const std::string data = R"({"path": ")" + (folder / "other" / "*.bin").string() + R"("})";
  evaluate(s, R"("kind": "stream_ppl", "data": )" + data);  // nothing to compare with
  const auto bytes = Tokenizer::load({"bytes", "", false, false});
  for (const std::string& keys :
       {R"("kind": "stream_ppl", "data": )" + data, R"("kind": "position_ppl", "length": 16, "data": )" + data,
        R"("kind": "memory_stats", "length": 16, "data": )" + data,
        R"("kind": "adapt", "domains": [{"name": "d", "path": )" + data.substr(9) + "]"}) {
    CHECK_THROWS_WITH(
        evaluate(s, keys, bytes),
        Contains("tokens of another tokenizer than that of the run (found tokenizer hash 0000000000000007"));
  }
}

TEST_CASE_METHOD(EvalFixture, "a damaged token file is refused by whatever reads of it", "[fast]") {
  ShardWriterOptions options;
  options.shard_tokens = 70;
  write_shards(folder / "damaged", 23, {documents[2], documents[4]}, options);  // of 70 and 129 tokens: two shards
  const fs::path second = folder / "damaged" / "train_000001.bin";
  std::string bytes = read_file(second);
  bytes[bytes.size() - 2] ^= 1;  // another token of the vocabulary
  write_file_atomic(second, bytes);
  ScoringModel s = load();
  const std::string path = R"("path": ")" + (folder / "damaged" / "*.bin").string() + "\"",
                    data = R"("data": {)" + path + "}";
  for (const std::string& keys :
       {R"("kind": "stream_ppl", )" + data, R"("kind": "position_ppl", "length": 80, )" + data,
        R"("kind": "memory_stats", "length": 80, )" + data,
        R"("kind": "adapt", "micro_batch_size": 1, "domains": [{"name": "d", )" + path + "}]"}) {
    CAPTURE(keys);
    CHECK_THROWS_WITH(evaluate(s, keys), Contains("train_000001.bin: byte 1024: CRC-32 of the 129 tokens"));
  }
  CHECK(evaluate(s, R"("kind": "stream_ppl", "max_tokens": 69, )" + data).status == "ok");  // of the first file alone
}

FOLDER_TEST("--tokenizer does not put another tokenizer in the place of the run's", "[fast]") {
  ModelSource source;
  source.model.vocab_size = 300;
  source.config = parse_json(R"({"data": {"tokenizer": {"type": "bytes", "add_bos": true}}})", "config.json");
  const std::string other = folder.write("other.model", "another one").string();
  CHECK_THROWS_WITH(
      find_tokenizer(source, other),
      Contains("other.model, another tokenizer, expected the one that the model was trained with, bytes"));
  CHECK(find_tokenizer(source, "bytes")->special().add_bos);  // as in the run
}

TEST_CASE_METHOD(EvalFixture, "with all state carried the segment length does not matter", "[fast]") {
  const double whole = metric(run(R"("kind": "stream_ppl", "carry": "all", "sequence_length": 4096)"), "nll");
  for (const int length : {1, 7, 64}) {
    // 1e-12: the same sums in another order, in double.
    CHECK(metric(run(R"("kind": "stream_ppl", "carry": "all", "sequence_length": )" + std::to_string(length)), "nll") ==
          Approx(whole).epsilon(1e-12));
  }
  CHECK(std::abs(metric(run(R"("kind": "stream_ppl", "sequence_length": 7)"), "nll") - whole) > 1e-6);
}

TEST_CASE_METHOD(EvalFixture, "the paper's slicing cuts k tokens off segment k and starts the next one after a gap",
                 "[fast]") {
  // T 10: segment k reads tokens [11 k, 10 k + 11), so it predicts 10 - k of them. Documents of 2, 70, 33 and 129
  // tokens.
  CHECK(run(R"("kind": "stream_ppl", "layout": "paper", "sequence_length": 10)").metrics.at("nll").at("n").as_int() ==
        1 + (10 + 9 + 8 + 7 + 6 + 5 + 3) + (10 + 9 + 8) + (10 + 9 + 8 + 7 + 6 + 5 + 4 + 3 + 2 + 1));
}

TEST_CASE_METHOD(EvalFixture, "max_tokens stops after so many predicted tokens", "[fast]") {
  CHECK(run(R"("kind": "stream_ppl", "max_tokens": 50)").metrics.at("nll").at("n").as_int() == 50);
}

TEST_CASE_METHOD(EvalFixture, "perplexity by position adds up to the whole and reports tokens per bin", "[fast]") {
  const EvalResult r = run(R"("kind": "position_ppl", "length": 33, "bins": {"kind": "linear", "width": 10})");
  const auto& bins = r.series.at("by_position").items();
  REQUIRE(bins.size() == 4);
  // Documents of at least 33 tokens: 70, 33 (32 predictions) and 129.
  CHECK(bins[0].at("tokens").as_int() == 30);
  CHECK(bins[3].at("tokens").as_int() == 3 + 2 + 3);
  double sum = 0;
  for (const Json& b : bins) { sum += b.at("nll").as_double() * static_cast<double>(b.at("tokens").as_int()); }
  CHECK(sum / 98.0 == Approx(metric(r, "nll")).epsilon(1e-12));
  CHECK(metric(r, "documents") == 3);
}

TEST_CASE_METHOD(EvalFixture, "the gain against restarts is zero where nothing was dropped", "[fast]") {
  const EvalResult r =
      run(R"("kind": "position_ppl", "length": 33, "baseline_context": 20, "bins": {"kind": "linear", "width": 20})");
  CHECK(std::abs(r.series.at("by_position").items()[0].at("gain").as_double()) < 1e-12);
  CHECK(r.series.at("by_position").items()[1].at("gain").as_double() != 0);
}

TEST_CASE("restarts of the baseline put fast weights back, too", "[fast]") {
  EvalFixture f(kFastModel);
  const EvalResult r = f.run(
      R"("kind": "position_ppl", "length": 70, "max_documents": 1, "baseline_context": 35, "bins": {"kind": "linear", "width": 35})");
  const Json& second = r.series.at("by_position").items()[1];
  ScoringModel s = f.load();
  const std::span<const int32_t> ids = f.documents[2];
  const auto state = s.new_state();
  double sum = 0;
  for (const double loss : s.score(ids.subspan(35, 34), ids.subspan(36), *state, {})) { sum += loss; }
  CHECK(second.at("nll").as_double() + second.at("gain").as_double() == Approx(sum / 34).epsilon(1e-12));
}

TEST_CASE("a mean comes with its standard error, except of a single number", "[fast]") {
  const Json m = mean_metric(std::vector<double>{1, 0, 0, 1, 1});
  CHECK(m.at("value").as_double() == Approx(0.6));
  CHECK(m.at("stderr").as_double() == Approx(std::sqrt(1.2 / 4 / 5)));
  CHECK(m.at("n").as_int() == 5);
  CHECK(mean_metric(std::vector<double>{2.0}).find("stderr") == nullptr);
}

TEST_CASE("a mean over groups of unequal sizes has the standard error of the groups", "[fast]") {
  RatioOfSums equal;
  const std::vector<double> means = {1, 2, 4.5, 3};
  for (const double mean : means) { equal.add(5 * mean, 5); }
  const Json plain = mean_metric(means);
  CHECK(equal.value() == Approx(plain.at("value").as_double()).epsilon(1e-14));
  CHECK(*equal.standard_error() == Approx(plain.at("stderr").as_double()).epsilon(1e-14));

  RatioOfSums r;  // r = 2; s - 2 c = 1, -3, 2; sqrt(3 / 2 * 14) / 10
  r.add(5, 2);
  r.add(1, 2);
  CHECK(r.value() == 1.5);
  r.add(14, 6);
  CHECK(r.value() == 2);
  CHECK(*r.standard_error() == Approx(std::sqrt(21.0) / 10).epsilon(1e-14));
  EvalResult result;
  result.ratio("nll", "ppl", r);
  CHECK(result.metrics.at("nll").at("n").as_int() == 10);
  CHECK(result.metrics.at("nll").at("stderr").as_double() == *r.standard_error());
  CHECK(result.metrics.at("ppl").at("stderr").as_double() ==
        Approx(std::exp(2.0) * *r.standard_error()).epsilon(1e-14));
  RatioOfSums one;
  one.add(3, 4);
  CHECK(!one.standard_error());
}

TEST_CASE_METHOD(EvalFixture, "perplexities of streams and by position have standard errors over documents", "[fast]") {
  const auto check = [&](const std::string& keys, size_t documents_read) {
    INFO(keys);
    ScoringModel s = load();
    std::vector<Json> samples;
    const EvalResult r = evaluate(s, corpus() + ", " + keys, nullptr, 32, &samples);
    RatioOfSums nll;
    for (const Json& sample : samples) {
      const double tokens = sample.at("tokens").as_double();
      if (tokens > 0) { nll.add(-sample.at("ll").as_double(), tokens); }
    }
    CHECK(nll.sums.size() == documents_read);
    CHECK(metric(r, "nll") == Approx(nll.value()).epsilon(1e-12));
    for (const char* name : {"nll", "ppl"}) {
      const Json* error = r.metrics.at(name).find("stderr");
      REQUIRE((error != nullptr) == (documents_read > 1));
      if (error == nullptr) { continue; }
      const double slope = std::string(name) == "ppl" ? metric(r, "ppl") : 1;
      CHECK(error->as_double() == Approx(slope * *nll.standard_error()).epsilon(1e-12));
    }
  };
  check(R"("kind": "stream_ppl")", 4);
  check(R"("kind": "position_ppl", "length": 30)", 3);
  check(R"("kind": "position_ppl", "length": 100)", 1);
}

TEST_CASE_METHOD(EvalFixture, "keys of another kind of bins are unknown, and no length is too large for them",
                 "[fast]") {
  CHECK_THROWS_WITH(run(R"("kind": "position_ppl", "length": 33, "bins": {"kind": "linear", "first": 3})"),
                    Contains("bins.first: found an unknown key"));
  CHECK_THROWS_WITH(run(R"("kind": "position_ppl", "length": 9223372036854775807)"),
                    Contains("no document of at least 9223372036854775807 tokens"));
}

TEST_CASE("bins by octave repeat no edge and reach the length", "[fast]") {
  EvalFixture f;
  const EvalResult r =
      f.run(R"("kind": "position_ppl", "length": 120, "bins": {"kind": "log", "first": 2, "per_octave": 3})");
  const auto& bins = r.series.at("by_position").items();
  int64_t last = 0;
  for (const Json& b : bins) {
    CHECK(b.at("from").as_int() == last);
    CHECK(b.at("to").as_int() > last);
    last = b.at("to").as_int();
  }
  CHECK(last >= 120);
}

TEST_CASE_METHOD(EvalFixture, "evaluations are checked before any of them runs", "[fast]") {
  const auto read = [](const std::string& text) { return read_evaluations(parse_json(text, "e.json"), ""); };
  CHECK_THROWS_WITH(read("{}"), Contains("evaluations: found nothing, expected a list"));
  CHECK_THROWS_WITH(read(R"({"evaluations": 5})"), Contains("e.json:1:17: evaluations: found 5, expected a list"));
  CHECK(read(R"({"evaluations": []})").empty());  // how a run configuration takes back those that it extends
  CHECK_THROWS_WITH(read(R"({"evaluations": [{"name": "a", "kind": "steam_ppl"}]})"),
                    Contains("evaluations.0.kind: found \"steam_ppl\""));
  CHECK_THROWS_WITH(read(R"({"evaluations": [{"name": "a", "kind": "position_ppl", "data": {"path": "x"}}]})"),
                    Contains("evaluations.0.length"));
  CHECK_THROWS_WITH(
      read(
          R"({"length": 5, "data": {"path": "x"}, "evaluations": [{"name": "a", "kind": "position_ppl"}, {"name": "a", "kind": "position_ppl"}]})"),
      Contains("evaluations.1.name: found \"a\" again"));
  CHECK_THROWS_WITH(read(R"({"evaluations": [{"name": "../a", "kind": "mqar"}]})"),
                    Contains("evaluations.0.name: found \"../a\", expected a name without /"));
}

TEST_CASE("a key beside the list is a default of the kinds that have it, and one that none has is an error", "[fast]") {
  const auto read = [](const std::string& text) { return read_evaluations(parse_json(text, "e.json"), "eval."); };
  const auto evaluations = read(R"({"length": 64, "vocab": 50, "samples": 3, "segment": 8, "evaluations": [
    {"name": "a", "kind": "position_ppl", "data": {"path": "x"}}, {"name": "b", "kind": "mqar", "samples": 4}]})");
  CHECK(evaluations[0].config.at("length").as_int() == 64);
  CHECK(evaluations[0].config.find("vocab") == nullptr);
  CHECK(evaluations[1].config.find("length") == nullptr);
  CHECK(evaluations[1].config.at("vocab").as_int() == 50);
  CHECK(evaluations[1].config.at("samples").as_int() == 4);
  CHECK(evaluations[1].config.at("segment").as_int() == 8);
  CHECK_THROWS_WITH(read(R"({"lenght": 64, "evaluations": [{"name": "b", "kind": "mqar"}]})"),
                    "e.json:1:12: eval.lenght: no evaluation has such a key");
  CHECK_THROWS_WITH(read(R"({"evaluations": [{"name": "b", "kind": "mqar", "length": 64}]})"),
                    Contains("eval.evaluations.0.length"));
}

FOLDER_TEST("a resolved list has absolute paths and every default, and reads the same again", "[fast]") {
  const fs::path file = folder.write("e.json", R"({"seed": 5, "length": 64, "evaluations": [
    {"name": "a", "kind": "position_ppl", "data": {"path": "x.bin"}},
    {"name": "b", "kind": "mqar", "vocab": 20, "samples": 5, "cases": [{"length": 18, "pairs": 4}]},
    {"name": "c", "kind": "stream_ppl", "data": {"path": "x.bin"}},
    {"name": "d", "kind": "choice", "file": "x.jsonl", "fewshot": {"file": "y.jsonl", "k": 2}},
    {"name": "e", "kind": "cloze", "file": "x.jsonl"}, {"name": "f", "kind": "answer_ppl", "file": "x.jsonl"},
    {"name": "g", "kind": "niah", "text": {"path": "t.txt"}}, {"name": "h", "kind": "niah", "samples": "n.jsonl"},
    {"name": "i", "kind": "ruler", "squad": "s.json"},
    {"name": "j", "kind": "ruler", "samples": "r.jsonl", "tasks": ["vt"]},
    {"name": "k", "kind": "generate", "file": "g.jsonl"},
    {"name": "l", "kind": "generate", "file": "g.jsonl", "score": "f1", "until": []}]})");
  const Json once = resolve_evaluations(parse_json_file(file.string()), "eval.");
  const auto& all = once.at("evaluations").items();
  CHECK(all[0].at("data").at("path").as_string() == (folder / "x.bin").string());
  CHECK(all[0].at("seed").as_int() == 5);
  CHECK(all[0].at("bins").at("kind").as_string() == "log");
  CHECK(all[3].at("fewshot").at("order").as_string() == "first");
  CHECK(all[5].at("fast_weights").as_string() == "carry");
  CHECK(all[6].at("samples").as_int() == 500);
  CHECK(all[7].at("samples").as_string() == (folder / "n.jsonl").string());
  CHECK(all[10].find("until") == nullptr);
  CHECK(all[11].at("until").items().empty());
  CHECK(resolve_evaluations(parse_json(once.dump(), "again"), "eval.") == once);
}

TEST_CASE_METHOD(EvalFixture, "results are written, a missing file is skipped and a failure does not stop the others",
                 "[fast]") {
  const std::string list = R"({"name": "gone", "kind": "stream_ppl", "data": {"path": "/nowhere/x.bin"}},
    {"name": "no-folder", "kind": "stream_ppl", "data": {"path": "/nowhere/*.bin"}},
    {"name": "short", "kind": "position_ppl", "length": 5000, )" +
                           corpus() + R"(}, {"name": "fine", "kind": "stream_ppl", )" + corpus() + "}";
  ScoringModel s = load();
  std::vector<std::string> lines;
  const EvalCounts counts =
      run_list(s, list, folder / "out", nullptr, false, [&](const std::string& line) { lines.push_back(line); });
  CHECK(counts.failed == 1);
  CHECK(counts.skipped == 2);
  CHECK(counts.ok == 1);
  CHECK(lines.size() == 4);
  const auto status = [&](const char* name) { return result_in(folder / "out", name).at("status").as_string(); };
  CHECK(status("gone") == "skipped");
  CHECK_THAT(result_in(folder / "out", "gone").at("reason").as_string(), Contains("/nowhere/x.bin"));
  CHECK(status("no-folder") == "skipped");
  CHECK(status("short") == "failed");
  const Json fine = result_in(folder / "out", "fine");
  CHECK(fine.at("status").as_string() == "ok");
  CHECK(fine.at("step").as_int() == 7);
  CHECK(fine.at("model_hash").as_string() == "00ff");
  CHECK(fine.at("precision").as_string() == "fp64");
}

TEST_CASE_METHOD(EvalFixture, "a good result stays when another one of its name is made, good or not", "[fast]") {
  ScoringModel s = load();
  const fs::path out = folder / "out";
  std::string line;
  const auto run = [&](const std::string& keys) {
    return run_list(s, "{\"name\": \"x\", \"kind\": \"stream_ppl\", " + keys + "}", out, nullptr, true,
                    [&](const std::string& text) { line = text; });
  };
  const auto files = [&] {
    std::map<std::string, Json> results;
    for (const auto& entry : fs::directory_iterator(out)) {
      if (entry.path().extension() == ".json") {
        results[entry.path().filename().string()] = parse_json_file(entry.path().string());
      }
    }
    return results;
  };
  REQUIRE(run(corpus()).ok == 1);
  const Json first = result_in(out, "x");
  const std::string fingerprint = first.text_at("fingerprint"), samples = read_file(out / "x.samples.jsonl");

  const EvalCounts failed = run(R"("data": {"path": "/nowhere/x.bin"})");
  CHECK(failed.skipped == 1);
  CHECK(failed.results.at(0).text_at("status") == "skipped");
  CHECK(result_in(out, "x") == first);
  REQUIRE(files().size() == 2);
  CHECK(result_in(out, "x." + failed.results[0].text_at("fingerprint")) == failed.results[0]);
  CHECK(has_fingerprint("x." + fingerprint));

  REQUIRE(run(corpus() + ", \"max_tokens\": 40").ok == 1);  // another configuration
  const Json second = result_in(out, "x");
  CHECK(second.at("config").at("max_tokens").as_int() == 40);
  const Json kept = result_in(out, "x." + fingerprint);
  CHECK(kept.at("metrics") == first.at("metrics"));
  CHECK(kept.text_at("samples") == "x." + fingerprint + ".samples.jsonl");
  CHECK(read_file(out / kept.text_at("samples")) == samples);
  CHECK(read_file(out / "x.samples.jsonl") != samples);

  REQUIRE(run(corpus()).results.at(0).at("metrics") == first.at("metrics"));  // found under its fingerprint
  CHECK_THAT(line, Contains("x (stream_ppl): ok, kept"));
  CHECK(result_in(out, "x") == first);
  CHECK(read_file(out / "x.samples.jsonl") == samples);
  CHECK_FALSE(fs::exists(out / ("x." + fingerprint + ".json")));
  CHECK(result_in(out, "x." + second.text_at("fingerprint")).at("metrics") == second.at("metrics"));
  CHECK_THAT(thrown<ConfigError>([&] { evaluations_of(R"({"name": "x.0123456789abcdef", "kind": "efficiency"})"); }),
             Contains("16 hexadecimal digits"));
}

TEST_CASE_METHOD(EvalFixture, "a failure gives way to a good result of the same input", "[fast]") {
  ScoringModel s = load();
  const fs::path out = folder / "out";
  const auto run = [&](const std::string& data) {
    return run_list(s,
                    "{\"name\": \"x\", \"kind\": \"stream_ppl\", \"data\": {\"path\": \"" + (folder / data).string() +
                        "/train_*.bin\"}}",
                    out);
  };
  CHECK(run("gone").skipped == 1);
  CHECK(result_in(out, "x").text_at("status") == "skipped");
  CHECK(run("corpus").ok == 1);
  CHECK(result_in(out, "x").text_at("status") == "ok");
  CHECK(std::distance(fs::directory_iterator(out), {}) == 2);  // and the values of its items
}

TEST_CASE_METHOD(EvalFixture, "samples are written one a line where they are asked for, and add up to the result",
                 "[fast]") {
  const std::string list = R"(
    {"name": "recall", "kind": "mqar", "seed": 3, "vocab": 20, "samples": 5, "cases": [{"length": 18, "pairs": 4}]},
    {"name": "text", "kind": "stream_ppl", )" +
                           corpus() + "}";
  ScoringModel s = load();
  REQUIRE(run_list(s, list, folder / "plain").failed == 0);
  CHECK_FALSE(fs::exists(folder / "plain" / "text.samples.jsonl"));
  CHECK(result_in(folder / "plain", "text").find("samples") == nullptr);

  REQUIRE(run_list(s, list, folder / "out", nullptr, true).failed == 0);
  const auto lines = [&](const char* name) {
    std::vector<Json> parsed;
    std::istringstream text(read_file(folder / "out" / name));
    for (std::string line; std::getline(text, line);) { parsed.push_back(parse_json(line, name)); }
    return parsed;
  };
  const Json text = result_in(folder / "out", "text"), recall = result_in(folder / "out", "recall");
  CHECK(text.at("samples").as_string() == "text.samples.jsonl");

  double ll = 0;
  const auto documents_read = lines("text.samples.jsonl");
  REQUIRE(documents_read.size() == 5);
  for (const Json& line : documents_read) { ll += line.at("ll").as_double(); }
  CHECK(-ll / (1 + 69 + 32 + 128) == Approx(text.number_at("metrics.nll.value", NAN)).epsilon(1e-12));

  double score = 0;
  std::set<std::string> hashes;
  const auto rows = lines("recall.samples.jsonl");
  REQUIRE(rows.size() == 5);
  for (const Json& row : rows) {
    REQUIRE(row.at("prediction").items().size() == 4);
    int64_t right = 0;
    for (size_t i = 0; i < 4; ++i) {
      right += row.at("prediction").items()[i] == row.at("references").items()[i] ? 1 : 0;
    }
    CHECK(row.at("score").as_double() == static_cast<double>(right) / 4.0);
    CHECK(row.at("ll").as_double() < 0);
    hashes.insert(row.at("input_hash").as_string());
    score += row.at("score").as_double();
  }
  CHECK(rows[1].at("id").as_string() == "length 18, 4 pairs, row 1");
  CHECK(hashes.size() == 5);
  CHECK(score / 5 == Approx(recall.number_at("metrics.accuracy.value", NAN)));
}

TEST_CASE("efficiency counts the model and measures training, reading and generating", "[fast]") {
  EvalFixture f(kFastModel);
  ScoringModel s = f.load();
  const auto weights = s.save_fast_weights();
  const EvalResult r = evaluate(
      s, R"("kind": "efficiency", "sequence_length": 24, "training_rows": 2, "positions": [5, 30], "batch": 3)");
  CHECK(s.save_fast_weights() == weights);

  const Model& model = s.model();
  CHECK(metric(r, "flops.forward_per_token") == model.flops_per_token(24));
  CHECK(metric(r, "flops.training_per_token") == 3 * model.flops_per_token(24));
  // 9 slots of 6 values of which a token reads 2; embedding and head of 23 x 12 each.
  CHECK(metric(r, "params.total") - metric(r, "params.active") == 7 * 6);
  CHECK(metric(r, "params.total") - metric(r, "params.non_embedding") == 2 * 23 * 12);
  CHECK(metric(r, "train.tokens_per_s") > 0);
  CHECK(metric(r, "train.samples_per_s") == Approx(metric(r, "train.tokens_per_s") / 24));
  CHECK(metric(r, "train.peak_bytes") > 8 * metric(r, "params.total"));
  CHECK(r.metrics.find("mfu") == nullptr);  // a CPU's peak is not in a table

  const auto& bytes = r.series.at("state_bytes").items();
  CHECK(bytes[0].at("tokens").as_int() == 1024);
  CHECK(bytes[0].at("bytes").as_int() == model.state_bytes(1024));
  CHECK(bytes[0].at("by_layer").find("m") == nullptr);  // a feed-forward layer keeps nothing
  const auto& decoding = r.series.at("decoding").items();
  REQUIRE(decoding.size() == 4);
  CHECK(decoding[3].at("position").as_int() == 30);
  CHECK(decoding[3].at("rows").as_int() == 3);
  for (const Json& point : decoding) {
    CHECK(point.at("decode_ms_per_token").as_double() > 0);
    CHECK(point.at("prefill_tokens_per_s").as_double() > 0);
  }

  const EvalResult without = evaluate(s, R"("kind": "efficiency", "training_rows": 0, "positions": [3], "batch": 1)");
  CHECK(without.metrics.find("train.tokens_per_s") == nullptr);
  CHECK(metric(without, "flops.forward_per_token") == model.flops_per_token(32));
  CHECK(without.series.at("decoding").items().size() == 1);

  struct Heard final : Progress {
    void begin(std::string_view, uint64_t units, Unit, uint64_t) override { total = units; }
    void update(uint64_t units, std::string_view) override { done = units; }
    uint64_t total = 0, done = 0;
  } heard;
  const auto list = evaluations_of(R"({"name": "x", "kind": "efficiency", "training_rows": 1, "positions": [1, 2],
                                       "batch": 2})");
  EvalContext context{s, nullptr, 8, 42, heard, {}};
  list[0].task->run(context);
  CHECK(heard.total == 1 + 2 * 2);
  CHECK(heard.done == heard.total);
}

TEST_CASE_METHOD(EvalFixture, "generation equals repeated scoring of the whole text", "[fast]") {
  ScoringModel s = load();
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
    for (size_t v = 0; v < again.size(); ++v) { worst = std::max(worst, std::abs(again[v] - logits[v])); }
    CHECK(worst < 1e-11);  // double; logits are of order 1 to 10
  }
}

TEST_CASE("an empty prompt starts from BOS where the tokenizer adds it, else from EOS", "[fast]") {
  std::string text = kModel;
  text.replace(text.find("\"vocab_size\": 23"), 16, "\"vocab_size\": 259");
  EvalFixture f(text);
  for (const bool add_bos : {true, false}) {
    const auto tokenizer = Tokenizer::load({"bytes", "", add_bos, true});
    ScoringModel s = f.load();
    const std::vector<int32_t> start = {add_bos ? 256 : 257};
    const auto state = s.new_state();
    Rng rng(0, "unused");
    const int32_t first = sample_token(s.read(start, *state, {}), {0.0, 0, 1.0}, rng);
    std::string out;
    const GenerateOptions options{.max_new_tokens = 1, .sampling = {.temperature = 0}, .stop_at_eos = false};
    const Generated generated = generate(s, tokenizer, "", 0, options, [&](std::string_view piece) {
      out += piece;
      return true;
    });
    CHECK(generated.prompt_tokens == 1);
    CHECK(out == tokenizer->decode(std::vector<int32_t>{first}));
  }
}

FOLDER_TEST("rows for a trace hold nothing that is not read", "[fast]") {
  int64_t ids[2] = {1, 2};
  const Tensor tensor{ids, DType::i64, Shape{1, 2}};
  write_safetensors(folder / "rows.safetensors", {{"inputs", tensor}, {"target", tensor}});
  CHECK_THROWS_WITH(read_trace_input((folder / "rows.safetensors").string()),
                    Contains("tensors of rows (found \"target\", expected inputs, targets, doc_ids)"));
}

TEST_CASE("a data set's folder means its validation shards, a pattern any shards", "[fast]") {
  EvalFixture f;
  const auto write_set = [&](const char* name, bool with_validation) {
    ShardWriterOptions options;
    options.directory = f.folder / name;
    options.vocab_size = 23;
    ShardWriter writer(options);
    writer.add_document(std::vector<int32_t>(40, 7));
    if (with_validation) { writer.add_document(std::vector<int32_t>(11, 9), DatasetSplit::validation); }
    writer.finish();
    return options.directory;
  };
  const auto tokens = [&](const fs::path& path) {
    ScoringModel s = f.load();
    const std::string keys = R"("kind": "stream_ppl", "data": {"path": ")" + path.string() + "\"}";
    return metric(evaluate(s, keys), "tokens");
  };
  const fs::path with = write_set("with", true), without = write_set("without", false);
  CHECK(tokens(with) == 10);
  CHECK(tokens(with / "dataset.json") == 10);
  CHECK(tokens(with / "train_*.bin") == 39);
  CHECK_THROWS_WITH(tokens(without),
                    Contains("no validation shards in this data set") && Contains("or give a pattern of other files"));
}
