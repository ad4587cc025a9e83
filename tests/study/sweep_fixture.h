#pragma once
// Sweeps that are composed and not trained.
#include "inspect/plan.h"
#include "tests/study/ladder_fixture.h"
#include "tests/thrown.h"

namespace hebb::testing {

/// What is wrong with a sweep of these members.
inline std::string problem(const TempFolder& folder, const std::string& members) {
  return thrown<ConfigError>([&] { read_sweep(write_sweep(folder, members)); });
}

inline Sweep sweep_of(const std::string& members) { return read_sweep(SweepFolder(members) / "sweep.json"); }

inline const SweepRun& run_of(const Sweep& sweep, const std::string& id) {
  for (const SweepRun& run : sweep.runs) {
    if (run.id == id) { return run; }
  }
  FAIL("no run " << id);
  return sweep.runs[0];
}

inline int64_t width(const SweepRun& run) {
  return run.config.at("model").at("layers").at("mlp").at("intermediate_size").as_int();
}

inline int64_t non_embedding(const SweepRun& run) {
  auto config = Fields::read<ModelConfig>(run.config.at("model"), "model");
  return count_parameters(Model(config)).non_embedding;
}

inline std::vector<std::string> ids_of(const Sweep& sweep) {
  std::vector<std::string> ids;
  for (const SweepRun& run : sweep.runs) { ids.push_back(run.id); }
  return ids;
}

}  // namespace hebb::testing
