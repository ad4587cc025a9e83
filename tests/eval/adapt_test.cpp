// Adapt and test (docs/evaluations/memories.md).
#include "inspect/trace.h"
#include "tests/eval/eval_fixture.h"
#include "tests/test.h"

namespace {

const char* const kFast = R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "init_std": 0.4,
  "layers": {"f": {"type": "fwpkm", "num_subkeys": 3, "key_dim": 4, "value_dim": 6, "top_k": 2, "chunk_size": 5},
             "p": {"type": "fwmlp", "key_dim": 4, "value_dim": 6, "fast_dim": 5, "chunk_size": 5},
             "o": {"type": "ovq", "num_heads": 2, "head_dim": 6, "chunk_size": 4, "max_centroids": 3, "eval_max_centroids": 6},
             "a": {"type": "attention", "num_heads": 2, "head_dim": 6, "window": 9},
             "m": {"type": "swiglu", "intermediate_size": 16}},
  "pattern": [{"memory": "f", "mixer": "a", "ffn": "m"}, {"memory": "p", "mixer": "MIXER", "ffn": "m"}]})";

std::string fast_model(const std::string& mixer) {
  std::string text = kFast;
  return text.replace(text.find("MIXER"), 5, mixer);
}

/// Two domains: the shards of two fixtures.
struct Domains {
  EvalFixture first, second;

  Domains(const std::string& model, const std::vector<int>& one, const std::vector<int>& two)
      : first(model, one), second(model, two) {}
  EvalResult run(ScoringModel& model, const std::string& keys) const {
    const std::string domains = R"("domains": [{"name": "one", "path": ")" +
                                (first.folder / "corpus" / "*.bin").string() + R"("}, {"name": "two", "path": ")" +
                                (second.folder / "corpus" / "*.bin").string() + "\"}], ";
    return evaluate(model, R"("kind": "adapt", )" + domains + keys, nullptr, 12);
  }
};

std::vector<int32_t> joined(const EvalFixture& f) {
  std::vector<int32_t> all;
  for (const auto& d : f.documents) { all.insert(all.end(), d.begin(), d.end()); }
  return all;
}

double number(const EvalResult& r, size_t point, const char* key) {
  return r.series.at("adaptation").items()[point].at(key).as_double();
}

/// Mean loss over rows [from, to) of 13 tokens, fast weights as they are.
double loss_of_rows(ScoringModel& s, const std::vector<int32_t>& tokens, size_t from, size_t to) {
  double sum = 0;
  for (size_t r = from; r < to; ++r) {
    const std::span<const int32_t> row(tokens.data() + 13 * r, 13);
    const auto state = s.new_state();
    for (const double loss : s.score(row.first(12), row.subspan(1), *state, {FastUpdate::never, true})) { sum += loss; }
  }
  return sum / (12.0 * static_cast<double>(to - from));
}

}  // namespace

