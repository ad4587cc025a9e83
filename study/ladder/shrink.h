#pragma once
// The same table smaller: every run of a sweep shrunk by one factor (docs/ladders.md).
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "study/ladder/shrink_factors.h"
#include "study/ladder/sweep.h"

namespace hebb {

struct ShrinkOptions {
  ShrinkBudget budget = {};                // of kept factors their own
  std::string corpus = {};                 // folder of the synthetic corpus that replaces the text; empty: it stays
  std::optional<ShrinkFactors> kept = {};  // of the runs that the sweep goes on with; else they are found
};

/// One value of a run that differs from the sweep's.
struct ShrinkChange {
  std::string run, key, from, to;
};

/// A shrunken sweep, and what was shrunk to what.
struct Shrinking {
  Sweep sweep;  // `name` has the budget behind it; `shrunk` is set
  ShrinkFactors factors;
  std::vector<ShrinkChange> changes;
  std::vector<std::string> notes;

  /// Values by key, runs that share a change on one line.
  std::string text() const;
};

/// Shrinks the runs, and those that are only planned, by the factor that brings the training FLOPs of the runs nearest
/// to the budget from below. A sweep that costs less keeps its sizes. With factors that are kept, runs of the sweep
/// that they were made for stay what they were, whatever runs have joined. Reads no files.
/// Errors: ConfigError for fewer FLOPs than the smallest sizes take, and for a run that cannot be shrunk (its id and
/// key).
Shrinking shrink_sweep(const Sweep& sweep, const ShrinkOptions& options);

/// How the sweep is shrunk in `folder`: as its runs are, where some have begun, else to `asked`. Nothing: it keeps its
/// sizes. Errors: ConfigError where `asked` is not what the runs have.
std::optional<ShrinkOptions> shrink_options(const Sweep& sweep, const fs::path& folder, const ShrinkBudget& asked);

/// Whether the token files of every run are there.
bool has_text(const Sweep& sweep);

/// Writes the synthetic corpus of a shrunken sweep as bytes, unless it is there already: the same bytes each time.
void write_corpus(const ShrunkTo& shrunk, Progress& progress);

}  // namespace hebb
