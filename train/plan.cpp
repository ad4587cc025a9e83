#include "train/plan.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "core/progress.h"
#include "data/loader.h"

namespace hebb {
namespace {

std::string print(const char* format, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

/// 1234567 as "1,234,567".
std::string grouped(int64_t n) {
  std::string s = std::to_string(n);
  for (int64_t i = static_cast<int64_t>(s.size()) - 3; i > (n < 0 ? 1 : 0); i -= 3) {
    s.insert(static_cast<size_t>(i), ",");
  }
  return s;
}

/// 112.11M, 1.48B.
std::string short_count(double n) {
  for (const auto& [scale, unit] : {std::pair{1e12, "T"}, std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e3, "K"}}) {
    if (n >= scale) {
      return print("%.2f%s", n / scale, unit);
    }
  }
  return print("%.0f", n);
}

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
    LayerPlan l{name, config.find(name)->type, 0, numbers_under(model.params(), prefix + "."),
                layer.flops_per_token(plan.length), {}};
    for (const int64_t tokens : plan.contexts) {
      l.state_bytes.push_back(layer.state_bytes(tokens));
    }
    it = plan.layers.insert(plan.layers.end(), l);
  }
  ++it->count;
}

Json integers(const std::vector<int64_t>& values) {
  Json j = Json::array();
  for (const int64_t v : values) {
    j.push(v);
  }
  return j;
}

/// The largest micro-batch (a divisor of the batch) whose plan fits.
int64_t largest_fitting(const RunConfig& config, double memory_gib) {
  const double limit = memory_gib * 1024.0 * 1024.0 * 1024.0;
  int64_t best = 0;
  for (int64_t micro = 1; micro <= config.train.batch_size; ++micro) {
    if (config.train.batch_size % micro != 0) {
      continue;
    }
    Json json = to_json(config);
    apply_override(json, "train.micro_batch_size=" + std::to_string(micro));
    RunConfig other;
    Fields::read(json, "", other);
    if (static_cast<double>(plan_memory(other).total_bytes()) > limit) {
      break;
    }
    best = micro;
  }
  return best;
}

std::string data_plan(const RunConfig& config) {
  try {
    LoaderOptions options;
    options.batch_size = config.train.batch_size;
    options.micro_batch_size = *config.train.micro_batch_size;
    options.sequence_length = config.train.sequence_length;
    options.seed = config.train.seed;
    options.vocab_size = config.model.vocab_size;
    options.document_mask = config.train.document_mask;
    options.prefetch_batches = 0;
    return Loader(config.data, options).describe(config.train.steps * config.train.batch_size);
  } catch (const DataError& e) {
    return std::string("not known: ") + e.what();
  }
}

}  // namespace

ParameterCounts count_parameters(const Model& model) {
  ParameterCounts c;
  c.fast = model.params().count(ParamKind::fast);
  c.total = model.params().count(ParamKind::trained) + c.fast;
  int64_t idle = 0;
  for (const Model::Block& block : model.blocks()) {
    for (const Layer* layer : {block.memory.get(), block.mixer.get(), block.ffn.get()}) {
      c.state += layer != nullptr ? layer->state_parameters() : 0;
      idle += layer != nullptr ? layer->idle_parameters() : 0;
    }
  }
  c.active = c.total - idle;
  c.non_embedding = c.total - c.state - numbers_under(model.params(), "embed.") - numbers_under(model.params(), "lm_head.");
  return c;
}

Plan plan_model(const ModelConfig& config, int64_t length) {
  const Model model(config);
  Plan plan;
  plan.length = length;
  plan.parameters = count_parameters(model);
  plan.flops_per_token = model.flops_per_token(length);
  plan.head_flops_per_token = 2.0 * static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size);
  plan.contexts = context_lengths();
  plan.unused = config.unused();
  for (const int64_t tokens : plan.contexts) {
    plan.state_bytes.push_back(model.state_bytes(tokens));
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const BlockSpec spec = config.block(i);
    const Model::Block& block = model.blocks()[static_cast<size_t>(i)];
    const std::string prefix = "blocks." + std::to_string(i) + ".";
    if (spec.memory) {
      add_layer(plan, model, config, *spec.memory, *block.memory, prefix + "memory");
    }
    add_layer(plan, model, config, *spec.mixer, *block.mixer, prefix + "mixer");
    add_layer(plan, model, config, *spec.ffn, *block.ffn, prefix + "ffn");
  }
  return plan;
}

Plan plan_run(const RunConfig& config, const PlanOptions& options) {
  Plan plan = plan_model(config.model, config.train.sequence_length);
  plan.name = config.name;
  plan.micro_batch = *config.train.micro_batch_size;
  plan.batch = config.train.batch_size;
  plan.steps = config.train.steps;
  plan.tokens = plan.steps * config.train.tokens_per_step();
  plan.memory = plan_memory(config);
  if (options.memory_gib) {
    plan.largest_micro_batch = largest_fitting(config, *options.memory_gib);
  }
  if (options.tokens_per_s) {
    plan.hours = static_cast<double>(plan.tokens) / *options.tokens_per_s / 3600.0;
  }
  if (options.open_data) {
    plan.data = data_plan(config);
  }
  return plan;
}

