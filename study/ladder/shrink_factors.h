#pragma once
// What the runs of a sweep are shrunk with (docs/ladders.md, The rule).
#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.h"

namespace hebb {

/// Training FLOPs that a sweep is shrunk to.
struct ShrinkBudget {
  double flops = 0;       // 0: the sweep keeps its sizes
  bool is_total = false;  // of all runs together; else of a run, in the mean over them

  /// "--shrink 2e14", as the command line has it.
  std::string option() const;
  /// "2e14 training FLOPs per run".
  std::string text() const;
  /// What stands behind the name of the sweep: "-shrunk-2e14", or "-shrunk-total-2e14".
  std::string suffix() const;
  double of_all(size_t runs) const { return is_total ? flops : flops * static_cast<double>(runs); }
  bool operator==(const ShrinkBudget& other) const = default;
};

/// Factors that depend on all runs of a sweep. sweep.json keeps them, so that runs which join later shrink as those
/// before them did, and those stay what they are.
struct ShrinkFactors {
  struct Tail {
    int64_t layers = 0, blocks = 1;
  };
  struct Parameters {
    double tokens = 0, factor = 1;
  };

  ShrinkBudget budget;
  double width = 1;                    // of hidden_size before rounding; depth has its square root
  double lengths = 1;                  // a power of two
  double tokens = 1;                   // tokens per parameter, relative to the sweep's
  int64_t period = 1;                  // blocks of a period of all patterns
  std::vector<Tail> tails;             // blocks of a period of the patterns of the models of each depth
  std::vector<Parameters> parameters;  // after over before, of the runs that see equally many tokens
  int64_t validation_rows = 0;         // of each set, in all runs; 0: as the sweep has it
  int64_t documents = 0, joined = 1;  // of the synthetic corpus: for training, and synthetic documents in each; 0: none
  std::vector<std::string> runs;      // ids of the runs that the factors were made for
};

void fields(Fields& f, ShrinkFactors::Tail& tail);
void fields(Fields& f, ShrinkFactors::Parameters& parameters);
void fields(Fields& f, ShrinkFactors& factors);

/// "2e14": as it stands in names of folders.
std::string flops_name(double flops);

}  // namespace hebb
