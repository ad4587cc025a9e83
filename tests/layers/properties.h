#pragma once
// What holds for every layer, as functions that say in words what is wrong ("" = nothing), and checks of them for test
// cases. docs/adding-a-layer.md lists them; every_layer_test.cpp applies them to each type in the registry.
#include "tests/layers/harness.h"

namespace hebb::testing {

/// Of a parameter without a gradient whose difference quotient is `numeric`.
inline std::string unreached_text(const std::string& name, double numeric) {
  std::ostringstream text;
  text << name << ": the backward pass does not reach it, but the loss depends on it (difference quotient " << numeric
       << "). Does every operation record its node, and its node's backward write tape.grad_slot of every input?";
  return text.str();
}

/// Central difference quotient of the mean loss at one entry of a parameter.
inline double difference_quotient(TestModel& m, Param& p, size_t i, double step, const std::function<double()>& loss) {
  const std::vector<double> kept = m.get(p);
  const auto at = [&](double moved) {
    std::vector<double> values = kept;
    values[i] += moved;
    m.set(p, values);
    return loss();
  };
  const double above = at(step), below = at(-step);
  m.set(p, kept);
  return (above - below) / (2 * step);
}

/// Gradients of the mean loss against central differences in fp64, at up to `samples` entries of
/// every parameter (spread over the tensor). Fast weights and buffers are restored between runs.
inline std::string gradient_fault(TestModel& m, const TraceInput& input, TraceOptions options = {}, int samples = 6,
                                  double tolerance = 1e-6, double step = 1e-5, double floor = 1e-10) {
  options.grads = true;
  const FastWeights fast = fast_weights(m);
  const TraceOutput analytic = m.run(input, options);
  options.grads = false;
  const auto loss = [&] {
    set_fast_weights(m, fast);
    return m.run(input, options).loss;
  };
  std::vector<Param*> params;  // those without a gradient first: what they lack makes others wrong
  for (const bool reached : {false, true}) {
    for (const auto& p : m.model->params().all()) {
      if (p->trained() && (analytic.grads.count(p->name()) > 0) == reached) { params.push_back(p.get()); }
    }
  }
  std::string fault;
  for (Param* p : params) {
    if (!fault.empty()) { break; }
    const auto it = analytic.grads.find(p->name());
    const bool is_reached = it != analytic.grads.end();
    const size_t n = static_cast<size_t>(p->value.numel()), count = std::min<size_t>(n, static_cast<size_t>(samples));
    double scale = 0;
    for (size_t i = 0; is_reached && i < n; ++i) { scale = std::max(scale, std::abs(it->second.values[i])); }
    for (size_t s = 0; s < count && fault.empty(); ++s) {
      const size_t i = (s * n) / count + (s % 2 == 1 ? (n / count) / 2 : 0);
      const double numeric = difference_quotient(m, *p, i, step, loss), exact = is_reached ? it->second.values[i] : 0.0;
      // floor: rounding of the loss (1e-16) over the step (1e-5), with room.
      if (std::abs(exact - numeric) <= tolerance * std::max(scale, std::abs(numeric)) + floor) { continue; }
      std::ostringstream text;
      text << p->name() << "[" << i << "]: gradient " << exact << ", difference quotient " << numeric;
      fault = is_reached ? text.str() : unreached_text(p->name(), numeric);
    }
  }
  set_fast_weights(m, fast);
  return fault;
}
inline void check_gradients(TestModel& m, const TraceInput& input, TraceOptions options = {}, int samples = 6,
                            double tolerance = 1e-6, double step = 1e-5) {
  CHECK(gradient_fault(m, input, options, samples, tolerance, step) == "");
}

/// Logits of the tokens one by one, and of every split of them into segments, equal those of one pass.
inline std::string split_fault(TestModel& m, const TraceInput& input, const std::vector<std::vector<int64_t>>& splits,
                               double tolerance = 1e-11, const TraceOptions& options = {}) {
  const std::vector<double> expected = m.run(input, options).logits.values;
  std::string fault = difference_fault("logits of single tokens with a carried state against one pass", m.steps(input),
                                       expected, tolerance);
  for (size_t i = 0; i < splits.size() && fault.empty(); ++i) {
    fault = difference_fault("logits of split " + std::to_string(i) + " with a carried state against one pass",
                             m.segments(input, splits[i]), expected, tolerance);
  }
  return fault;
}

/// Logits and gradients of one row of documents equal those of rows of their own (losses are means over a row).
inline std::string document_fault(TestModel& m, TraceInput packed, const std::vector<int64_t>& lengths,
                                  double logits_tolerance = 1e-12, double gradient_tolerance = 1e-11,
                                  const TraceOptions& options = with_grads()) {
  REQUIRE(packed.rows == 1);
  set_documents(packed, {lengths});
  const TraceOutput together = m.run(packed, options);
  std::vector<double> logits;
  std::map<std::string, std::vector<double>> sums;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    TraceInput one = part(packed, begin, length);
    one.doc_ids.clear();
    const TraceOutput out = m.run(one, options);
    logits.insert(logits.end(), out.logits.values.begin(), out.logits.values.end());
    for (const auto& [name, gradient] : out.grads) {
      std::vector<double>& sum = sums[name];
      sum.resize(gradient.values.size());
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += gradient.values[i] * static_cast<double>(length) / static_cast<double>(packed.length);
      }
    }
    begin += length;
  }
  std::string fault = difference_fault("logits of documents in one row against rows of their own",
                                       together.logits.values, logits, logits_tolerance);
  REQUIRE(together.grads.size() == sums.size());
  for (const auto& [name, gradient] : together.grads) {
    if (fault.empty()) {
      fault = difference_fault("gradient of " + name + " of documents in one row against rows of their own",
                               gradient.values, sums.at(name), gradient_tolerance);
    }
  }
  return fault;
}
inline void check_packed_documents(TestModel& m, const TraceInput& packed, const std::vector<int64_t>& lengths,
                                   double logits_tolerance = 1e-12, double gradient_tolerance = 1e-11) {
  CHECK(document_fault(m, packed, lengths, logits_tolerance, gradient_tolerance) == "");
}

