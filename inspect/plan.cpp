#include "inspect/plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/progress.h"
#include "data/rows/loader.h"
#include "data/rows/validation.h"
#include "kernels/common/cores.h"
#include "train/choose_device.h"
#include "train/device_peak.h"

namespace hebb {
namespace {

int64_t numbers_under(const ParamStore& params, const std::string& prefix) {
  int64_t n = 0;
  for (const auto& p : params.all()) {
    const bool counts = p->trained() || p->spec.kind == ParamKind::fast;
    n += counts && p->name().rfind(prefix, 0) == 0 ? p->spec.shape.numel() : 0;
  }
  return n;
}

const std::vector<int64_t>& context_lengths() {
  static const std::vector<int64_t> lengths = {1024, 4096, 16384, 65536, 262144, 1048576};
  return lengths;
}

void add_layer(Plan& plan, const Model& model, const ModelConfig& config, const std::string& name, const Layer& layer,
               const std::string& prefix) {
  auto it = std::find_if(plan.layers.begin(), plan.layers.end(), [&](const LayerPlan& l) { return l.name == name; });
  if (it == plan.layers.end()) {
    LayerPlan l{.name = name,
                .type = config.find(name)->type,
                .parameters = numbers_under(model.params(), prefix + "."),
                .flops_per_token = layer.flops_per_token(plan.length),
                .state_bytes = {}};
    for (const int64_t tokens : plan.contexts) { l.state_bytes.push_back(layer.state_bytes(tokens)); }
    it = plan.layers.insert(plan.layers.end(), l);
  }
  ++it->count;
}

/// The largest micro-batch (a divisor of the batch) whose plan fits.
Fit largest_fitting(const RunConfig& config, const std::string& recompute, double memory_gib, int ranks) {
  const double limit = memory_gib * 1024.0 * 1024.0 * 1024.0;
  Fit best{.recompute = recompute};
  for (int64_t micro = 1; micro <= config.train.batch_size; ++micro) {
    if (config.train.batch_size % (micro * config.train.lanes.value_or(1)) != 0) { continue; }
    Json json = to_json(config);
    apply_override(json, fmt::format("train.micro_batch_size={:d}", micro));
    apply_override(json, "train.recompute=" + recompute);
    const auto other = Fields::read<RunConfig>(json, "");
    const int64_t bytes = plan_rank_memory(other, ranks).total_bytes();
    if (static_cast<double>(bytes) > limit) { break; }
    best.micro_batch = micro;
    best.bytes = bytes;
  }
  return best;
}

std::string data_plan(const RunConfig& config) {
  try {
    return describe_data(config);
  } catch (const DataError& e) { return std::string("data: not known: ") + e.what() + "\n"; }
}

}  // namespace

std::string describe_data(const RunConfig& config) {
  LoaderOptions options;
  options.batch_size = config.train.batch_size;
  options.micro_batch_size = *config.train.micro_batch_size;
  options.sequence_length = config.train.sequence_length;
  options.seed = config.train.seed;
  options.vocab_size = config.model.vocab_size;
  options.document_mask = config.train.document_mask;
  options.prefetch_batches = 0;
  const Loader loader(config.data, options);
  std::string text = loader.describe(config.train.steps * config.train.batch_size);
  options.tokenizer_hash = loader.tokenizer_hash();
  for (size_t i = 0; i < config.data.validation.size(); ++i) {
    const ValidationSource source(config.data, i, options);
    text += fmt::format("validation {}: {} rows\n", source.name(), source.rows());
  }
  return text;
}

ParameterCounts count_parameters(const Model& model) {
  ParameterCounts c;
  for (const auto& p : model.params().all()) {
    const int64_t n = p->spec.shape.numel();
    const bool is_fast = p->spec.kind == ParamKind::fast, counts = p->trained() || is_fast;
    c.total += counts ? n : 0;
    c.fast += is_fast ? n : 0;
    c.state += p->spec.initial_state ? n : 0;
    c.memory += is_fast || p->spec.initial_state || p->spec.memory_table ? n : 0;
  }
  int64_t idle = 0;
  for (const Model::Block& block : model.blocks()) {
    for (const Layer* layer : {block.memory.get(), block.mixer.get(), block.ffn.get()}) {
      idle += layer != nullptr ? layer->idle_parameters() : 0;
    }
  }
  c.active = c.total - idle;
  c.non_embedding =
      c.total - c.state - numbers_under(model.params(), "embed.") - numbers_under(model.params(), "lm_head.");
  return c;
}

Plan plan_model(const ModelConfig& config, int64_t length) {
  const Model model(config);
  Plan plan;
  plan.length = length;
  plan.parameters = count_parameters(model);
  plan.flops_per_token = model.flops_per_token(length);
  plan.head_flops_per_token = 2.0 * static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size);
  plan.papers = paper_flops(model, length);
  plan.contexts = context_lengths();
  plan.unused = config.unused_text();
  for (const int64_t tokens : plan.contexts) { plan.state_bytes.push_back(model.state_bytes(tokens)); }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const BlockSpec spec = config.block(i);
    const Model::Block& block = model.blocks()[static_cast<size_t>(i)];
    const std::string prefix = fmt::format("blocks.{:d}.", i);
    if (spec.memory) { add_layer(plan, model, config, *spec.memory, *block.memory, prefix + "memory"); }
    add_layer(plan, model, config, *spec.mixer, *block.mixer, prefix + "mixer");
    add_layer(plan, model, config, *spec.ffn, *block.ffn, prefix + "ffn");
  }
  return plan;
}

