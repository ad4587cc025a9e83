#include "inspect/bench.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "core/elapsed.h"
#include "core/launch_profile.h"
#include "core/parallel.h"
#include "core/quantile.h"
#include "core/random.h"
#include "kernels/common/cores.h"
#include "layers/model.h"
#include "train/memory_plan.h"
#include "train/training_state.h"

namespace hebb {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return 1e3 * seconds_since(start); }

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab) {
  Rng rng(1, "bench");
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) { id = static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab))); }
  return ids;
}

constexpr int64_t kApart = 2;  // more steps, for the times of their parts

/// A run of one model on one device, as far as a step needs it.
RunConfig bench_run(ModelConfig model, const Compute& compute, const BenchSteps& steps) {
  RunConfig run;
  run.model = std::move(model);
  run.train.batch_size = steps.rows;
  run.train.micro_batch_size = steps.rows;
  run.train.sequence_length = steps.length;
  run.train.steps = steps.warmup + steps.steps + kApart;
  run.train.allow_tf32 = steps.allow_tf32;
  run.train.recompute = steps.recompute;
  run.train.device = compute.device == DeviceKind::cuda ? "cuda" : "cpu";
  run.train.precision = precision_name(compute.dtype);
  run.train.cuda_graphs = compute.cuda_graphs;
  run.train.autotune = steps.autotune;
  run.optimizer.lr = 1e-3;
  return run;
}

/// Errors: MemoryError where it does not fit, as in `train`.
MemoryPlan fitting_plan(const RunConfig& run, ProductList& products) {
  MemoryPlan plan = plan_memory(run, {}, &products);
  require_memory(plan, device_of(run));
  return plan;
}

/// Training steps on one batch of random tokens.
class Steps {
 public:
  Steps(const RunConfig& run, const MemoryPlan& plan)
      : training_(run, Ranks(), device_of(run), plan.state_bytes(), plan.work_bytes),
        batch_(run.train.batch_size, run.train.sequence_length),
        tokens_(run.train.tokens_per_step()) {
    training_.model.params().initialize(training_.stream, 1);
    const std::vector<int32_t> ids = random_tokens(tokens_ + 1, run.model.vocab_size);
    std::copy(ids.begin(), ids.end() - 1, batch_.inputs.begin());
    std::copy(ids.begin() + 1, ids.end(), batch_.targets.begin());
    settings_.training = true;
  }

  const Model& model() const { return training_.model; }
  int64_t peak_bytes() const { return training_.state.peak_bytes() + training_.work.peak_bytes(); }

  /// Of one step [ms]. The optimizer's part tells something where the step waited for the device behind its passes.
  struct Times {
    double all, optimizer;
  };
  Times step(bool waits_between) {
    const auto start = Clock::now();
    training_.begin_step(step_, 1.0 / static_cast<double>(tokens_));
    settings_.step = step_;
    training_.passes->run(batch_, settings_, training_.row_loss);
    if (waits_between) { wait(); }
    const auto behind = Clock::now();
    training_.finish_step(step_++, tokens_, false);
    return {ms_since(start), ms_since(behind)};
  }
  /// [ms]
  double profiled(LaunchProfile& profile) {
    training_.stream.profile = &profile;
    const double ms = step(false).all;
    profile.end(training_.stream);
    training_.stream.profile = nullptr;
    return ms;
  }
  double forward() {
    const auto start = Clock::now();
    run_micro_batch(training_.model, training_.stream, training_.work, batch_, settings_, training_.row_loss);
    wait();
    return ms_since(start);
  }

 private:
  void wait() {  // a GPU's kernels have only been enqueued
    double loss;
    copy_to_host(training_.stream, &loss, training_.row_loss.tensor().slice(0, {1}));
  }

  TrainingState training_;
  MicroBatch batch_;
  PassSettings settings_;
  int64_t tokens_, step_ = 0;
};

}  // namespace

