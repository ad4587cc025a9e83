#pragma once
// Solved examples in front of what is asked (docs/evaluations/likelihood.md, Solved examples).
#include <optional>
#include <string>
#include <vector>

#include "data/tasks/records.h"

namespace hebb {

/// Solved examples in front of a context.
struct FewShot {
  std::string file, order = "first", separator = "\n\n";
  int64_t k = 0;
};
void fields(Fields& f, FewShot& s);

/// What stands in front of every context or prompt: keys `description` and `fewshot`.
struct InFront {
  std::string description;
  std::optional<FewShot> fewshot;
};
/// `what`: "context" or "prompt".
void fields(Fields& f, InFront& front, const std::string& what);

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
  template <class R> static Shots read(const InFront& front, const std::string& own_file, uint64_t seed) {
    Shots shots;
    shots.description_ = front.description;
    if (front.fewshot) {
      shots.options_ = *front.fewshot;
      shots.seed_ = seed;
      for (const R& record : read_records<R>(front.fewshot->file)) { shots.texts_.push_back(shot_text(record)); }
      shots.check(own_file);
    }
    return shots;
  }
  /// What stands in front of example `index`: the description, and each shot with the separator behind it.
  std::string before(size_t index) const;

 private:
  void check(const std::string& own_file);

  std::string description_;
  FewShot options_;
  uint64_t seed_ = 0;
  bool is_own_file_ = false;
  std::vector<std::string> texts_;
};

}  // namespace hebb