TEST_CASE("fast weights adapt to a domain as a trainer's forward pass moves them", "[fast]") {
  // 10 and 13 rows of 13 tokens, in batches of 2: 5 and 6 adapt (4 and 6 of them whole), 5 and 7 evaluate (4 and 6).
  const Domains d(fast_model("a"), {131}, {100, 70});
  ScoringModel s = d.first.load();
  const auto start = s.save_fast_weights();
  const EvalResult r = d.run(s, R"("micro_batch_size": 2)");
  REQUIRE(r.series.at("adaptation").items().size() == 6);

  s.restore_fast_weights(start);
  const std::vector<int32_t> tokens[2] = {joined(d.first), joined(d.second)};
  const size_t adapt[2] = {4, 6}, first[2] = {5, 6}, last[2] = {9, 12};
  std::vector<double> expected;
  for (size_t stage = 0; stage < 3; ++stage) {
    for (size_t at = 0; stage > 0 && at < adapt[stage - 1]; at += 2) {
      TraceInput batch{2, 12, {}, {}, {}};
      for (size_t row = at; row < at + 2; ++row) {
        const auto begin = tokens[stage - 1].begin() + static_cast<ptrdiff_t>(13 * row);
        batch.inputs.insert(batch.inputs.end(), begin, begin + 12);
      }
      trace(s.model(), s.stream(), s.arena(), batch, {});
    }
    for (size_t i = 0; i < 2; ++i) { expected.push_back(loss_of_rows(s, tokens[i], first[i], last[i])); }
  }
  for (size_t point = 0; point < 6; ++point) {
    CAPTURE(point);
    CHECK(number(r, point, "nll") == Approx(expected[point]).epsilon(1e-12));
    CHECK(number(r, point, "delta") == Approx(expected[point] - expected[point % 2]).margin(1e-12));
    CHECK(number(r, point, "stage") == static_cast<double>(point / 2));
  }
  CHECK(number(r, 0, "tokens") == 4 * 12);
  CHECK(number(r, 1, "tokens") == 6 * 12);
  CHECK(number(r, 2, "delta") != 0);
  CHECK(r.series.at("adaptation").items()[3].at("adapted").as_string() == "one");
  CHECK(metric(r, "delta_own") == Approx((number(r, 2, "delta") + number(r, 5, "delta")) / 2).margin(1e-14));
  CHECK(metric(r, "delta_end") == Approx(metric(r, "nll_after") - metric(r, "nll_before")).margin(1e-14));
}

TEST_CASE("adaptation reads by the rules of evaluation and obeys chunk_size", "[fast]") {
  const Domains d(fast_model("o"), {120}, {120});
  ScoringModel s = d.first.load();
  const auto start = s.save_fast_weights();
  const auto end_of = [&](const char* keys) {
    s.restore_fast_weights(start);
    return number(d.run(s, keys), 5, "nll");
  };
  const double own = end_of(R"("micro_batch_size": 1)");
  CHECK(end_of(R"("micro_batch_size": 1, "chunk_size": 5)") == own);
  CHECK(end_of(R"("micro_batch_size": 1, "chunk_size": 3)") != own);
  CHECK(end_of(R"("micro_batch_size": 1, "max_tokens": 60)") != own);

  // ovq has more centroids in evaluation than in training: reading rows gives the hidden states of evaluation.
  s.restore_fast_weights(start);
  const std::vector<int32_t> row(d.first.documents[0].begin(), d.first.documents[0].begin() + 12);
  Inspector in_rows;
  in_rows.recording = true;
  s.read_rows(row, {.inspector = &in_rows});
  s.restore_fast_weights(start);
  TraceOptions options;
  options.inside = true;
  options.training = false;
  const TraceInput input{1, 12, {row.begin(), row.end()}, {}, {}};
  CHECK(in_rows.records.at("blocks.1.mixer.assign").integers ==
        trace(s.model(), s.stream(), s.arena(), input, options).inside.at("blocks.1.mixer.assign").integers);
}

TEST_CASE("a model without fast weights gives zeros, and wrong input a message", "[fast]") {
  const Domains d(kModel, {131}, {100, 70});
  ScoringModel s = d.first.load();
  const EvalResult r = d.run(s, R"("micro_batch_size": 2)");
  for (size_t point = 0; point < 6; ++point) {
    CHECK(number(r, point, "delta") == 0);
    CHECK(number(r, point, "nll") > 1);
  }
  CHECK_THROWS_WITH(d.run(s, R"("micro_batch_size": 6)"),
                    Contains("too few tokens for domain \"one\" (found 10 rows of 13 tokens, expected at least 12"));
  const auto read = [&](const char* keys) { evaluate(s, std::string(R"("kind": "adapt")") + keys); };
  CHECK_THROWS_WITH(read(""), Contains("evaluations.0.domains"));
  CHECK_THROWS_WITH(read(R"(, "domains": [])"),
                    Contains("domains: found an empty list, expected a list of objects with at least one element"));
  CHECK_THROWS_WITH(read(R"(, "domains": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}])"),
                    Contains("domains.1.name: found \"a\" again"));
  CHECK_THROWS_WITH(read(R"(, "domains": [{"name": "a", "path": "x", "weight": 1}])"),
                    Contains("domains.0.weight: found an unknown key"));
}
