// What the layer computes (docs/layers/ham.md).
#include "tests/layers/every_layer.h"
#include "tests/layers/ham_models.h"

namespace {

/// One parameter's gradient against central differences, at every fifth entry.
void check_gradient_of(TestModel& m, const TraceInput& input, TraceOptions options, const std::string& name) {
  const std::vector<double> exact = m.run(input, options).grads.at(name).values;
  std::vector<double> quotients = exact;
  options.grads = false;
  for (size_t i = 0; i < exact.size(); i += 5) {
    quotients[i] = difference_quotient(m, m.param(name), i, 1e-5, [&] { return m.run(input, options).loss; });
  }
  check_close(name, exact, quotients, 1e-6, 1e-10);  // 1e-10: rounding of the loss over the step
}

}  // namespace

TEST_CASE("ham that selects nothing, without norms and gates, is the gated delta layer", "[ham][fast]") {
  TestModel ham(ham_json(R"("qkv_norm": "none", "gates": "none", "threshold": {"mode": "none"})"), 3, 0.4);
  TestModel gdn(ham_model(R"("x": {"type": "gdn", "num_heads": 2, "key_head_dim": 6, "value_head_dim": 5})"), 3, 0.4);
  const auto ham_name = [](std::string name) {
    for (const char* part : {"_conv.", "a_proj", "b_proj", "g_proj", "A_log", "dt_bias", "o_norm"}) {
      if (name.find(part) != std::string::npos) { name.insert(name.find("mixer.") + 6, "rnn."); }
    }
    return name;
  };
  for (const auto& p : gdn.model->params().all()) { ham.set(ham.param(ham_name(p->name())), gdn.get(*p)); }
  TraceInput input = random_input(2, 23);
  set_documents(input, {{23}, {1, 9, 13}});
  const TraceOutput a = ham.run(input), b = gdn.run(input);
  check_close("logits", a.logits.values, b.logits.values, 1e-13);
  for (const auto& [name, gradient] : b.grads) {
    check_close(name, a.grads.at(ham_name(name)).values, gradient.values, 1e-12);
  }
}

TEST_CASE("what the attention path does not use gets a gradient of zero, not none", "[ham][fast]") {
  for (const bool is_none : {true, false}) {
    TestModel m(ham_json(std::string(R"("router": {"type": "input", "depth": 2, "hidden": 3, "eda": true}, )") +
                         (is_none ? R"("threshold": {"mode": "none"})" : R"("threshold": {"tau": 0.99999})")),
                3, 0.4);
    const TraceOutput out = m.run(random_input(2, 9), inside());
    if (!is_none) { REQUIRE(count_selected(out.inside.at("blocks.0.mixer.mask")) == 0); }
    int found = 0;
    for (const auto& p : m.model->params().all()) {
      const std::string& name = p->name();
      if (name.find(".kv.") == std::string::npos && name.find(".router.") == std::string::npos) { continue; }
      INFO(name);
      CHECK(out.grads.count(name) == (name == "blocks.0.mixer.router.eda_logit" ? 0u : 1u));
      if (out.grads.count(name) == 1) {
        CHECK(out.grads.at(name).values == std::vector<double>(out.grads.at(name).values.size(), 0.0));
        ++found;
      }
    }
    CHECK(found == 2 * 8 + 2 * 2 + 1);
  }
}

TEST_CASE("prediction errors are 1 at a document's first token and between 0 and 2", "[ham][fast]") {
  TestModel m(ham_json(R"("threshold": {"tau": 1.0})"), 3, 0.4);
  TraceInput input = random_input(2, 31);
  set_documents(input, {{31}, {1, 12, 18}});
  const TraceOutput out = m.run(input, inside());
  for (const char* name : {"blocks.0.mixer.score", "blocks.1.mixer.score"}) {
    const std::vector<double>& score = out.inside.at(name).reals;
    for (const size_t first : {0, 31, 32, 44}) { CHECK(score[first] == 1.0); }
    CHECK(*std::min_element(score.begin(), score.end()) >= 0);
    CHECK(*std::max_element(score.begin(), score.end()) <= 2);
    CHECK(score[5] != 1.0);
  }
}