ModelSpeed measure_model(ModelConfig config, const Compute& compute, const BenchSteps& steps) {
  const RunConfig run = bench_run(std::move(config), compute, steps);
  const FallbackLog log;  // of the plan and the steps
  ModelSpeed speed;
  ProductList products;
  const MemoryPlan plan = fitting_plan(run, products);
  if (compute.device == DeviceKind::cuda && steps.autotune) {
    speed.tuning =
        autotune(products, {}, nullptr, [&](const std::string& note) { speed.tuning_notes.push_back(note); });
  }
  Steps bench(run, plan);
  std::vector<double> times;
  for (int64_t s = 0; s < steps.warmup + steps.steps; ++s) {
    const double ms = bench.step(false).all;
    if (s >= steps.warmup) { times.push_back(ms); }
  }
  std::sort(times.begin(), times.end());
  speed.rows = steps.rows;
  speed.length = steps.length;
  speed.steps = steps.steps;
  speed.threads = threads();
  speed.best_ms = times.front();
  speed.median_ms = quantile(times, 0.5);
  speed.forward_ms = speed.optimizer_ms = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < kApart; ++i) {
    speed.optimizer_ms = std::min(speed.optimizer_ms, bench.step(true).optimizer);
    speed.forward_ms = std::min(speed.forward_ms, bench.forward());
  }
  speed.flops_per_token = 3.0 * bench.model().flops_per_token(steps.length);
  speed.peak_bytes = bench.peak_bytes();
  speed.plain_cores = log.lines();
  return speed;
}

StepProfile profile_model(ModelConfig config, Compute compute, const BenchSteps& steps) {
  compute.cuda_graphs = false;
  const RunConfig run = bench_run(std::move(config), compute, steps);
  ProductList products;
  const MemoryPlan plan = fitting_plan(run, products);
  if (compute.device == DeviceKind::cuda && steps.autotune) {
    autotune(products, {}, nullptr, [](const std::string&) {});
  }
  Steps bench(run, plan);
  for (int64_t s = 0; s < steps.warmup; ++s) { bench.step(false); }
  StepProfile profile;
  profile.rest_ms = std::numeric_limits<double>::infinity();
  std::map<std::string, OperationSpeed> best;
  for (int64_t s = 0; s < steps.steps; ++s) {
    LaunchProfile launches;
    double rest = bench.profiled(launches);
    for (const auto& [name, o] : launches.operations()) {
      const double ms = 1e3 * o.seconds;
      rest -= ms;
      OperationSpeed& speed = best[name];
      const double least = speed.launches == 0 ? ms : std::min(speed.ms, ms);
      speed = {.name = name, .ms = least, .flops = o.flops, .bytes = o.bytes, .launches = o.launches};
    }
    profile.rest_ms = std::min(profile.rest_ms, rest);
  }
  profile.step_ms = profile.rest_ms;
  for (const auto& [name, speed] : best) {
    profile.operations.push_back(speed);
    profile.step_ms += speed.ms;
  }
  std::sort(profile.operations.begin(), profile.operations.end(),
            [](const OperationSpeed& a, const OperationSpeed& b) { return a.ms > b.ms; });
  return profile;
}

DecodeSpeed measure_decode(const ModelConfig& config, const Compute& compute, int64_t context) {
  Stream stream{compute.device};
  Arena arena(compute.device);
  Model model(config);
  model.params().allocate(arena, compute.dtype, false);
  model.params().initialize(stream, 1);
  return measure_decode(model, stream, arena, 1, context, {}, compute.cuda_graphs);
}

