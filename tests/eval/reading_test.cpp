// How evaluations read: in segments, and with stretched rotary positions (docs/verbs/eval.md, The list).
#include "tests/eval/eval_fixture.h"
#include "tests/test.h"

namespace {

/// A gated delta rule and `layer` as the second block's mixer, memory or feed-forward layer.
std::string hybrid(const std::string& role, const std::string& layer) {
  Json block = Json::object({{"mixer", "g"}, {"ffn", "m"}});
  block.set(role, "x");
  return R"({"vocab_size": 23, "hidden_size": 12, "num_layers": 3, "init_std": 0.4, "layers": {
    "g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4, "chunk_size": 16},
    "m": {"type": "swiglu", "intermediate_size": 16}, "x": )" +
         layer + R"(},
    "pattern": [{"mixer": "g", "ffn": "m"}, )" +
         block.dump() + R"(, {"mixer": "g", "ffn": "m"}]})";
}

const std::vector<std::pair<std::string, std::string>> kLayers = {
    {"mixer", R"({"type": "attention", "num_heads": 2, "head_dim": 6, "rope": {"theta": 100.0}})"},
    {"mixer", R"({"type": "attention", "num_heads": 2, "head_dim": 6, "window": 9, "token_shift": true})"},
    {"mixer", R"({"type": "sdm", "num_heads": 2, "slots_per_head": 16, "num_writes": 3, "num_reads": 4})"},
    {"mixer",
     R"({"type": "ham", "rnn": {"num_heads": 2, "key_head_dim": 6, "value_head_dim": 6}, "kv": {"num_heads": 2, "key_head_dim": 6,
       "value_head_dim": 6, "rope": {"theta": 100.0}}, "router": {"type": "prediction_error"}, "threshold": {"mode": "fixed", "tau": 0.9}})"},
    {"mixer",
     R"({"type": "ovq", "num_heads": 2, "head_dim": 6, "chunk_size": 8, "max_centroids": 10, "qk_conv": 3, "v_shift": true})"},
    {"mixer",
     R"({"type": "kvm", "num_heads": 2, "head_dim": 6, "chunk_size": 8, "state": {"mode": "power", "factor": 2.0, "exponent": 0.5},
       "rope": {"theta": 100.0, "dims": 4}})"},
    {"mixer", R"({"type": "vq", "num_heads": 2, "head_dim": 6, "codebook_size": 7})"},
    {"mixer", R"({"type": "mamba2", "num_heads": 2, "head_dim": 6, "state_dim": 4, "num_groups": 1})"},
    {"mixer", R"({"type": "mesanet", "num_heads": 2, "key_head_dim": 6})"},
    {"mixer", R"({"type": "lact", "num_heads": 2, "window": 8, "chunk_size": 8})"},
    {"memory", R"({"type": "fwpkm", "num_subkeys": 3, "key_dim": 4, "value_dim": 6, "top_k": 2, "chunk_size": 5})"},
    {"memory", R"({"type": "fwmlp", "key_dim": 4, "value_dim": 6, "fast_dim": 5, "chunk_size": 5})"},
    {"ffn", R"({"type": "pkm", "num_subkeys": 3, "key_dim": 4, "value_dim": 6, "top_k": 2})"},
};

const char* const kScaled = R"("rope_scaling": {"factor": 4.0, "original": 32})";

double nll_of(const std::string& model, const std::string& keys) {
  EvalFixture f(model, {150, 40});
  const EvalResult r = f.run(R"("kind": "stream_ppl", "carry": "all", "sequence_length": 4096)" + keys);
  REQUIRE(r.status == "ok");
  return metric(r, "nll");
}

}  // namespace

TEST_CASE("the segment that is read at once does not change a score, whatever the layers", "[fast]") {
  for (const auto& [role, layer] : kLayers) {
    CAPTURE(layer);
    const double whole = nll_of(hybrid(role, layer), R"(, "segment": 4096)");
    for (const char* segment : {"64", "7"}) {
      // 1e-10: the same sums in another order, in double.
      CHECK(nll_of(hybrid(role, layer), std::string(", \"segment\": ") + segment) == Approx(whole).epsilon(1e-10));
    }
  }
}