Json Plan::json() const {
  Json j = Json::object();
  j.set("name", name);
  Json p = Json::object();
  p.set("total", parameters.total);
  p.set("non_embedding", parameters.non_embedding);
  p.set("state", parameters.state);
  p.set("fast", parameters.fast);
  p.set("active", parameters.active);
  j.set("params", p);
  Json f = Json::object();
  f.set("length", length);
  f.set("forward_per_token", flops_per_token);
  f.set("training_per_token", 3.0 * flops_per_token);
  f.set("head_per_token", head_flops_per_token);
  if (steps > 0) {
    f.set("total", 3.0 * flops_per_token * static_cast<double>(tokens));
  }
  j.set("flops", f);
  Json list = Json::array();
  for (const LayerPlan& l : layers) {
    Json item = Json::object();
    item.set("name", l.name);
    item.set("type", l.type);
    item.set("blocks", l.count);
    item.set("params", l.parameters);
    item.set("forward_per_token", l.flops_per_token);
    item.set("state_bytes", integers(l.state_bytes));
    list.push(item);
  }
  j.set("layers", list);
  Json s = Json::object();
  s.set("context", integers(contexts));
  s.set("bytes", integers(state_bytes));
  j.set("state", s);
  if (memory) {
    Json m = Json::object();
    m.set("parameters", memory->parameter_bytes);
    m.set("gradients", memory->gradient_bytes);
    m.set("optimizer", memory->optimizer_bytes);
    m.set("work", memory->work_bytes);
    m.set("total", memory->total_bytes());
    j.set("memory_bytes", m);
    j.set("micro_batch_size", micro_batch);
    j.set("batch_size", batch);
    j.set("steps", steps);
    j.set("tokens", tokens);
    j.set("data", data);
  }
  if (largest_micro_batch) {
    j.set("largest_micro_batch", *largest_micro_batch);
  }
  if (hours) {
    j.set("hours", *hours);
  }
  return j;
}

std::string Plan::text() const {
  std::string t;
  if (!name.empty()) {
    t += name + "\n\n";
  }
  t += "parameters        total " + grouped(parameters.total) + " (" + short_count(static_cast<double>(parameters.total)) + ")\n";
  t += "          non-embedding " + grouped(parameters.non_embedding) + "\n";
  if (parameters.state > 0) {
    t += "          learned state " + grouped(parameters.state) + "\n";
  }
  if (parameters.fast > 0) {
    t += "           fast weights " + grouped(parameters.fast) + "\n";
  }
  t += "       active per token " + grouped(parameters.active) + "\n\n";
  t += print("FLOPs per token at length %lld: forward %s, training %s, of which lm_head %s\n\n", static_cast<long long>(length),
             short_count(flops_per_token).c_str(), short_count(3 * flops_per_token).c_str(), short_count(3 * head_flops_per_token).c_str());
  t += print("%-14s %-10s %7s %14s %15s", "layer", "type", "blocks", "params each", "FLOPs/token");
  for (const int64_t c : contexts) {
    t += print(" %10s", ("@" + std::to_string(c / 1024) + "K").c_str());
  }
  t += "   <- state bytes per row after so many tokens\n";
  for (const LayerPlan& l : layers) {
    t += print("%-14s %-10s %7lld %14s %15s", l.name.c_str(), l.type.c_str(), static_cast<long long>(l.count),
               grouped(l.parameters).c_str(), short_count(l.flops_per_token).c_str());
    for (const int64_t bytes : l.state_bytes) {
      t += print(" %10s", format_bytes(static_cast<double>(bytes)).c_str());
    }
    t += "\n";
  }
  t += print("%-14s %-10s %7s %14s %15s", "model", "", "", grouped(parameters.total).c_str(), short_count(flops_per_token).c_str());
  for (const int64_t bytes : state_bytes) {
    t += print(" %10s", format_bytes(static_cast<double>(bytes)).c_str());
  }
  t += "\n";
  for (const std::string& u : unused) {
    t += "layer \"" + u + "\" is defined but no block uses it\n";
  }
  if (memory) {
    t += print("\nbatch %lld rows of %lld tokens in micro-batches of %lld; %s steps, %s tokens, %s FLOPs\n\n",
               static_cast<long long>(batch), static_cast<long long>(length), static_cast<long long>(micro_batch),
               grouped(steps).c_str(), grouped(tokens).c_str(), short_count(3 * flops_per_token * static_cast<double>(tokens)).c_str());
    t += describe(*memory);
    t += "\n" + data;
  }
  if (largest_micro_batch) {
    t += *largest_micro_batch > 0 ? print("\nlargest micro-batch that fits: %lld rows\n", static_cast<long long>(*largest_micro_batch))
                                  : std::string("\nnot even one row per micro-batch fits\n");
  }
  if (hours) {
    t += print("\ntime at the given speed: %s\n", format_duration(*hours * 3600).c_str());
  }
  return t;
}

std::string compare_plans(const std::vector<Plan>& plans) {
  std::string t = print("%-28s %12s %12s %12s %12s %12s %12s %12s\n", "configuration", "params", "non-emb", "active",
                        "FLOPs/token", "state @4K", "state @64K", "memory");
  for (const Plan& p : plans) {
    t += print("%-28s %12s %12s %12s %12s %12s %12s %12s\n", p.name.c_str(), short_count(static_cast<double>(p.parameters.total)).c_str(),
               short_count(static_cast<double>(p.parameters.non_embedding)).c_str(), short_count(static_cast<double>(p.parameters.active)).c_str(),
               short_count(p.flops_per_token).c_str(), format_bytes(static_cast<double>(p.state_bytes[1])).c_str(),
               format_bytes(static_cast<double>(p.state_bytes[3])).c_str(),
               p.memory ? format_bytes(static_cast<double>(p.memory->total_bytes())).c_str() : "-");
  }
  return t;
}

}  // namespace hebb
