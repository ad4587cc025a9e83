#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace hebb {

/// All options of one synthetic task (docs/tasks.md); which ones act depends on `task`.
struct SyntheticTask {
  std::string task;  // icr_basic, icr_positional, icl, mqar
  uint64_t seed = 0;
  std::vector<int64_t> lengths;  // one, or (ICR) several that are drawn per block of rows
  int64_t length_block = 1;      // ICR: rows per length draw
  int64_t vocab = 10000;         // ICR, MQAR
  int64_t word = 8;              // ICR: tokens per key and per value
  int64_t queries = 6;           // icr_basic: asked pairs
  int64_t copies = 4;            // icr_positional: values per key
  int64_t functions = 16, dim = 12, x_max = 1000, coef_max = 5;  // ICL
  int64_t pairs = 4;                                             // MQAR
  bool filler = true;                                            // MQAR: random tokens between the queries
};

/// inputs [len], targets [len]: targets[i] is the answer token to predict at i, else -100.
struct TaskRow {
  std::vector<int32_t> inputs, targets;
};

/// Checks every option against the task; throws ConfigError("WHERE.OPTION", found, expected). The generators
/// below rely on it.
void check_task(const SyntheticTask& task, const std::string& where);

/// Length of row k, one of task.lengths.
int64_t task_row_length(const SyntheticTask& task, uint64_t k);

/// Row k: a function of (task, k) alone; filled with PAD (0) and -100 up to task_row_length().
/// Source: docs/tasks.md.
TaskRow generate_task_row(const SyntheticTask& task, uint64_t k);

/// Targets other than -100 of a row of this length.
int64_t task_answers(const SyntheticTask& task, int64_t length);

/// Token ids of the task are below this.
int64_t task_vocabulary(const SyntheticTask& task);

}  // namespace hebb
