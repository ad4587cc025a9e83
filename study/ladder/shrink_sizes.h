#pragma once
// What becomes of the sizes in a run configuration (docs/ladders.md, The rule).
#include <cstdint>
#include <string_view>

#include "core/json.h"

namespace hebb {

/// What all runs of a sweep are shrunk with.
struct ShrinkScale {
  double width = 1;    // of hidden_size before rounding; depth has its square root
  double lengths = 1;  // of rows, windows, chunks and memories
  int64_t period = 1;  // blocks of a period of all patterns
  int64_t tail = 1;    // the same of the models that are as deep: what lies behind its last repetition stays
};

constexpr int64_t kSmallestWidth = 16;  // of a model

/// `value` times `factor` as a multiple of `multiple`, at least `least`; never above `value`.
int64_t scaled(int64_t value, double factor, int64_t multiple, int64_t least);

/// The member `key` where it is a whole number above 0, else 0.
int64_t size_at(const Json& object, std::string_view key);
/// Replaces it.
void set_size(Json& object, std::string_view key, int64_t value);
/// Replaces a member that is a length in tokens.
void shrink_length(Json& object, const char* key, const ShrinkScale& scale);

/// Shrinks `model`: width, depth, `at`, and every layer definition. The vocabulary stays.
/// Errors: ConfigError where two changes of `at` meet in one block.
void shrink_model(Json& model, const ShrinkScale& scale);

/// The shortest window or chunk of a layer definition, in tokens; infinity: it has none.
double shortest_window(const Json& layer);

/// What a layer counts in optimizer steps, in a run that has `factor` times as many.
void scale_steps(Json& layer, double factor);

}  // namespace hebb
