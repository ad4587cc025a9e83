#pragma once
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/files.h"
#include "study/report/chart.h"

namespace hebb {

/// What metrics.jsonl of a run holds (docs/formats/metrics.md).
struct RunMetrics {
  std::string name;
  Curve loss, lr, grad_norm;
  std::vector<Curve> validation;
  std::vector<double> tokens, tokens_per_s;              // at the logged steps
  int64_t mem_bytes = 0;                                 // the largest
  std::map<std::string, std::vector<Curve>> statistics;  // by name ("gate_mean"): one curve per layer
};

/// Reads RUN/metrics.jsonl up to a step; a last line without its end is left out. Throws DataError naming file and
/// line.
RunMetrics read_metrics(const fs::path& run, int64_t last_step = std::numeric_limits<int64_t>::max());

/// The last step that RUN/metrics.jsonl has a whole line of; 0 where there is none. Reads the end of the file alone.
int64_t last_logged_step(const fs::path& run);

}  // namespace hebb
