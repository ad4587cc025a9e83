#pragma once
// Runs of several ranks, as threads.
#include <locale>
#include <sstream>

#include "comm/thread_communicator.h"
#include "core/parallel.h"
#include "tests/train/run_fixture.h"

namespace hebb::testing {

/// What a split of a run may change without changing its results.
struct Split {
  int ranks = 1, zero = 1;
  int64_t bucket_mib = 64;
  std::string reduce = "fp32";
  bool overlap = false;
  std::string device = "cpu";
  bool graphs = false;
};

using MakeRun = std::function<RunConfig()>;

/// The same run, which stops after a step.
inline MakeRun one_step(const MakeRun& make) {
  return [make] {
    RunConfig config = make();
    config.train.max_minutes = 1e-9;
    return config;
  };
}

/// std::regex writes to a table of the locale when it first reads a character, from whatever thread (GCC's bug 77704).
/// Filled before there are threads, the table is only read.
inline void fill_locale_table() {
  const auto& table = std::use_facet<std::ctype<char>>(std::locale());
  for (int c = 0; c < 256; ++c) { table.narrow(static_cast<char>(c), '\0'); }
}

/// Runs in `folder` as so many ranks; returns their exit code. Each rank calls at_start with its trainer and its
/// number, and at_end, one after the other.
inline int run_split(const fs::path& folder, const MakeRun& make, const Split& split, Heard& heard,
                     RunOptions options = {}, const std::function<void()>& at_end = {},
                     const std::function<void(Trainer&, int)>& at_start = {}) {
  set_threads(1);
  fill_locale_table();
  options.run_folder = folder;
  std::vector<int> codes(static_cast<size_t>(split.ranks), -1);
  run_ranks(split.ranks, [&](Communicator& communicator) {
    FlightLog flight;
    RunConfig config = make();
    config.train.device = split.device;
    config.train.cuda_graphs = split.graphs;
    config.train.threads = 1;
    config.train.zero = split.zero;
    config.train.comm = CommConfig{};
    config.train.comm->bucket_mib = split.bucket_mib;
    config.train.comm->reduce = split.reduce;
    config.train.comm->overlap = split.overlap;
    Console console = communicator.rank() == 0 ? heard.console() : Console{};
    Trainer trainer(std::move(config), options, Ranks(communicator, flight, 1), console, "test");
    if (at_start) { at_start(trainer, communicator.rank()); }
    codes[static_cast<size_t>(communicator.rank())] = trainer.run();
    Stream stream;
    for (int r = 0; r < split.ranks && at_end; ++r) {
      if (r == communicator.rank()) { at_end(); }
      communicator.barrier(stream);
    }
  });
  for (const int code : codes) { CHECK(code == codes[0]); }
  return codes[0];
}

/// For at_start: keeps the trainer of the first rank, whose lines are heard.
inline std::function<void(Trainer&, int)> keep_first(Trainer*& first) {
  return [&first](Trainer& trainer, int rank) {
    if (rank == 0) { first = &trainer; }
  };
}

inline int run_split(const fs::path& folder, const MakeRun& make, const Split& split) {
  Heard heard;
  return run_split(folder, make, split, heard);
}

/// The bytes of a checkpoint that do not depend on the split. state.json vouches for the configuration, and for itself.
inline std::vector<std::string> bytes_of(const fs::path& folder, int64_t step) {
  const fs::path checkpoint = checkpoint_in(folder, step);
  Json state = parse_json_file((checkpoint / "state.json").string());
  state.erase("config_hash");
  state.erase("crc32");
  state.find("files")->erase("config.json");
  return {read_file(checkpoint / "model.safetensors"), read_file(checkpoint / "optimizer.safetensors"), state.dump()};
}

inline void check_same(const fs::path& one, const fs::path& other, int64_t step) {
  const auto expected = bytes_of(one, step), found = bytes_of(other, step);
  CHECK((found[0] == expected[0]));  // in brackets: no megabytes in messages
  CHECK((found[1] == expected[1]));
  CHECK(found[2] == expected[2]);
  CHECK(metrics_of(other) == metrics_of(one));
}

/// Enough parameters for several buckets of 1 MiB and for a part of each rank.
inline RunConfig wide_run(const TempFolder& folder, const std::string& changes) {
  return with_model(folder, changes, R"({"vocab_size": 29, "hidden_size": 48, "num_layers": 2, "layers": {
                 "mlp": {"type": "swiglu", "intermediate_size": 1100},
                 "att": {"type": "attention", "num_heads": 4, "head_dim": 12, "rope": {"theta": 100.0}}},
                 "pattern": [{"mixer": "att", "ffn": "mlp"}]})");
}