TEST_CASE("a higher threshold selects a subset", "[ham][fast]") {
  TestModel m(ham_json("", "", "", 1), 3, 0.4);
  std::vector<int64_t> before(40, 1);
  for (const double tau : {0.0, 0.3, 0.7, 1.0, 1.4, 2.0}) {
    HamOverride change;
    change.tau = tau;
    dynamic_cast<Overridable&>(*m.model->blocks()[0].mixer).override_selection(change);
    const std::vector<int64_t> mask = m.run(random_input(1, 40), inside()).inside.at("blocks.0.mixer.mask").integers;
    for (size_t t = 0; t < mask.size(); ++t) { CHECK(mask[t] <= before[t]); }
    CHECK((mask != before) == (tau > 0));
    before = mask;
  }
}

TEST_CASE("the score does not depend on the chunks, even where states are forgotten at once", "[ham][fast]") {
  for (const bool forgets : {false, true}) {
    std::map<int64_t, std::vector<double>> scores;
    for (const int64_t chunk : {1, 16, 64}) {
      TestModel m(ham_json(R"("threshold": {"mode": "all"}, "chunk_size": )" + std::to_string(chunk), "", "", 1),
                  DType::f32, 3, 0.4);
      if (forgets) {  // alpha about e^-20
        m.fill("blocks.0.mixer.rnn.A_log", 3);
        m.fill("blocks.0.mixer.rnn.dt_bias", 0.54);
      }
      scores[chunk] = m.run(random_input(1, 90), inside()).inside.at("blocks.0.mixer.score").reals;
    }
    // 1e-5: cosines in single precision.
    check_close("chunks of 16", scores.at(16), scores.at(1), 1e-5);
    check_close("chunks of 64", scores.at(64), scores.at(1), 1e-5);
  }
}

TEST_CASE("gradients do not change when the decisions are given", "[ham][fast]") {
  for (const std::string& variant : ham_variants()) {
    INFO(variant);
    TestModel m(variant, 3, 0.4);
    TraceInput input = random_input(2, 19);
    set_documents(input, {{19}, {7, 12}});
    const TraceOutput out = m.run(input, inside());
    CHECK(bits_fault("with given decisions", m.run(input, with_masks_of(out)), out) == "");
  }
}

TEST_CASE("averaged scores carry gradients to the routers before, past layers that do not average", "[ham][fast]") {
  const std::string router = R"("router": {"type": "input", "eda": true}, )";
  TestModel m(ham_model(ham_layer(router + R"("threshold": {"mode": "none"})", "", "", "n") + ", " +
                            ham_layer(router + R"("threshold": {"mode": "all"})", "", "", "a") +
                            R"(, "g": {"type": "gdn", "num_heads": 1, "key_head_dim": 4, "value_head_dim": 4})",
                        4, {"n", "n", "g", "a"}),
              3, 0.4);
  const TraceOutput out = m.run(random_input(2, 9));
  for (const char* name : {"blocks.0.mixer.router.layers.0.weight", "blocks.1.mixer.router.layers.0.weight",
                           "blocks.1.mixer.router.eda_logit", "blocks.3.mixer.router.eda_logit"}) {
    INFO(name);
    double largest = 0;
    for (const double g : out.grads.at(name).values) { largest = std::max(largest, std::abs(g)); }
    CHECK(largest > 1e-9);
  }
  CHECK(out.grads.count("blocks.0.mixer.router.eda_logit") == 0);
  check_gradients(m, random_input(2, 9), {}, 3);
}

TEST_CASE("ham gradients equal difference quotients with the decisions held", "[ham][fast]") {
  for (const std::string& variant : ham_variants()) {
    INFO(variant);
    TestModel m(variant, 3, 0.4);
    TraceInput input = random_input(2, 15);
    set_documents(input, {{15}, {1, 5, 9}});
    const TraceOptions options = with_masks_of(m.run(input, inside()));
    if (variant.find("vector") == std::string::npos) {
      check_gradients(m, input, options, 3);
    } else {
      // The vector router sees predictions and values as constants: what they come from has no such quotient.
      for (const char* name : {"router.layers.0.weight", "router.layers.1.weight", "router.layers.2.weight",
                               "router.eda_logit", "kv.v_conv.weight", "kv.k_norm.weight", "kv.gate_proj.weight"}) {
        check_gradient_of(m, input, options, std::string("blocks.1.mixer.") + name);
      }
    }
  }
}

