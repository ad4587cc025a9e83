#pragma once
// What the libFuzzer programs for configurations and folders of runs, and the tests of their kept inputs, run.
#include <fmt/core.h>

#include <fstream>
#include <iterator>

#include "core/hash.h"
#include "eval/evaluation.h"
#include "eval/journal.h"
#include "inspect/convert/convert.h"
#include "inspect/plan.h"
#include "study/report/read_metrics.h"
#include "tests/fuzz/folder.h"
#include "train/checkpoint.h"
#include "train/metrics_file.h"
#include "train/model_source.h"

namespace hebb::fuzz {

/// A run configuration up to the plan: then it is written, and read to the same.
inline bool run(std::string_view text) {
  return is_read([&] {
    const Json source = parse_json(text, "/tmp/run.json");
    if (!is_small(source)) { return; }
    RunConfig config = run_config_of(source, resolve_evaluations);
    resolve(config, 1, false);
    const Json written = to_json(config);
    expect(to_json(run_config_of(parse_json(written.dump(2), "/tmp/written.json"), resolve_evaluations)) == written,
           "a resolved configuration reads back");
    PlanOptions options;
    options.open_data = false;
    expect(!plan_run(config, options).text().empty(), "a plan has a text");
  });
}

/// config.json of transformers or flash-linear-attention.
inline bool model(std::string_view text) {
  return is_read([&] {
    const Json config = parse_json(text, "config.json");
    if (!is_small(config)) { return; }
    hf_of_model(Fields::read<ModelConfig>(model_of_hf(config), "model"), 64);
  });
}

/// metrics.jsonl, as a resumed run and a report read it.
inline bool metrics(std::string_view text) {
  const Folder folder(text, {"metrics.jsonl"});
  is_read([&] { last_logged_step(folder.path()); });
  is_read([&] { read_metrics(folder.path(), 3); });
  const bool is_trimmed = is_read([&] { MetricsFile(folder / "metrics.jsonl", 3); });
  if (is_trimmed) {
    expect(is_read([&] { MetricsFile(folder / "metrics.jsonl", 3); }), "a trimmed file is read");
  }
  return is_trimmed;
}

/// A run with checkpoints, as the next start and other verbs read it.
inline bool state(std::string_view input) {
  const Folder folder(input, {"checkpoints/step_00000002/state.json", "checkpoints/step_00000002/config.json",
                              "checkpoints/step_00000002/model.safetensors", "checkpoints/latest", "config.json"});
  const CheckpointFolder checkpoints(folder / "checkpoints");
  const fs::path checkpoint = checkpoints.path_of(2);
  is_read([&] { checkpoints.latest(); });
  is_read([&] { verify_checkpoint(checkpoint); });
  is_read([&] { verify_weights(checkpoint / "model.safetensors"); });
  is_read([&] { read_model_source(folder.path()); });
  is_read([&] { read_model_source(checkpoint); });
  return is_read([&] { read_run_state(checkpoint); });
}

/// The journal of an evaluation and that of another rank. A line that begins with a question mark gets its checksum.
inline bool journal(std::string_view input) {
  const Folder folder(input, {"e.partial", "e.partial.rank_00001", "e.partial-weights"});
  for (const char* name : {"e.partial", "e.partial.rank_00001"}) {
    if (!fs::exists(folder / name)) { continue; }
    std::string lines;
    std::ifstream file(folder / name, std::ios::binary);  // read_file() refuses some
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      lines += line.starts_with('?') ? fmt::format("{:08x} ", crc32c(line.data() + 1, line.size() - 1)) + line.substr(1)
                                     : line;
      if (end < text.size()) { lines += '\n'; }
      begin = end + 1;
    }
    std::ofstream(folder / name, std::ios::binary) << lines;
  }
  const Json key = Json::object({{"key", 1}});
  const auto quiet = [](const std::string&) {};
  return is_read([&] {
    EvalJournal first(folder / "e.partial", key, quiet);
    const auto kept = static_cast<int64_t>(first.kept().size());
    first.add(first.last() + 1, {Json(1.5), "", false});
    const EvalJournal again(folder / "e.partial", key, quiet);
    expect(static_cast<int64_t>(again.kept().size()) == kept + 1, "what was kept is kept");
  });
}

}  // namespace hebb::fuzz
