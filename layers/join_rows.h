#pragma once
// Decoding several texts as rows of one batch, which join and leave between tokens.
#include <memory>
#include <span>

#include "layers/model.h"

namespace hebb {

/// A row of a state.
struct StateRow {
  ModelState* state;
  int64_t row = 0;
};

/// Whether join_rows() takes states like this one: every layer's does. Fast weights are one memory of all rows, and do
/// not.
bool rows_move(const ModelState& state);

/// A state of these rows in this order, each at its own position in its one document. read_token() advances it; rows
/// that leave are left out of the next join. uses_up: the states give their memory back layer by layer, so that little
/// is held twice.
std::unique_ptr<ModelState> join_rows(Stream& stream, const Model& model, Arena& arena, std::span<const StateRow> rows,
                                      bool uses_up);

}  // namespace hebb