/// Logits do not depend on later tokens, but on their own.
inline std::string order_fault(TestModel& m, TraceInput input, int64_t changed_from) {
  const TraceOptions options = reading({});
  const std::vector<double> before = m.run(input, options).logits.values;
  for (size_t t = static_cast<size_t>(changed_from); t < input.inputs.size(); ++t) {
    input.inputs[t] = (input.inputs[t] + 1) % m.config.vocab_size;
  }
  const std::vector<double> after = m.run(input, options).logits.values;
  if (after == before) { return "logits do not depend on the tokens"; }
  const std::ptrdiff_t known = changed_from * m.config.vocab_size;
  return difference_fault("logits before the first of other tokens, which must not see them",
                          {after.begin(), after.begin() + known}, {before.begin(), before.begin() + known}, 1e-12);
}

/// "" if two runs gave the same bits.
inline std::string bits_fault(const std::string& what, const TraceOutput& a, const TraceOutput& b) {
  if (a.logits.values != b.logits.values || a.loss != b.loss) { return "logits or loss " + what + " have other bits"; }
  if (a.grads.size() != b.grads.size()) { return "other gradients " + what; }
  for (const auto& [name, gradient] : a.grads) {
    const auto it = b.grads.find(name);
    if (it == b.grads.end() || gradient.values != it->second.values) {
      return "gradient of " + name + " " + what + " has other bits";
    }
  }
  for (const auto& [name, weight] : a.after) {
    if (weight.values != b.after.at(name).values) { return "fast weight " + name + " " + what + " has other bits"; }
  }
  return "";
}

/// Threads and layers that run again for the backward pass change no bit.
inline std::string repeat_fault(TestModel& m, const TraceInput& input) {
  const int before = threads();
  const FastWeights fast = fast_weights(m);
  const auto run = [&](int count, Recompute mode) {
    set_threads(count);
    m.model->set_recompute(mode);
    set_fast_weights(m, fast);
    return m.run(input);
  };
  const TraceOutput one = run(1, Recompute::none);
  std::string fault = bits_fault("with 3 threads", run(3, Recompute::none), one);
  for (const Recompute mode : {Recompute::mixer, Recompute::ffn, Recompute::block}) {
    if (fault.empty()) { fault = bits_fault("under recomputation", run(3, mode), one); }
  }
  m.model->set_recompute(Recompute::none);
  set_threads(before);
  return fault;
}
inline void check_threads_and_recompute(TestModel& m, const TraceInput& input) { CHECK(repeat_fault(m, input) == ""); }

/// Outputs, gradients and fast weights in fp32 are those of fp64 with the same weights and choices. Both models have
/// the same seed. 1e-5: the fp32 rule of the layer pages.
inline std::string precision_fault(TestModel& wide, TestModel& narrow, const TraceInput& input,
                                   TraceOptions options = with_grads(), double tolerance = 1e-5, double floor = 1e-8) {
  wide.copy_from(narrow);
  options.inside = true;
  const TraceOutput expected = wide.run(input, options);
  options.forced = expected.inside;
  const TraceOutput found = narrow.run(input, options);
  std::string fault = difference_fault("logits in fp32", found.logits.values, expected.logits.values, tolerance);
  for (const auto& tensors : {&TraceOutput::grads, &TraceOutput::after}) {
    for (const auto& [name, t] : expected.*tensors) {
      if (fault.empty()) {
        fault = difference_fault(name + " in fp32", (found.*tensors).at(name).values, t.values, tolerance, floor);
      }
    }
  }
  return fault;
}
/// `json`: a `model` object, with matrices of standard deviation `std`.
inline void check_precision(const std::string& json, const TraceInput& input, double std,
                            const TraceOptions& options = with_grads(), double tolerance = 1e-5, uint64_t seed = 3) {
  TestModel wide(json, DType::f64, seed, std), narrow(json, DType::f32, seed, std);
  CHECK(precision_fault(wide, narrow, input, options, tolerance) == "");
}

/// Where `plan` takes its numbers from: FLOPs, and bytes of the state beside what decoding holds in fp32.
inline std::string cost_fault(const Layer& layer, Stream& stream) {
  constexpr int64_t kTokens = 64;
  std::ostringstream text;
  if (!(layer.flops_per_token(kTokens) > 0)) {
    text << "flops_per_token is " << layer.flops_per_token(kTokens) << ", expected a number > 0";
  }
  Arena arena(stream.device, "state");
  const auto state = layer.make_state(arena, 1, DType::f32);
  const int64_t told = layer.state_bytes(kTokens);
  if (text.str().empty() && (state != nullptr) != (told > 0)) {
    text << "state_bytes is " << told << ", but make_state returns " << (state != nullptr ? "a state" : "none");
  }
  return text.str();
}

/// Whether the layer says how it is used, which is asked of memories: while it trains, or in the evaluation
/// memory_stats.
inline std::string statistics_fault(TestModel& m, const LayerConfig& config, const std::string& layer) {
  if (!config.statistics({}).empty()) { return ""; }
  const Statistics statistics = m.statistics(random_input(1, 16, m.config.vocab_size));
  if (statistics.count(layer) > 0) { return ""; }
  return layer +
         " has no statistics: forward writes nothing to Pass::statistics, and LayerConfig::statistics names no "
         "collectors";
}

}  // namespace hebb::testing
