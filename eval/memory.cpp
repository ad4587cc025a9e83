// What memory layers do with text: slots, gates, selections, states.
#include <fmt/core.h>

#include <algorithm>

#include "eval/eval_data.h"
#include "eval/evaluation.h"
#include "layers/statistics.h"

namespace hebb {
namespace {

/// Layers of a model by full name.
struct LayerEntry {
  const Layer* layer;
  const LayerDefinition* definition;
  Json config;
};

std::map<std::string, LayerEntry> layers_of(const ModelConfig& config, const Model& model) {
  const Json written = Fields::write(config);
  std::map<std::string, LayerEntry> layers;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const BlockSpec spec = config.block(static_cast<int64_t>(i));
    const Model::Block& block = model.blocks()[i];
    const auto add = [&](const char* role, const std::optional<std::string>& name, const Layer* layer) {
      if (layer == nullptr) { return; }
      layers[fmt::format("blocks.{:d}.{}", i, role)] = {layer, config.find(*name), written.at("layers").at(*name)};
    };
    add("memory", spec.memory, block.memory.get());
    add("mixer", spec.mixer, block.mixer.get());
    add("ffn", spec.ffn, block.ffn.get());
  }
  return layers;
}

/// Sums over sequences of what layers report of themselves.
class OwnStatistics {
 public:
  void add(const Statistics& statistics) {
    ++sequences_;
    for (const auto& [layer, values] : statistics) {
      for (const auto& [name, value] : values) { sums_[layer][name] += value; }
    }
  }

  void report(const std::map<std::string, LayerEntry>& layers, StatisticsReport& to) const {
    for (const auto& [layer, values] : sums_) {
      if (layers.count(layer) == 0) { continue; }  // means over layers of one type
      for (const auto& [name, sum] : values) { to.set(layer, name, sum / static_cast<double>(sequences_), sequences_); }
      for (int bin = 0; bin < 10 && values.count("gate_0") > 0; ++bin) {
        to.add_point(
            "gate_histogram",
            Json::object({{"layer", layer},
                          {"from", bin / 10.0},
                          {"to", (bin + 1) / 10.0},
                          {"share", values.at(fmt::format("gate_{:d}", bin)) / static_cast<double>(sequences_)}}));
      }
    }
  }

 private:
  int64_t sequences_ = 0;
  Statistics sums_;
};

class MemoryStats final : public EvalTask {
 public:
  void fields(Fields& f) override {
    f.object("data", data_).required().help("Text to read.");
    f.field("cut", cut_)
        .one_of({"documents", "rows"})
        .help(
            "documents: the start of each document of at least `length` tokens; rows: all tokens in rows of `length`, "
            "whatever documents they are of.");
    f.field("length", length_).min(1).unit("tokens").help("Tokens of a sequence (default: that of training).");
    f.field("max_sequences", max_sequences_).min(1).help("Stop after so many sequences.");
    f.field("window_tokens", options_.window_tokens)
        .min(1)
        .unit("tokens")
        .help("Window of collision, coverage and kld.");
    f.field("interval", options_.interval)
        .min(1)
        .unit("tokens")
        .help("Distance of the points of growth curves and scores by position.");
    f.field("state_interval", state_interval_)
        .min(1)
        .unit("tokens")
        .help("Distance of the positions at which states are looked at (default: length / 16).");
    f.field("single", options_.single).min(0).help("Sequences whose growth curves are reported one by one, too.");
    f.field("freeze_fast_weights", freeze_).help("Never update fast weights.");
  }

  bool has_items() const override { return false; }

  EvalResult run(EvalContext& c) override {
    const int64_t length = c.length_of(length_, "length", "a length");
    const EvalTokens source = data_.open(c.tokenizer.get());
    const std::vector<int64_t> starts = sequences(source, length);
    if (starts.empty()) {
      throw DataError(data_.path, "nothing to read",
                      cut_ == "rows" ? fmt::format("{:d} tokens", source.tokens()) : "documents of fewer tokens",
                      cut_ == "rows" ? fmt::format("at least {:d}", length)
                                     : fmt::format("one of at least {:d}, or \"cut\": \"rows\"", length));
    }
    layers_ = layers_of(c.model.source().model, c.model.model());
    make_collectors();
    c.progress.begin("memory_stats", starts.size());
    for (size_t s = 0; s < starts.size(); ++s) {
      c.poll();
      std::vector<int32_t> ids(static_cast<size_t>(length));
      source.read(starts[s], length, c.model.source().model.vocab_size, ids.data());
      if (needs_state_) { read_states(c, ids); }
      read_row(c, ids);
      c.progress.update(s + 1);
    }
    c.progress.end();
    return result(static_cast<int64_t>(starts.size()), length);
  }