DecodeSpeed measure_decode(Model& model, Stream& stream, Arena& arena, int64_t rows, int64_t context,
                           const ReadSettings& reading, bool cuda_graphs) {
  constexpr int64_t kWarmup = 8, kSteps = 64;
  const std::vector<int32_t> ids = random_tokens(rows * (context + kWarmup + kSteps), model.config().vocab_size);
  const auto state = model.make_state(arena, rows);
  const FastWeightControl fast{.update = FastUpdate::streaming};
  const AttentionControl attention{.yarn = reading.yarn ? &*reading.yarn : nullptr};
  const auto wait_for = [&](const Tensor& logits) {  // a GPU's kernels have only been enqueued
    uint8_t byte;
    copy_to_host(stream, &byte, Tensor{logits.data, DType::u8, {1}});
  };
  const auto read = [&](int64_t begin, int64_t n) {
    const Rows structure = Rows::streams(stream, arena, rows, n, state->tokens);
    const Buffer input(arena, {rows * n}, DType::i32, "inputs");
    copy_to_device(stream, input, ids.data() + rows * begin);
    Tape tape(stream, arena, false);
    Pass pass{tape, structure};
    pass.fast = fast;
    pass.attention = attention;
    const Var hidden = model.hidden(pass, input, state.get());
    const int64_t d = model.config().hidden_size;
    const Var last = tape.constant(tape.value(hidden).slice((rows * n - 1) * d, {1, d}));
    wait_for(tape.value(model.logits(pass, last)));
  };
  auto start = Clock::now();
  for (int64_t begin = 0; begin < context;) {
    const int64_t n = std::min(reading.segment, context - begin);
    read(begin, n);
    begin += n;
  }
  DecodeSpeed speed;
  speed.prefill_tokens_per_s = static_cast<double>(rows * context) / (ms_since(start) * 1e-3);
  std::vector<double> times;
  Arena work(stream.device);
  for (int64_t i = 0; i < kWarmup + kSteps; ++i) {
    start = Clock::now();
    const std::span<const int32_t> tokens(ids.data() + rows * (context + i), static_cast<size_t>(rows));
    wait_for(read_token(model, stream, work, *state, tokens, {fast, attention, cuda_graphs}));
    if (i >= kWarmup) { times.push_back(ms_since(start)); }
  }
  std::sort(times.begin(), times.end());
  speed.ms_per_token = quantile(times, 0.5);
  return speed;
}

namespace {

/// d 256, 6 blocks, vocabulary 4096: `layers` adds to the layers that every benchmark model knows.
std::string small_model(const std::string& layers, const std::string& pattern) {
  return R"({"vocab_size": 4096, "hidden_size": 256, "num_layers": 6, "layers": {
    "mlp": {"type": "swiglu", "intermediate_size": 768},
    "full": {"type": "attention", "num_heads": 4, "head_dim": 64, "rope": {"theta": 10000.0}},
    "gdn": {"type": "gdn", "num_heads": 4, "key_head_dim": 64, "value_head_dim": 64, "conv_size": 4})" +
         layers + R"(},
    "pattern": )" +
         pattern + "}";
}

/// The model `gdn` with a layer of `type` in its third block: in place of the mixer or the feed-forward layer, or as
/// the block's memory. Named after the layer's type.
BenchModel one_layer_model(const LayerType& type) {
  const std::string gdn = R"({"mixer": "gdn", "ffn": "mlp"})";
  const std::string changed = type.role == Role::mixer ? R"({"mixer": "x", "ffn": "mlp"})"
                              : type.role == Role::ffn ? R"({"mixer": "gdn", "ffn": "x"})"
                                                       : R"({"mixer": "gdn", "ffn": "mlp", "memory": "x"})";
  const std::string pattern = "[" + gdn + "," + gdn + "," + changed + "," + gdn + "," + gdn + "," + gdn + "]";
  return {type.name, small_model(R"(, "x": {"type": ")" + type.name + R"(", )" + type.measured + "}", pattern)};
}

}  // namespace

std::vector<BenchModel> bench_models() {
  const std::string gdn = R"({"mixer": "gdn", "ffn": "mlp"})", full = R"({"mixer": "full", "ffn": "mlp"})";
  return {{"transformer", small_model("", "[" + full + "]")},
          {"gdn-hybrid", small_model("", "[" + gdn + "," + gdn + "," + gdn + "," + gdn + "," + gdn + "," + full + "]")},
          {"gdn", small_model("", "[" + gdn + "]")}};
}

std::vector<BenchModel> bench_layers() {
  std::vector<BenchModel> models;
  for (const LayerType& type : layer_types()) {
    if (!type.measured.empty()) { models.push_back(one_layer_model(type)); }
  }
  return models;
}

}  // namespace hebb
