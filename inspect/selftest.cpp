#include "inspect/selftest.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/elapsed.h"
#include "core/random.h"
#include "optim/optimizer.h"

namespace hebb {
namespace {

constexpr int64_t kVocab = 61, kLength = 45, kSingle = 8;

/// Two blocks: the layer, then attention. Smaller weights for bf16: its rounding alone moves the logits of these narrow
/// models by up to 0.07 where init_std is 0.2, and a limit above that would let errors through.
ModelConfig model_of(const LayerType& type, DType dtype) {
  const std::string std = dtype == DType::bf16 ? "0.05" : "0.2";
  const std::string roles = type.role == Role::mixer ? R"("mixer": "x", "ffn": "mlp")"
                            : type.role == Role::ffn ? R"("mixer": "full", "ffn": "x")"
                                                     : R"("mixer": "full", "ffn": "mlp", "memory": "x")";
  const std::string json = R"({"vocab_size": )" + std::to_string(kVocab) +
                           R"(, "hidden_size": 48, "num_layers": 2, "init_std": )" + std + R"(, "layers": {
    "x": {"type": ")" + type.name +
                           "\", " + type.small + R"(}, "mlp": {"type": "swiglu", "intermediate_size": 70},
    "full": {"type": "attention", "num_heads": 3, "head_dim": 16, "rope": {"theta": 100.0}}},
    "pattern": [{)" + roles +
                           R"(}, {"mixer": "full", "ffn": "mlp"}]})";
  return Fields::read<ModelConfig>(parse_json(json, "selftest " + type.name), "model");
}

/// Two rows; the second holds three documents.
TraceInput make_rows() {
  TraceInput input;
  input.rows = 2;
  input.length = kLength;
  Rng rng(1, "selftest");
  for (int64_t i = 0; i < 2 * kLength; ++i) {
    input.inputs.push_back(rng.below(kVocab));
    input.targets.push_back(rng.below(kVocab));
    input.doc_ids.push_back(i < kLength ? 0 : i < kLength + 1 ? 0 : i < kLength + 19 ? 1 : 2);
  }
  return input;
}

struct Runner {
  Stream stream;
  Arena arena;
  Model model;

  Runner(const ModelConfig& config, const Compute& compute)
      : stream{compute.device}, arena(compute.device, "selftest"), model(config) {
    model.params().allocate(arena, compute.dtype, true);
    reset();
  }
  void reset() {
    model.params().initialize(stream, 1);
    model.begin_step(stream, 0);
  }

  TraceOutput train(const TraceInput& input, const std::map<std::string, Inspector::Record>& forced) {
    reset();  // fast weights start anew
    return trace(model, stream, arena, input, {.grads = true, .inside = true, .forced = forced});
  }

  /// Logits of the first row, read in segments and single tokens, those on a GPU as recorded graphs.
  std::vector<double> decode(const TraceInput& input) {
    reset();
    std::vector<double> logits;
    const std::vector<int32_t> ids(input.inputs.begin(), input.inputs.begin() + kLength);
    const auto state = model.make_state(arena, 1);
    Arena work(stream.device, "selftest");
    int64_t begin = 0;
    std::vector<int64_t> segments{19};
    segments.resize(kSingle + 1, 1);
    segments.insert(segments.end(), {kLength - 20 - kSingle, 1});
    for (const int64_t n : segments) {
      if (n == 1) {
        const FastWeightControl fast{.update = FastUpdate::streaming};
        const std::span<const int32_t> token(ids.data() + begin, 1);
        const Tensor part = read_token(model, stream, work, *state, token, {.fast = fast});
        const std::vector<double> values = to_host(stream, part).values;
        logits.insert(logits.end(), values.begin(), values.end());
        ++begin;
        continue;
      }
      const Rows rows = Rows::streams(stream, arena, 1, n, begin);
      const Buffer tokens(arena, {n}, DType::i32, "tokens");
      copy_to_device(stream, tokens, ids.data() + begin);
      Tape tape(stream, arena, false);
      Pass pass{tape, rows};
      pass.fast.update = FastUpdate::streaming;
      const TraceTensor part = to_host(stream, tape.value(model.logits(pass, model.hidden(pass, tokens, state.get()))));
      logits.insert(logits.end(), part.values.begin(), part.values.end());
      begin += n;
    }
    return logits;
  }

  /// Three optimizer steps on random gradients; the weights that result.
  std::map<std::string, TraceTensor> optimize() {
    OptimizerConfig config;
    config.lr = 1e-2;
    Optimizer optimizer(config, Schedule(ScheduleConfig{}, 1e-2, 3), model.params(), arena);
    for (int64_t step = 0; step < 3; ++step) {
      for (const auto& p : model.params().all()) {
        if (p->trained()) { fill_gradient(*p, step); }
      }
      optimizer.step(stream, step);
      optimizer.finish(stream);
    }
    std::map<std::string, TraceTensor> weights;
    for (const auto& p : model.params().all()) {
      if (p->trained()) { weights[p->name()] = to_host(stream, p->value); }
    }
    return weights;
  }

 private:
  void fill_gradient(Param& p, int64_t step) {
    Rng rng(static_cast<uint64_t>(step), p.name());
    std::vector<float> values(static_cast<size_t>(p.grad.numel()));
    for (float& x : values) { x = static_cast<float>(rng.normal()); }
    p.reached = true;
    dispatch_real(p.grad.dtype, [&]<class S>(S) {
      const std::vector<S> typed(values.begin(), values.end());
      copy_to_device(stream, p.grad, typed.data());
    });
  }
};

/// Largest difference over the largest entry of b; infinite for NaN and for other sizes.
double relative(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY, largest = 1e-300;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / largest;
}

double rms(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) { sum += v * v; }
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(x.size(), 1)));
}

