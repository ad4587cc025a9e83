#pragma once
// Solved examples in front of what is asked (docs/evaluations/likelihood.md, Solved examples).
#include <optional>
#include <string>
#include <vector>

#include "data/tasks/records.h"

namespace hebb {

/// Solved examples in front of a context.
struct FewShot {
  std::string file, order = "first";
  int64_t k = 0;
};
void fields(Fields& f, FewShot& s);

/// A record as a solved example: context, delimiter and the right continuation; prompt, a space and the first answer.
/// Errors: DataError for a record without an answer.
std::string shot_text(const ChoiceRecord& r);
std::string shot_text(const PartialRecord& r);
std::string shot_text(const ClozeRecord& r);
std::string shot_text(const GenerateRecord& r);

/// The solved examples of a task, drawn anew for each of its examples where they are sampled.
class Shots {
 public:
  /// `own_file`: that of the task; an example of it is never its own shot. Errors: those of read_records; ConfigError
  /// for more shots than the file has.
  template <class R>
  static Shots read(const std::optional<FewShot>& options, const std::string& own_file, uint64_t seed) {
    Shots shots;
    if (options) {
      shots.options_ = *options;
      shots.seed_ = seed;
      for (const R& record : read_records<R>(options->file)) { shots.texts_.push_back(shot_text(record)); }
      shots.check(own_file);
    }
    return shots;
  }
  /// What stands in front of example `index`, with the blank line that ends it; empty without shots.
  std::string before(size_t index) const;

 private:
  void check(const std::string& own_file);

  FewShot options_;
  uint64_t seed_ = 0;
  bool is_own_file_ = false;
  std::vector<std::string> texts_;
};

}  // namespace hebb
