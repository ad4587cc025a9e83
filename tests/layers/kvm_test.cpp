// kvm as a layer of a model: reference values, gradients, splits, documents, configuration.
#include "tests/layers/every_layer.h"
#include "tests/layers/kvm_models.h"

namespace {

bool reached(const TraceOutput& out, const std::string& name) { return out.grads.count("blocks.0.mixer." + name) > 0; }

}  // namespace

TEST_CASE("kvm has the properties of layers for every variant", "[kvm][fast]") {
  for (const std::string& variant : kvm_variants()) { check_layer("kvm", R"("head_dim": 6, )" + variant); }
}

TEST_CASE("kvm in fp32 chooses the routes of fp64", "[kvm][fast]") {
  for (const std::string& variant : kvm_variants()) {
    INFO(variant);
    TestModel wide(kvm_json(variant, 1), 3, 0.4), narrow(kvm_json(variant, 1), DType::f32, 3, 0.4);
    narrow.copy_from(wide);
    const TraceInput input = random_input(2, 41);
    const auto expected = wide.run(input, inside()).inside;
    const auto found = narrow.run(input, inside()).inside;
    // No two scores of these tokens are as near as fp32 rounds, equal tokens excepted, whose scores are equal in both.
    for (const char* name : {"blocks.0.mixer.row", "blocks.0.mixer.append"}) {
      CHECK(found.at(name).integers == expected.at(name).integers);
    }
  }
}

TEST_CASE("kvm's switches act once the state is in use, before that only the temperatures", "[kvm][fast]") {
  const std::string common = R"("num_heads": 2, "chunk_size": 3)";
  const std::string state = R"(, "state": {"mode": "fixed", "rows": 4})";
  const std::vector<std::string> switches = {state + R"(, "sinks": 0)",
                                             state + R"(, "sinks": 2)",
                                             state + R"(, "merge_gate": "keys")",
                                             state + R"(, "merge_gate": "values")",
                                             state + R"(, "merge_gate": "none")",
                                             state + R"(, "gate_appends": true)",
                                             state + R"(, "value_norm": "mean")",
                                             state + R"(, "value_norm": "updates")",
                                             R"(, "state": {"mode": "power", "factor": 2.0, "exponent": 0.7})",
                                             R"(, "state": {"mode": "saturate", "limit": 9})",
                                             R"(, "state": {"mode": "power", "factor": 2.0, "exponent": 0.7, )"
                                             R"("max_rows": 3})"};
  TestModel m(kvm_json(common + state), 3, 0.4);
  const TraceInput within = random_input(2, 6), beyond = random_input(2, 31);
  const std::vector<double> short_logits = m.run(within).logits.values, long_logits = m.run(beyond).logits.values;
  for (const std::string& change : switches) {
    INFO(change);
    TestModel other(kvm_json(common + change), 3, 0.4);
    other.copy_from(m);
    CHECK(other.run(within).logits.values == short_logits);
    CHECK(other.run(beyond).logits.values != long_logits);
  }
  TestModel untempered(kvm_json(common + state + R"(, "temperatures": false)"), 3, 0.4);
  untempered.copy_from(m);
  CHECK(untempered.run(within).logits.values != short_logits);
  CHECK(untempered.run(beyond).logits.values != long_logits);
}

TEST_CASE("kvm's parameters are reached when the state is in use", "[kvm][fast]") {
  const auto run = [](int64_t length, const std::string& state) {
    TestModel m(kvm_json(R"("num_heads": 2, "chunk_size": 3, "state": )" + state, 1), 3, 0.4);
    return m.run(random_input(1, length));
  };
  const std::string fixed = R"({"mode": "fixed", "rows": 3})";
  const std::string full = R"({"mode": "power", "factor": 1, "exponent": 1})";
  const TraceOutput window = run(6, fixed), unmerged = run(9, fixed), merged = run(10, fixed), appended = run(19, full);
  for (const char* name : {"state_temp", "mem_norm.weight", "mem_norm.bias"}) {
    CHECK(!reached(window, name));
    CHECK(reached(unmerged, name));
    CHECK(reached(appended, name));
  }
  CHECK(reached(window, "window_temp"));
  CHECK(!reached(unmerged, "merge_gate.weight"));
  CHECK(reached(merged, "merge_gate.weight"));
  CHECK(!reached(appended, "merge_gate.weight"));
}

