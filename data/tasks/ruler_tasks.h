#pragma once
// Inputs of RULER's tasks with a given number of units; data/tasks/ruler.cpp finds the number.
#include "core/random.h"
#include "data/tasks/ruler.h"

namespace hebb::ruler {

/// The streams of a sample (docs/evaluations/ruler.md, Size): label "ruler/TASK/LENGTH".
struct Streams {
  uint64_t seed, index;
  std::string label;

  Rng main() const { return {seed, label, index}; }
  Rng places() const { return {seed, label + "/pos", index}; }
  Rng filler() const { return {seed, label + "/fill", index}; }
  Streams example() const { return {seed, index, label + "/example"}; }
};

enum class Haystack { noise, essay, needles };

struct NeedleTask {
  const char* name;
  Haystack haystack;
  bool keys_are_uuids, values_are_uuids;
  int64_t keys, values, queries;
};
const NeedleTask* find_needle_task(std::string_view name);

/// essay: the words of the haystack, where it is one.
RulerSample needle_input(const RulerMaterial& m, const NeedleTask& task, const Streams& streams, int64_t units,
                         const std::string& essay);
RulerSample variable_input(const RulerMaterial& m, const Streams& streams, int64_t units);
RulerSample common_words_input(const RulerMaterial& m, const Streams& streams, int64_t units, int64_t length);
RulerSample frequent_words_input(const RulerMaterial& m, const Streams& streams, int64_t units, int64_t length);
RulerSample question_input(const RulerMaterial& m, const QuestionSet& set, const Streams& streams, int64_t units);

}  // namespace hebb::ruler
