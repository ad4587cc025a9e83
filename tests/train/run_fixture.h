#pragma once
// Small training runs in process, with a mixer that has every kind of state that a layer can carry.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "layers/ops/linear.h"
#include "layers/ops/token_shift.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "train/trainer.h"

namespace hebb::testing {

/// y = (x shifted) weightᵀ + bias + memory. `memory` is a fast weight that every pass moves, `threshold`
/// has an optimizer of its own, `count` counts applied steps. At step indices in `poisoned` the bias of the
/// second block is NaN; at `poisoned_memory` fast weights become NaN.
struct TestMixerConfig final : LayerConfig {
  inline static std::vector<int64_t> poisoned, poisoned_memory;
  bool has_memory = true;

  void fields(Fields& f) override { f.field("has_memory", has_memory); }
  std::unique_ptr<Layer> make(const BuildContext& c) const override;
};

class TestMixer final : public Layer {
 public:
  TestMixer(const BuildContext& c, bool has_memory) : name_(c.name), d_(c.model.hidden_size), is_second_(c.block == 1) {
    const Init normal = init::normal(0.2);
    weight_ = &c.declare("weight", {d_, d_}, normal);
    mu_ = &c.declare("mu", {d_}, init::constant(0.5));
    bias_ = &c.declare("bias", {d_}, init::constant(0.0));
    if (has_memory) {
      memory_ = &c.declare("memory", {d_}, init::constant(0.01), ParamKind::fast);
      threshold_ = &c.declare("threshold", {2}, init::constant(0.5), ParamKind::state);
      count_ = &c.declare("count", {1}, init::constant(0), ParamKind::buffer);
    }
  }

  Var forward(Pass& pass, Var x, LayerState*) override {
    Tape& tape = pass.tape;
    HEBB_ASSERT(pass.training || pass.attention.random_window == 0);
    const Var shifted = token_shift(pass, x, pass.param(*mu_), true, nullptr);
    Var y = linear(tape, shifted, pass.param(*weight_), pass.param(*bias_));
    if (memory_ != nullptr) {
      y = linear(tape, y, tape.constant(weight_->value), tape.constant(memory_->value));
      if (!tape.recomputing()) { advance_memory(pass, tape.value(x)); }
    }
    return y;
  }

  void begin_step(Stream& stream, int64_t step) override {
    if (stream.counting()) { return; }
    const auto has = [&](const std::vector<int64_t>& steps) {
      return std::find(steps.begin(), steps.end(), step) != steps.end();
    };
    set(*bias_, 0, is_second_ && has(TestMixerConfig::poisoned) ? std::numeric_limits<double>::quiet_NaN() : 0.125);
    if (memory_ != nullptr && has(TestMixerConfig::poisoned_memory)) {
      set(*memory_, 1, std::numeric_limits<double>::quiet_NaN());
    }
  }

  void after_step(Stream& stream, int64_t step, const Tensor& applies) override {
    if (memory_ != nullptr && !stream.counting() && *applies.as<double>() != 0) {
      set(*threshold_, 0, get(*threshold_, 0) + 0.25);
      dispatch_real(threshold_->m.dtype, [&]<class S>(S) { threshold_->m.as<S>()[1] += 1; });
      threshold_->updates += 1;
      *count_->value.as<int32_t>() += 1;
    }
  }

  std::unique_ptr<LayerState> make_state(Arena&, int64_t, DType) const override { return nullptr; }
  double flops_per_token(int64_t) const override { return 4.0 * static_cast<double>(d_ * d_); }

 private:
  static void set(Param& p, int64_t i, double value) {
    dispatch_real(p.value.dtype, [&]<class S>(S) { p.value.as<S>()[i] = static_cast<S>(value); });
  }
  static double get(const Param& p, int64_t i) {
    double value = 0;
    dispatch_real(p.value.dtype, [&]<class S>(S) { value = static_cast<double>(p.value.as<S>()[i]); });
    return value;
  }
  void advance_memory(Pass& pass, const Tensor& x) {
    if (pass.stream().counting()) { return; }
    for (int64_t i = 0; i < d_; ++i) {
      double first = 0;
      dispatch_real(x.dtype, [&]<class S>(S) { first = static_cast<double>(x.as<S>()[i]); });
      set(*memory_, i, 0.875 * get(*memory_, i) + 0.0625 * first);
    }
    if (pass.statistics != nullptr) {
      (*pass.statistics)[name_]["memory_0"] = get(*memory_, 0);
      (*pass.statistics)[name_]["window"] = static_cast<double>(pass.attention.random_window);
    }
  }