 private:
  /// First tokens of the sequences.
  std::vector<int64_t> sequences(const EvalTokens& source, int64_t length) const {
    std::vector<int64_t> starts;
    if (cut_ == "rows") {
      for (int64_t at = 0; at + length <= source.tokens() && static_cast<int64_t>(starts.size()) < max_sequences_;
           at += length) {
        starts.push_back(at);
      }
      return starts;
    }
    for (int64_t d = 0; d < source.documents() && static_cast<int64_t>(starts.size()) < max_sequences_; ++d) {
      if (source.document_tokens(d) >= length) { starts.push_back(source.document_start(d)); }
    }
    return starts;
  }

  void make_collectors() {
    own_ = {};
    collectors_.clear();
    needs_state_ = false;
    for (const auto& [name, layer] : layers_) {
      const auto [it, is_new] = collectors_.try_emplace(layer.definition->type);
      if (!is_new) { continue; }
      it->second = layer.definition->config->statistics(options_);
      for (const auto& collector : it->second) { needs_state_ = needs_state_ || collector->needs_state(); }
    }
  }

  /// Calls each(collector, reading) for every collector of every layer.
  template <class F> void each_collector(const Inspector& inspector, F&& each) {
    for (const auto& [name, entry] : layers_) {
      LayerReading reading{name, entry.config, *entry.layer, {}};
      for (auto it = inspector.records.lower_bound(name + ".");
           it != inspector.records.end() && it->first.rfind(name + ".", 0) == 0; ++it) {
        reading.records[it->first.substr(name.size() + 1)] = &it->second;
      }
      for (const auto& collector : collectors_.at(entry.definition->type)) { each(*collector, reading); }
    }
  }

  void read_row(EvalContext& c, const std::vector<int32_t>& ids) {
    Inspector inspector;
    inspector.recording = true;
    Statistics statistics;
    c.model.read_rows(ids, {.freeze = freeze_, .inspector = &inspector, .statistics = &statistics});
    own_.add(statistics);
    each_collector(inspector, [](StatisticsCollector& collector, const LayerReading& r) { collector.add(r); });
  }

  /// Reads once more with carried states, which are looked at on the way; fast weights return to what they were.
  void read_states(EvalContext& c, const std::vector<int32_t>& ids) {
    const auto length = static_cast<int64_t>(ids.size()), interval = state_interval_.value_or((length + 15) / 16);
    const auto weights = c.model.save_fast_weights();
    const std::unique_ptr<ModelState> state = c.model.new_state();
    for (int64_t at = 0; at < length; at += interval) {
      c.poll();
      const int64_t n = std::min(interval, length - at);
      c.model.advance(std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), *state,
                      {FastUpdate::streaming, freeze_});
      const Inspector held = c.model.inspect(*state);
      each_collector(held, [&](StatisticsCollector& collector, const LayerReading& r) {
        if (collector.needs_state()) { collector.add_state(r, at + n); }
      });
    }
    c.model.restore_fast_weights(weights);
  }

  EvalResult result(int64_t sequences, int64_t length) const {
    StatisticsReport report;
    own_.report(layers_, report);
    for (const auto& [type, collectors] : collectors_) {
      for (const auto& collector : collectors) { collector->report(report); }
    }
    std::map<std::string, std::string> types;
    for (const auto& [name, layer] : layers_) { types[name] = layer.definition->type; }
    EvalResult r;
    r.metrics = report.metrics(types);
    r.groups = report.groups();
    r.series = report.series();
    if (r.groups.members().empty()) {
      throw ConfigError("memory_stats", "a model without layers that report statistics", "a model with memory layers");
    }
    r.metric("sequences", static_cast<double>(sequences), sequences);
    r.metric("tokens", static_cast<double>(sequences * length), sequences * length);
    return r;
  }

  EvalData data_;
  std::string cut_ = "documents";
  std::optional<int64_t> length_, state_interval_;
  int64_t max_sequences_ = 8;
  StatisticsOptions options_;
  bool freeze_ = false, needs_state_ = false;
  std::map<std::string, LayerEntry> layers_;
  std::map<std::string, StatisticsCollectors> collectors_;  // by type
  OwnStatistics own_;
};

}  // namespace

std::unique_ptr<EvalTask> make_memory_stats() { return std::make_unique<MemoryStats>(); }

}  // namespace hebb
