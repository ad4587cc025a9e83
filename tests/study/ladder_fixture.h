#pragma once
// A base configuration and sweeps that train in a moment.
#include "study/ladder/sweep.h"
#include "tests/train/process.h"
#include "tests/train/run_fixture.h"

namespace hebb::testing {

/// A sweep with these members beside name and base.
inline fs::path write_sweep(const TempFolder& folder, const std::string& members,
                            const std::string& file = "sweep.json") {
  return folder.write(file, R"({"name": "small", "base": "base.json", )" + members + "}");
}

/// A folder with base.json: attention and GDN layers, 12 steps of 4 rows of 9 tokens. With `sweep`, sweep.json has
/// these members.
struct SweepFolder : TempFolder {
  explicit SweepFolder(const std::string& sweep = "") {
    write_tokens(*this);
    write("base.json", R"({"name": "base",
    "model": {"vocab_size": 29, "hidden_size": 12, "num_layers": 2,
      "layers": {"full": {"type": "attention", "num_heads": 3, "head_dim": 4}, "gdn": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 6},
                 "mlp": {"type": "swiglu", "intermediate_size": 20}},
      "pattern": [{"mixer": "full", "ffn": "mlp"}]},
    "data": {"sources": [{"path": "tokens.bin", "format": "raw_u16", "split_token": 0}],
             "validation": [{"name": "held", "path": "tokens.bin", "format": "raw_u16", "max_rows": 4, "allow_training_data": true}]},
    "train": {"steps": 12, "batch_size": 4, "micro_batch_size": 2, "sequence_length": 9, "seed": 5, "device": "cpu", "log_every": 1,
              "checkpoint": {"every": 2, "keep": 1}},
    "optimizer": {"lr": 0.01}})");
    if (!sweep.empty()) { write_sweep(*this, sweep); }
  }
};

/// A list of evaluations of the base configuration's tokens.
inline void write_evaluations(const TempFolder& folder) {
  folder.write("eval.json", R"({"evaluations": [{"name": "by-position", "kind": "position_ppl", "length": 64,
    "data": {"path": "tokens.bin", "format": "raw_u16"}}]})");
}

/// hebb ladder sweep.json, in `folder`.
inline Result ladder(const TempFolder& folder, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), {"ladder", (folder / "sweep.json").string()});
  return run_hebb(arguments, folder / "ladder", folder.path());
}

/// Lines of results.jsonl without what is measured, and without the hash of the configuration, which holds the folder
/// of the data.
inline std::vector<std::string> results(const TempFolder& folder) {
  std::istringstream lines(read_file(folder / "runs/small/results.jsonl"));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    Json json = parse_json(line, "results.jsonl");
    for (const char* key : {"tokens_per_s", "mem_bytes", "seconds", "setting"}) { json.erase(key); }
    found.push_back(json.dump());
  }
  return found;
}

}  // namespace hebb::testing
