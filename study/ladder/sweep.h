#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "core/files.h"
#include "core/json.h"
#include "study/ladder/shrink_factors.h"
#include "study/report/fit.h"
#include "study/report/published.h"

namespace hebb {

/// How near a solved value came.
struct Solved {
  std::string path, quantity;
  int64_t value = 0;
  double target = 0, reached = 0;
};

struct SweepRun {
  std::string id;
  Json config;   // a run configuration named `id`, paths absolute
  Json written;  // the same as files and sweep have written it, for the positions in messages
  Json tags;     // object
  std::vector<Solved> solved;
  Json cluster;  // object: what a job of the run asks for (study/ladder/cluster_config.h)
};

/// What a sweep was shrunk to (docs/ladders.md).
struct ShrunkTo {
  ShrinkFactors factors;
  std::string corpus;  // folder of the synthetic corpus; empty: the text of the sweep
  std::string text;    // the table
};

/// A sweep (docs/verbs/ladder.md): every run with its complete configuration.
struct Sweep {
  std::string name;
  Json source;  // as written
  std::vector<SweepRun> runs;
  std::vector<SweepRun> planned;  // "train": false: predicted by the fit and not trained
  std::string evals;              // file; empty: none
  int64_t max_parallel = 1;
  int64_t ranks = 1;  // processes that train a run together; jobs: where `cluster` says nothing else
  std::optional<FitConfig> fit;
  std::optional<PublishedTable> published;
  std::optional<ShrunkTo> shrunk;
};

/// Reads a sweep and composes its runs: base, set (of runs, axes, grid), derive, solve. Every run is read as `hebb
/// train` reads it and its model is built, so that what is wrong shows before anything runs. Errors: ConfigError at the
/// place in the sweep that is wrong.
Sweep read_sweep(const fs::path& path);

/// What a run's plan knows of its results: id, tags, params.*, flops.forward_per_token, flops.total, tokens.
Json planned_result(const SweepRun& run);

}  // namespace hebb