/// Every type of layer but those with fast weights.
inline RunConfig mixed_run(const TempFolder& folder, const std::string& changes) {
  return with_model(folder, changes, R"({"vocab_size": 29, "hidden_size": 8, "num_layers": 10, "layers": {
                 "m": {"type": "swiglu", "intermediate_size": 8},
                 "rel": {"type": "relu2", "intermediate_size": 10, "token_shift": true},
                 "pkm": {"type": "pkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 4, "num_heads": 2, "top_k": 2},
                 "att": {"type": "attention", "num_heads": 2, "head_dim": 4, "rope": {"theta": 100.0}},
                 "gdn": {"type": "gdn", "num_heads": 1, "key_head_dim": 4, "value_head_dim": 4, "conv_size": 2},
                 "mam": {"type": "mamba2", "num_heads": 2, "head_dim": 4, "state_dim": 4, "num_groups": 1},
                 "mes": {"type": "mesanet", "num_heads": 1, "key_head_dim": 4},
                 "lac": {"type": "lact", "num_heads": 2, "window": 4, "num_fast_heads": 1, "chunk_size": 4},
                 "ovq": {"type": "ovq", "num_heads": 2, "head_dim": 4, "chunk_size": 4, "max_centroids": 4},
                 "sdm": {"type": "sdm", "num_heads": 1, "slots_per_head": 16, "num_writes": 2, "num_reads": 3},
                 "ham": {"type": "ham", "rnn": {"num_heads": 1, "key_head_dim": 4, "value_head_dim": 4},
                         "kv": {"num_heads": 1, "key_head_dim": 4, "value_head_dim": 4},
                         "threshold": {"freeze_steps": 1, "lr": 0.05, "tau": 0.9}},
                 "vq": {"type": "vq", "num_heads": 2, "head_dim": 4, "codebook_size": 3},
                 "kvm": {"type": "kvm", "num_heads": 2, "head_dim": 4, "chunk_size": 2, "window_chunks": 2, "sinks": 1,
                         "state": {"mode": "fixed", "rows": 3}}},
                 "pattern": [{"mixer": "att", "ffn": "m"}, {"mixer": "gdn", "ffn": "rel"},
                             {"mixer": "mam", "ffn": "pkm"}, {"mixer": "mes", "ffn": "m"}, {"mixer": "lac", "ffn": "m"},
                             {"mixer": "ovq", "ffn": "m"}, {"mixer": "sdm", "ffn": "m"}, {"mixer": "ham", "ffn": "m"},
                             {"mixer": "vq", "ffn": "m"}, {"mixer": "kvm", "ffn": "m"}]})");
}

/// Both layers with fast weights, `sync` local or global.
inline RunConfig memory_run(const TempFolder& folder, const std::string& changes,
                            const std::string& fwpkm_sync = "local", std::string fwmlp_sync = "") {
  if (fwmlp_sync.empty()) { fwmlp_sync = fwpkm_sync; }
  Json model = parse_json(R"({"vocab_size": 29, "hidden_size": 8, "num_layers": 2, "layers": {
                 "att": {"type": "attention", "num_heads": 2, "head_dim": 4, "rope": {"theta": 100.0}},
                 "m": {"type": "swiglu", "intermediate_size": 8},
                 "fw": {"type": "fwpkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 4, "top_k": 2, "chunk_size": 6},
                 "fm": {"type": "fwmlp", "key_dim": 4, "value_dim": 4, "fast_dim": 5, "chunk_size": 6, "lr": 0.05}},
                 "pattern": [{"mixer": "att", "ffn": "m", "memory": "fw"}, {"mixer": "att", "ffn": "m", "memory": "fm"}]})",
                          "model.json");
  model.find("layers")->find("fw")->set("sync", Json(fwpkm_sync));
  model.find("layers")->find("fm")->set("sync", Json(fwmlp_sync));
  return with_model(folder, changes, model.dump());
}

/// Codebooks that start at step index 3.
inline RunConfig codebook_run(const TempFolder& folder, const std::string& changes) {
  return with_model(folder, changes, R"({"vocab_size": 29, "hidden_size": 8, "num_layers": 2, "layers": {
                 "m": {"type": "swiglu", "intermediate_size": 8},
                 "vq": {"type": "vq", "num_heads": 2, "head_dim": 4, "codebook_size": 3, "quantize_after": 3}},
                 "pattern": [{"mixer": "vq", "ffn": "m"}]})");
}

/// Documents of unequal lengths, ignored targets at their ends, clip sets, validation with a short last group.
inline std::string changes(const TempFolder& folder, int lanes, const std::string& train = "{}") {
  write_tokens(folder, "val.bin", 2);
  Json json = parse_json(R"({"train": {"batch_size": 12, "micro_batch_size": 1, "val_every": 3, "document_mask": true,
      "random_window": {"p": 0.5, "window": 3}, "checkpoint": {"every": 1, "keep": 20}},
      "optimizer": {"clip_norm": 0.05, "groups": [{"match": "mlp|ffn", "clip_norm": 0.02}]},
      "data": {"validation": [{"name": "v", "path": "val.bin", "format": "raw_u16", "max_rows": 17}]}})",
                         "changes.json");
  json.find("train")->set("lanes", Json(lanes));
  merge_json(*json.find("train"), parse_json(train, "train.json"));
  return json.dump();
}

/// Steps that are neither logged nor saved: their values arrive during the next pass.
inline std::string far_apart(const TempFolder& folder, int lanes, const std::string& train = "{}") {
  Json json = parse_json(R"({"steps": 12, "log_every": 5, "val_every": 4, "checkpoint": {"every": 6}})", "train.json");
  merge_json(json, parse_json(train, "train.json"));
  return changes(folder, lanes, json.dump());
}

}  // namespace hebb::testing