  std::string name_;
  int64_t d_;
  bool is_second_;
  Param *weight_, *mu_, *bias_, *memory_ = nullptr, *threshold_ = nullptr, *count_ = nullptr;
};

inline std::unique_ptr<Layer> TestMixerConfig::make(const BuildContext& c) const {
  return std::make_unique<TestMixer>(c, has_memory);
}

/// A model of two blocks over 29 token ids, with the test mixer.
inline ModelConfig test_model(bool has_memory = true) {
  ModelConfig model;
  model.vocab_size = 29;
  model.hidden_size = 12;
  model.num_layers = 2;
  auto mixer = std::make_unique<TestMixerConfig>();
  mixer->has_memory = has_memory;
  model.layers.push_back({"mix", "test", Role::mixer, std::move(mixer)});
  model.layers.push_back({"mlp", "swiglu", Role::ffn, find_layer_type("swiglu")->make()});
  Fields::read(parse_json(R"({"intermediate_size": 10})", "test.json"), "mlp", *model.layers.back().config);
  model.pattern.push_back({"mix", "mlp", std::nullopt});
  return model;
}

/// 3,000 tokens of documents that end with token 0, as a headerless file.
inline fs::path write_tokens(const TempFolder& folder, const std::string& name = "tokens.bin", uint64_t seed = 1) {
  Rng rng(seed, "test tokens");
  std::string bytes;
  for (int i = 0; i < 3000; ++i) {
    // Half of the tokens follow from the one before, so that there is something to learn.
    const int last = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[bytes.size() - 2]);
    const int token = rng.below(2) == 0 ? (last * 7 + 3) % 29 : static_cast<int>(rng.below(29));
    bytes.push_back(static_cast<char>(token));
    bytes.push_back('\0');
  }
  return folder.write(name, bytes);
}

/// A configuration as if it lay in `folder`, with `changes` merged over it. The folder gets the file tokens.bin.
inline Json json_in(const TempFolder& folder, const std::string& text, const std::string& changes = "{}") {
  if (!fs::exists(folder / "tokens.bin")) { write_tokens(folder); }
  const std::string place = (folder / "test.json").string();  // paths are relative to it
  Json json = parse_json(text, place);
  merge_json(json, parse_json(changes, place));
  return json;
}

/// The resolved run of a whole configuration.
inline RunConfig resolved_run(const Json& json) {
  auto config = Fields::read<RunConfig>(json, "");
  resolve(config);
  return config;
}

/// A resolved run of 7 steps on the CPU in fp64; `changes` is merged over its sections.
inline RunConfig test_run(const TempFolder& folder, const std::string& changes = "{}", bool has_memory = true) {
  const Json json = json_in(folder, R"({
    "data": {"sources": [{"path": "tokens.bin", "format": "raw_u16", "split_token": 0}]},
    "train": {"device": "cpu", "steps": 7, "batch_size": 4, "micro_batch_size": 2, "sequence_length": 9, "seed": 5, "precision": "fp64",
              "log_every": 1, "checkpoint": {"every": 100}},
    "optimizer": {"lr": 0.01, "weight_decay": 0.1}, "schedule": {"type": "cosine", "warmup_steps": 2, "min_lr": 0.001}})",
                            changes);
  RunConfig config;
  config.name = "test";
  config.model = test_model(has_memory);
  Fields::read(json.at("data"), "data", config.data);
  Fields::read(json.at("train"), "train", config.train);
  Fields::read(json.at("optimizer"), "optimizer", config.optimizer);
  Fields::read(json.at("schedule"), "schedule", config.schedule);
  resolve(config);
  return config;
}

/// The run of test_run() with another model.
inline RunConfig with_model(const TempFolder& folder, const std::string& changes, const std::string& model) {
  RunConfig config = test_run(folder, changes, false);
  config.model = Fields::read<ModelConfig>(parse_json(model, "model.json"), "model");
  return config;
}

/// Takes out of a checkpoint what former versions did not write: checksums of state.json, configuration and tokenizer,
/// and the tokenizer itself.
inline void make_former(const fs::path& checkpoint) {
  Json state = parse_json_file((checkpoint / "state.json").string());
  state.erase("crc32");
  for (const char* name : {"config.json", "tokenizer.model", "tokenizer.json"}) {
    state.find("files")->erase(name);
    if (std::string_view(name) != "config.json") { fs::remove(checkpoint / name); }
  }
  write_file_atomic(checkpoint / "state.json", state.dump(1) + "\n");
}

/// What a run printed, and what it does when a line is printed.
struct Heard {
  std::vector<std::string> lines;
  std::function<void(const std::string&)> on_line;