/// Rms of the difference over the rms of b, or over `smallest` where that is larger.
double relative_rms(const std::vector<double>& a, const std::vector<double>& b, double smallest) {
  if (a.size() != b.size()) { return INFINITY; }
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) { difference[i] = a[i] - b[i]; }
  const double error = rms(difference);
  return std::isnan(error) ? INFINITY : error / std::max({rms(b), smallest, 1e-300});
}

std::string exceeds(const char* what, double found, double limit) {
  return fmt::format("{} differ by {:.1e}, expected at most {:.0e}", what, found, limit);
}

SelftestResult test_optimizer(const Compute& compute, const SelftestLimits& limits) {
  SelftestResult result{"optimizer"};
  const ModelConfig config = model_of(*find_layer_type("attention"), compute.dtype);
  const auto expected = Runner(config, {DeviceKind::cpu, DType::f64}).optimize();
  const auto found = Runner(config, compute).optimize();
  for (const auto& [name, weights] : expected) {
    const double difference = relative(found.at(name).values, weights.values);
    result.logits = std::max(result.logits, difference);
    if (!(difference <= limits.outputs) && result.failure.empty()) {
      result.failure = exceeds(name.c_str(), difference, limits.outputs);
    }
  }
  return result;
}

SelftestResult test_layer(const LayerType& type, const Compute& compute, const SelftestLimits& limits) {
  const ModelConfig config = model_of(type, compute.dtype);
  const TraceInput input = make_rows();
  Runner reference(config, {DeviceKind::cpu, DType::f64}), device(config, compute);
  const TraceOutput expected = reference.train(input, {});
  const TraceOutput found = device.train(input, expected.inside);
  SelftestResult result = judge(type.name, found, expected, limits);
  const TraceOutput again = device.train(input, expected.inside);
  bool repeats = again.logits.values == found.logits.values;
  for (const auto& [name, gradient] : found.grads) { repeats &= again.grads.at(name).values == gradient.values; }
  if (!repeats && result.failure.empty()) { result.failure = "a second run gives other bits"; }
  if (compute.dtype == DType::f32) {
    result.decoding = relative(device.decode(input), reference.decode(input));
    if (!(result.decoding <= limits.outputs) && result.failure.empty()) {
      result.failure = exceeds("logits of decoding", result.decoding, limits.outputs);
    }
  }
  return result;
}

}  // namespace

SelftestLimits selftest_limits(DType dtype) {
  return dtype == DType::bf16 ? SelftestLimits{2e-2, 5e-2, 0x1p-9} : SelftestLimits{1e-4, 1e-3, 1e-3};
}

std::vector<std::string> selftest_names() {
  std::vector<std::string> names;
  for (const LayerType& type : layer_types()) { names.push_back(type.name); }
  names.push_back("optimizer");
  return names;
}

SelftestResult judge(const std::string& name, const TraceOutput& device, const TraceOutput& reference,
                     const SelftestLimits& limits) {
  SelftestResult result{name};
  const auto check = [&](const char* what, double found, double limit) {
    if (!(found <= limit) && result.failure.empty()) { result.failure = exceeds(what, found, limit); }
  };
  result.logits = relative(device.logits.values, reference.logits.values);
  check("logits", result.logits, limits.outputs);
  result.loss = relative({device.loss}, {reference.loss});
  check("losses", result.loss, limits.outputs);
  double scale = 0;
  for (const auto& [key, gradient] : reference.grads) { scale = std::max(scale, rms(gradient.values)); }
  for (const auto& [key, gradient] : reference.grads) {
    const auto it = device.grads.find(key);
    const double found =
        it == device.grads.end() ? INFINITY : relative_rms(it->second.values, gradient.values, limits.zeros * scale);
    result.gradients = std::max(result.gradients, found);
    check(("gradients of " + key).c_str(), found, limits.gradients);
  }
  for (const auto& [key, weights] : reference.after) {
    const auto it = device.after.find(key);
    check(("fast weights " + key).c_str(),
          it == device.after.end() ? INFINITY : relative(it->second.values, weights.values), limits.outputs);
  }
  return result;
}

SelftestResult selftest(const std::string& name, const Compute& compute) {
  const SelftestLimits limits = selftest_limits(compute.dtype);
  const auto start = std::chrono::steady_clock::now();
  SelftestResult result{name};
  try {
    const LayerType* type = find_layer_type(name);
    HEBB_ASSERT(type != nullptr || name == "optimizer");
    result = type != nullptr ? test_layer(*type, compute, limits) : test_optimizer(compute, limits);
  } catch (const std::exception& error) { result.failure = error.what(); }
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace hebb