TEST_CASE("a segment has 8,192 tokens by default, and at least one", "[fast]") {
  EvalFixture f(hybrid("mixer", kLayers[1].second));  // no layer's cost grows with the context
  ScoringModel s = f.load();
  int segments = 0;
  s.after_segments([&] { ++segments; });
  s.read(std::vector<int32_t>(8192, 1), *s.new_state(), {});
  CHECK(segments == 1);
  s.read(std::vector<int32_t>(8193, 1), *s.new_state(), {});
  CHECK(segments == 3);
  CHECK_THROWS_WITH(f.run(R"("kind": "stream_ppl", "segment": 0)"),
                    Contains("segment: found 0, expected an integer >= 1"));
}

TEST_CASE("rope_scaling reads as a model does that is configured with it", "[fast]") {
  for (const auto& [role, layer] : kLayers) {
    const size_t rope = layer.find("\"theta\": 100.0");
    if (rope == std::string::npos) { continue; }
    CAPTURE(layer);
    std::string stretched = layer, llama3 = layer;
    llama3.insert(rope, R"("llama3": {"factor": 4.0, "original": 32, "low_freq_factor": 1, "high_freq_factor": 4}, )");
    stretched.insert(rope, R"("yarn": {"factor": 4.0, "original": 32}, )");
    const double plain = nll_of(hybrid(role, layer), ""), expected = nll_of(hybrid(role, stretched), "");
    CHECK(std::abs(plain - expected) > 1e-6);
    CHECK(nll_of(hybrid(role, layer), std::string(", ") + kScaled) == expected);
    // It replaces an extension that the model has.
    CHECK(nll_of(hybrid(role, llama3), "") != plain);
    CHECK(nll_of(hybrid(role, llama3), std::string(", ") + kScaled) == expected);
    CHECK(nll_of(hybrid(role, stretched),
                 R"(, "rope_scaling": {"factor": 2.0, "original": 64, "beta_fast": 8.0, "attention_factor": 1.0})") !=
          expected);
  }
}

TEST_CASE("rope_scaling holds for one evaluation and is refused where it can do nothing", "[fast]") {
  EvalFixture f(hybrid("mixer", kLayers[0].second));
  ScoringModel s = f.load();
  const std::string keys = R"("kind": "stream_ppl", "sequence_length": 129, )" + f.corpus();
  REQUIRE(run_list(s,
                   R"({"name": "a", )" + keys + R"(}, {"name": "b", )" + keys + ", " + kScaled +
                       R"(}, {"name": "c", )" + keys + "}",
                   f.folder / "out")
              .failed == 0);
  const auto nll = [&](const char* name) {
    return result_in(f.folder / "out", name).number_at("metrics.nll.value", NAN);
  };
  CHECK(nll("a") == nll("c"));
  CHECK(nll("a") != nll("b"));

  EvalFixture none(hybrid("mixer", kLayers[2].second));
  CHECK_THROWS_WITH(
      none.run(std::string(R"("kind": "stream_ppl", )") + kScaled),
      Contains("rope_scaling: found a model without rope, expected a model with a layer that has a rope object"));
  CHECK_THROWS_WITH(none.run(R"("kind": "stream_ppl", "rope_scaling": {"factor": 4.0})"),
                    Contains("rope_scaling.original"));
  CHECK_THROWS_WITH(none.run(R"("kind": "stream_ppl", "rope_scaling": {"factor": 0.5, "original": 8})"),
                    Contains("rope_scaling.factor: found 0.5"));
  EvalFixture endpoint(hybrid(
      "mixer", R"({"type": "attention", "num_heads": 2, "head_dim": 6, "rope": {"theta": 100.0, "endpoint": true}})"));
  CHECK_THROWS_WITH(endpoint.run(std::string(R"("kind": "stream_ppl", )") + kScaled),
                    Contains("rope.endpoint") && Contains("false together with yarn"));
}