TEST_CASE("kvm and attention share value-residual groups", "[kvm][fast]") {
  for (const char* source : {"first", "embedding"}) {
    for (const char* kind : {"lambda", "gated"}) {
      const std::string residual = R"("num_heads": 2, "head_dim": 6, "token_shift": true, "value_residual": ")" +
                                   std::string(kind) + R"(", "value_residual_source": ")" + source + "\"" +
                                   (std::string(kind) == "gated" ? R"(, "value_residual_rank": 2)" : "");
      const std::string json = R"({"vocab_size": 29, "hidden_size": 14, "num_layers": 4, "norm": "layer",
        "embed_norm": true, "residual_scale": 0.7, "layers": {
        "a": {"type": "attention", "window": 5, )" +
                               residual + R"(},
        "x": {"type": "kvm", "chunk_size": 3, "state": {"mode": "fixed", "rows": 4},
              "rope": {"theta": 100.0, "dims": 4, "endpoint": true}, )" +
                               residual + R"(},
        "mlp": {"type": "relu2", "intermediate_size": 11, "token_shift": true}},
        "pattern": [{"mixer": "a", "ffn": "mlp"}, {"mixer": "x", "ffn": "mlp"}], "at": {"3": {"mixer": "a"}}})";
      INFO(source << " " << kind);
      TestModel m(json, 3, 0.4);
      TraceInput input = random_input(2, 15);
      set_documents(input, {{15}, {4, 11}});
      TraceOptions options;
      options.forced = m.run(input, inside()).inside;
      check_gradients(m, input, options, 2);
      const TraceInput stream = random_input(2, 22);
      check_close("steps", m.segments(stream, {9, 1, 1, 4, 7}), m.run(stream).logits.values, 1e-11);
    }
  }
}

TEST_CASE("values that are all zero stay finite in kvm", "[kvm][fast]") {
  TestModel m(kvm_json(kvm_variants()[0], 1), 3, 0.4);
  m.fill("blocks.0.mixer.v_proj.weight", 0);
  const TraceOutput out = m.run(random_input(2, 21));
  for (const double x : out.logits.values) { CHECK(std::isfinite(x)); }
  for (const auto& [name, gradient] : out.grads) {
    INFO(name);
    for (const double x : gradient.values) { CHECK(std::isfinite(x)); }
  }
}

TEST_CASE("kvm puts its statistics under its block", "[kvm][fast]") {
  TestModel m(kvm_json(R"("num_heads": 2, "chunk_size": 3, "state": {"mode": "fixed", "rows": 4})", 1), DType::f64, 3,
              0.4);
  m.fill("blocks.0.mixer.merge_gate.weight", 0);
  const TraceInput input{1, 17, std::vector<int64_t>(17), {}, documents({13, 4})};  // one token's repetitions
  const Statistics statistics = m.statistics(input);
  REQUIRE(statistics.size() == 1);
  const auto& s = statistics.at("blocks.0.mixer");
  // 13 tokens: chunk 2 sees 3 rows, chunks 3 and 4 see 4; 9 tokens left the window, 4 founded rows. 4 tokens: none.
  CHECK(s.at("rows") == Approx((3 * 3 + 4 * 3 + 4 * 1) / 17.0));
  CHECK(s.at("rows_max") == 4);
  CHECK(s.at("append_share") == Approx(4.0 / 9));
  CHECK(s.at("row_tokens_mean") == Approx(9.0 / 4));
  CHECK(s.at("merge_gate_mean") == Approx(1.0));
  // Equal tokens: all merge into one row, so that rows hold 1, 6, 1, 1.
  CHECK(s.at("row_tokens_max") == 6);
  const double entropy = -(6.0 / 9 * std::log(6.0 / 9) + 3 * (1.0 / 9) * std::log(1.0 / 9));
  CHECK(s.at("row_tokens_entropy") == Approx(entropy / std::log(4.0)));
}

TEST_CASE("kvm is causal attention with the window temperature while the window holds everything", "[kvm][fast]") {
  const std::string heads = R"("head_dim": 6, "num_heads": 4, "num_kv_heads": 2, "value_head_dim": 3, )"
                            R"("qk_norm": "layer", "token_shift": true, "rope": {"theta": 10.0, "dims": 4})";
  TestModel plain(small_model_json(R"("type": "attention", )" + heads), 3, 0.4);
  TestModel m(small_model_json(R"("type": "kvm", "chunk_size": 4, "window_chunks": 3, )"
                               R"("state": {"mode": "fixed", "rows": 4}, )" +
                               heads),
              4, 0.4);
  m.copy_from(plain);
  constexpr double kTemperature = 0.75;
  for (const char* block : {"blocks.0.mixer.", "blocks.1.mixer."}) {
    m.fill(block + std::string("window_temp"), kTemperature);
    for (const char* name : {"q_norm.weight", "q_norm.bias"}) {
      m.change(m.param(block + std::string(name)), [&](std::vector<double>& values) {
        for (double& x : values) { x /= kTemperature; }
      });
    }
  }
  TraceInput input = random_input(2, 23);
  set_documents(input, {{11, 12}, {1, 12, 10}});
  const TraceOutput out = m.run(input), expected = plain.run(input);
  check_close("logits", out.logits.values, expected.logits.values, 1e-11);
  for (const auto& [name, gradient] : expected.grads) {
    const double factor = name.find("q_norm") != std::string::npos ? kTemperature : 1.0;
    std::vector<double> scaled = gradient.values;
    for (double& x : scaled) { x *= factor; }
    check_close(name, out.grads.at(name).values, scaled, 1e-10);
  }
}