  Console console() {
    return {[this](std::string_view line) {
              lines.emplace_back(line);
              if (on_line) { on_line(lines.back()); }
            },
            nullptr};
  }
  bool has(const std::string& part) const {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const std::string& l) { return l.find(part) != std::string::npos; });
  }
  int count(const std::string& part) const {
    return static_cast<int>(std::count_if(lines.begin(), lines.end(),
                                          [&](const std::string& l) { return l.find(part) != std::string::npos; }));
  }
};

/// Runs to its end in `folder`; returns the exit code.
inline int run_in(const fs::path& folder, RunConfig config, Heard& heard, RunOptions options = {}) {
  options.run_folder = folder;
  Trainer trainer(std::move(config), options, {}, heard.console(), "test");
  return trainer.run();
}

inline int run_in(const fs::path& folder, RunConfig config) {
  Heard heard;
  return run_in(folder, std::move(config), heard);
}

/// Lines of metrics.jsonl without what depends on time and machine.
inline std::vector<std::string> metrics_of(const fs::path& folder) {
  std::vector<std::string> lines;
  const std::string text = read_file(folder / "metrics.jsonl");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    REQUIRE(end != std::string::npos);
    Json line = parse_json(text.substr(begin, end - begin), "metrics.jsonl");
    for (const char* key : {"time", "tokens_per_s", "step_ms", "mem_bytes", "comm"}) { line.erase(key); }
    lines.push_back(line.dump());
    begin = end + 1;
  }
  return lines;
}

/// The values of one key over the training lines.
inline std::vector<double> metric(const fs::path& folder, const std::string& key) {
  std::vector<double> values;
  for (const std::string& text : metrics_of(folder)) {
    const Json line = parse_json(text, "metrics.jsonl");
    if (line.find("val") == nullptr) {
      const Json& value = line.at(key);
      values.push_back(value.is_number() ? value.as_double() : std::numeric_limits<double>::quiet_NaN());
    }
  }
  return values;
}

inline fs::path checkpoint_in(const fs::path& folder, int64_t step) {
  return folder / "checkpoints" / CheckpointFolder::name_of(step);
}

/// A tensor of a checkpoint, of its optimizer (NAME.m, NAME.v), and the number of its updates.
inline std::vector<double> weights_of(const fs::path& run, int64_t step, const std::string& name) {
  return SafetensorsFile(checkpoint_in(run, step) / "model.safetensors").doubles(name);
}
inline std::vector<double> moments_of(const fs::path& run, int64_t step, const std::string& name) {
  return SafetensorsFile(checkpoint_in(run, step) / "optimizer.safetensors").doubles(name);
}
inline int64_t updates_of(const fs::path& run, int64_t step, const std::string& name) {
  return SafetensorsFile(checkpoint_in(run, step) / "optimizer.safetensors").integers(name + ".t").at(0);
}

/// Weights and moments of a checkpoint.
inline std::string tensor_bytes(const fs::path& run, int64_t step) {
  const fs::path checkpoint = checkpoint_in(run, step);
  return read_file(checkpoint / "model.safetensors") + read_file(checkpoint / "optimizer.safetensors");
}

/// All files of a checkpoint, one after the other.
inline std::string checkpoint_bytes(const fs::path& run, int64_t step) {
  const fs::path checkpoint = checkpoint_in(run, step);
  return tensor_bytes(run, step) + read_file(checkpoint / "state.json") + read_file(checkpoint / "config.json");
}

/// The values of a key are those of a golden run, relative to `epsilon`; NaN where no target of a batch was valid.
inline void check_metric(const fs::path& run, const fs::path& golden, const char* key, double epsilon) {
  const std::vector<double> found = metric(run, key), expected = metric(golden, key);
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO(key << " of step " << i + 1 << ": " << found[i] << ", expected " << expected[i]);
    CHECK((std::isnan(expected[i]) ? std::isnan(found[i]) : found[i] == Approx(expected[i]).epsilon(epsilon)));
  }
}

/// Compares the weights after `step` with those of a golden run: integers are equal, `compare` judges the others.
template <class Compare>
void check_weights(const fs::path& run, int64_t step, const fs::path& golden, const Compare& compare) {
  const SafetensorsFile found(checkpoint_in(run, step) / "model.safetensors"), expected(golden / "final.safetensors");
  CHECK(found.entries().size() == expected.entries().size());
  for (const auto& [tensor, entry] : expected.entries()) {
    if (entry.dtype == DType::i32) {
      CHECK(found.integers(tensor) == expected.integers(tensor));
    } else {
      compare(tensor, found.doubles(tensor), expected.doubles(tensor));
    }
  }
}

}  // namespace hebb::testing
