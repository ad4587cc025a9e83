#pragma once
// A model whose configuration and random weights lie in files, as `hebb eval` reads them.
#include <functional>
#include <sstream>

#include "core/safetensors.h"
#include "data/shards/shard_writer.h"
#include "eval/evaluation.h"
#include "layers/model.h"
#include "tests/temp_folder.h"

namespace hebb::testing {

/// Writes FOLDER/model.json and FOLDER/w.safetensors in `dtype`, f32 or f64; `change` may replace what a parameter
/// begins with.
inline void write_random_model(const TempFolder& folder, const std::string& json, DType dtype,
                               const std::function<void(Param&)>& change = {}) {
  folder.write("model.json", json);
  auto config = Fields::read<ModelConfig>(parse_json(json, "model.json"), "model");
  Stream stream;
  Arena arena(DeviceKind::cpu);
  Model model(config);
  model.params().allocate(arena, dtype, false);
  model.params().initialize(stream, 3);
  std::vector<NamedTensor> tensors;
  for (const auto& p : model.params().all()) {
    if (change) { change(*p); }
    tensors.push_back({p->name(), p->value});
  }
  write_safetensors(folder / "w.safetensors", tensors);
}

/// That model, in fp64.
inline ScoringModel load_model(const TempFolder& folder) {
  return ScoringModel(read_model_source(folder / "model.json"), folder / "w.safetensors",
                      {DeviceKind::cpu, DType::f64});
}

using Documents = std::vector<std::vector<int32_t>>;

/// Documents of these lengths with random ids below `ids`.
inline Documents random_documents(Rng rng, const std::vector<int>& lengths, uint32_t ids) {
  Documents documents;
  for (const int length : lengths) {
    std::vector<int32_t>& document = documents.emplace_back(static_cast<size_t>(length));
    for (int32_t& id : document) { id = static_cast<int32_t>(rng.below(ids)); }
  }
  return documents;
}

/// Writes documents in shards.
inline void write_shards(const fs::path& directory, int64_t vocab_size, const Documents& documents,
                         ShardWriterOptions options = {}) {
  options.directory = directory;
  options.vocab_size = vocab_size;
  ShardWriter writer(options);
  for (const auto& document : documents) { writer.add_document(document); }
  writer.finish();
}

inline double metric(const EvalResult& r, const char* name) { return r.metrics.at(name).at("value").as_double(); }

/// Evaluations of a list, given without its brackets.
inline std::vector<Evaluation> evaluations_of(const std::string& list) {
  return read_evaluations(parse_json("{\"evaluations\": [" + list + "]}", "e.json"), "");
}

/// Runs one evaluation with these keys beside its name; samples go to `samples` where that is given.
inline EvalResult evaluate(ScoringModel& model, const std::string& keys,
                           const std::shared_ptr<const Tokenizer>& tokenizer = nullptr, int64_t training_length = 32,
                           std::vector<Json>* samples = nullptr) {
  const auto evaluations = evaluations_of("{\"name\": \"x\", " + keys + "}");
  Progress quiet;
  EvalContext context{model, tokenizer, training_length, evaluations[0].seed, quiet, {}};
  model.set_reading(evaluations[0].reading);
  context.logs_samples = samples != nullptr;
  const EvalResult result = evaluations[0].task->run(context);
  std::istringstream lines(context.samples);
  for (std::string line; std::getline(lines, line);) { samples->push_back(parse_json(line, "samples")); }
  return result;
}

/// Runs a list, given without its brackets, in `out`; its lines go to `report`.
inline EvalCounts run_list(
    ScoringModel& model, const std::string& list, const fs::path& out,
    const std::shared_ptr<const Tokenizer>& tokenizer = nullptr, bool logs_samples = false,
    const std::function<void(const std::string&)>& report = [](const std::string&) {}) {
  auto evaluations = evaluations_of(list);
  Progress quiet;
  EvalContext context{model, tokenizer, 32, 42, quiet, {}};
  context.logs_samples = logs_samples;
  return run_evaluations(evaluations, context, {"c", "00ff", "cpu", "fp64", 7, 70}, out, report);
}

/// OUT/NAME.json.
inline Json result_in(const fs::path& out, const std::string& name) {
  return parse_json_file((out / (name + ".json")).string());
}

}  // namespace hebb::testing
