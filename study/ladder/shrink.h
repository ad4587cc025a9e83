#pragma once
// The same table smaller: every run of a sweep shrunk by one factor (docs/ladders.md).
#include <string>
#include <vector>

#include "core/progress.h"
#include "study/ladder/sweep.h"

namespace hebb {

struct ShrinkOptions {
  double flops = 0;    // training FLOPs of all runs together
  std::string corpus;  // folder of the synthetic corpus that replaces the text; empty: the text stays
};

/// One value of a run that differs from the sweep's.
struct ShrinkChange {
  std::string run, key, from, to;
};

/// A shrunken sweep, and what was shrunk to what.
struct Shrinking {
  Sweep sweep;         // `name` has "-shrunk-FLOPS" behind it; `shrunk` is set
  double flops = 0;    // that were asked for
  double factor = 1;   // of widths; depth has its square root
  double lengths = 1;  // a power of two
  double tokens = 1;   // tokens per parameter, relative to the sweep's
  std::vector<ShrinkChange> changes;
  std::vector<std::string> notes;

  /// Values by key, runs that share a change on one line.
  std::string text() const;
};

/// Shrinks the runs, and those that are only planned, by the factor that brings the training FLOPs of the runs nearest
/// to `flops` from below. A sweep that costs less keeps its sizes. Reads no files.
/// Errors: ConfigError for fewer FLOPs than the smallest sizes take, and for a run that cannot be shrunk (its id and
/// key).
Shrinking shrink_sweep(const Sweep& sweep, const ShrinkOptions& options);

/// Whether the token files of every run are there.
bool has_text(const Sweep& sweep);

/// "2e14": as it stands in names of folders.
std::string flops_name(double flops);

/// The FLOPs that the runs in `folder` were shrunk to, or `asked` (0: not shrunk) where there is no ladder yet.
/// Errors: ConfigError where both are given and differ.
double shrink_of_folder(const fs::path& folder, double asked);

/// Writes the synthetic corpus of a shrunken sweep as bytes, unless it is there already: the same bytes each time.
void write_corpus(const ShrunkTo& shrunk, Progress& progress);

}  // namespace hebb