TEST_CASE("ham decisions can be given, and wrong ones are refused", "[ham][fast]") {
  TestModel m(ham_json("", "", "", 1), 3, 0.4);
  const TraceInput input = random_input(1, 6);
  TraceOptions options = inside();
  Inspector::Record& mask = options.forced["blocks.0.mixer.mask"];
  mask.integers = {0, 1, 1, 0, 0, 1};
  CHECK(m.run(input, options).inside.at("blocks.0.mixer.mask").integers == mask.integers);
  mask.integers = {0, 1};
  CHECK_THROWS_WITH(m.run(input, options), "blocks.0.mixer.mask: forced decisions (found 2 integers, expected 6)");
  mask.integers = {0, 1, 2, 0, 0, 1};
  CHECK_THROWS_WITH(m.run(input, options), "blocks.0.mixer.mask: forced decision (found 2, expected 0 or 1)");
}

TEST_CASE("ham reads as layers do for every variant", "[ham][fast]") {
  for (const std::string& variant : ham_variants()) { check_reading(variant); }
}

TEST_CASE("ham that selects everything reads like softmax attention, then the norm per head", "[ham][fast]") {
  TestModel ham(ham_json(kHamPlain + R"(, "threshold": {"mode": "all"})",
                         R"("activation": "none", "output_gate": "none")", R"("activation": "none", )" + kHamRope, 1),
                3, 0.4);
  TestModel plain(
      ham_model(R"("x": {"type": "attention", "num_heads": 2, "head_dim": 6, "value_head_dim": 5, )" + kHamRope + "}",
                1),
      3, 0.4);
  plain.copy_from(ham);
  Stream stream;
  Arena arena(DeviceKind::cpu);
  const int64_t length = 13, d = 14, values = 10, head = 5;
  const Rows rows = Rows::documents(stream, arena, 1, length, documents({4, 9}));
  std::vector<double> x(static_cast<size_t>(length * d));
  Rng rng(1, "x");
  for (double& v : x) { v = rng.normal(); }
  const auto run_mixer = [&](TestModel& m) {
    Tape tape(stream, arena, false);
    Pass pass{tape, rows};
    const Var in = tape.output({length, d}, DType::f64, "x");
    copy_to_device(stream, tape.value(in), x.data());
    return to_host(stream, tape.value(m.model->blocks()[0].mixer->forward(pass, in, nullptr))).values;
  };
  // The recurrent half disappears with its norm's weight; the identity as output matrix shows the readings.
  ham.fill("blocks.0.mixer.rnn.o_norm.weight", 0);
  std::vector<double> identity(static_cast<size_t>(d * values));
  for (int64_t i = 0; i < values; ++i) { identity[static_cast<size_t>(i * values + i)] = 1; }
  ham.set(ham.param("blocks.0.mixer.o_proj.weight"), identity);
  plain.set(plain.param("blocks.0.mixer.o_proj.weight"), identity);
  std::vector<double> expected = run_mixer(plain);
  const std::vector<double> weight = ham.get(ham.param("blocks.0.mixer.kv.o_norm.weight"));
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      double* o = expected.data() + t * d + h * head;
      const double square = std::inner_product(o, o + head, o, 0.0);
      for (int64_t i = 0; i < head; ++i) {
        o[i] *= weight[static_cast<size_t>(i)] / std::sqrt(square / head + kHamNormEps);
      }
    }
  }
  check_close("readings", run_mixer(ham), expected, 1e-12);
}

TEST_CASE("scores are averaged with those of the layers before that do so too", "[ham][fast]") {
  const auto model = [](bool eda) {
    return ham_json(std::string(R"("router": {"type": "input", "eda": )") + (eda ? "true" : "false") +
                        R"(}, "threshold": {"mode": "none"})",
                    "", "", 3);
  };
  TestModel own(model(false), 3, 0.4), averaged(model(true), 3, 0.4);
  averaged.copy_from(own);  // nothing is selected: the same hidden states
  std::vector<double> gamma;
  for (int i = 0; i < 3; ++i) {
    const double logit = averaged.get(averaged.param("blocks." + std::to_string(i) + ".mixer.router.eda_logit"))[0];
    gamma.push_back(1 / (1 + std::exp(-logit)));
  }
  const TraceInput input = random_input(2, 11);
  const TraceOutput a = averaged.run(input, inside()), b = own.run(input, inside());
  std::vector<double> expected = b.inside.at("blocks.0.mixer.score").reals;
  for (int i = 0; i < 3; ++i) {
    const std::string name = "blocks." + std::to_string(i) + ".mixer.score";
    for (size_t n = 0; i > 0 && n < expected.size(); ++n) {
      expected[n] = gamma[size_t(i)] * b.inside.at(name).reals[n] + (1 - gamma[size_t(i)]) * expected[n];
    }
    check_close(name, a.inside.at(name).reals, expected, 1e-14);
  }
}