void set_planned_device(Json& config, const PlanOptions& options) {
  if (!options.gpu.empty()) { apply_override(config, "train.device=cuda"); }
}

Plan plan_run(const RunConfig& config, const PlanOptions& options) {
  std::optional<PlannedSharedMemory> shared_memory;
  std::optional<double> memory_gib = options.memory_gib, tflops = options.tflops;
  if (!options.gpu.empty()) {
    const PlannedGpu& gpu = planned_gpu(options.gpu);
    shared_memory.emplace(gpu.shared_memory);
    memory_gib = memory_gib.value_or(gpu.memory_gib);
  }
  Plan plan = plan_model(config.model, config.train.sequence_length);
  plan.name = config.name;
  plan.ranks = options.ranks;
  plan.micro_batch = *config.train.micro_batch_size;
  plan.batch = config.train.batch_size;
  plan.steps = config.train.steps;
  plan.tokens = plan.steps * config.train.tokens_per_step();
  {
    const FallbackLog log;
    plan.memory = plan_rank_memory(config, options.ranks);
    plan.plain_cores = log.lines();
  }
  const Compute compute = choose_compute(config.train.device, config.train.precision.value_or(""), "train", false);
  if (compute.device == DeviceKind::cpu) {
    const MemoryLimit left = available_memory(compute.device);
    const std::string bytes = format_bytes(static_cast<double>(left.bytes));
    if (!left.name.empty()) { plan.memory_limit = fmt::format("memory left: {}{}\n", bytes, under(left)); }
  }
  plan.device = compute.device == DeviceKind::cuda ? "cuda" : "cpu";
  plan.precision = precision_name(compute.dtype);
  const int64_t master_bytes = compute.dtype == DType::f64 ? 8 : 4;
  plan.checkpoint_bytes = plan.parameters.total * master_bytes + plan.memory->optimizer_bytes;
  plan.kept_checkpoints = config.train.checkpoint.keep;
  if (memory_gib) {
    for (const char* recompute : {"none", "mixer", "ffn", "block"}) {
      plan.fits.push_back(largest_fitting(config, recompute, *memory_gib, options.ranks));
      if (recompute == config.train.recompute) { plan.largest_micro_batch = plan.fits.back().micro_batch; }
    }
  }
  if (options.tokens_per_s) {
    plan.hours = static_cast<double>(plan.tokens) / (*options.tokens_per_s * plan.ranks) / 3600.0;
  }
  if (!options.gpu.empty() && !options.tokens_per_s && !tflops) {
    const PlannedGpu& gpu = planned_gpu(options.gpu);
    const bool is_tf32 = compute.dtype == DType::f32 && config.train.allow_tf32;
    const double peak = *device_peak(gpu.name, is_tf32 ? "tf32" : plan.precision) / 1e12;
    tflops = kPlannedShareOfPeak * peak;
    plan.speed = fmt::format("an estimate: {:.0f} % of the {} peak of {:.0f} TFLOP/s", 100 * kPlannedShareOfPeak,
                             gpu.name, peak);
  }
  if (tflops) { plan.hours = plan.training_flops() / (*tflops * 1e12 * plan.ranks) / 3600.0; }
  if (options.open_data) { plan.data = data_plan(config); }
  return plan;
}

}  // namespace hebb
