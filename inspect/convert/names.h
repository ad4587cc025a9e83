#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "layers/model_config.h"
#include "train/tensor_match.h"

namespace hebb {

/// Rows of a tensor of one side in a tensor of the other: to[at + i] = from[first + i] + add, i < rows. A row is what
/// stands at one index of the first dimension.
struct Piece {
  std::string name;  // of the tensor that they come from
  int64_t first = 0, rows = 0, at = 0;
  double add = 0;
};

/// A tensor made of pieces of others; zeros where it has none.
struct Recipe {
  std::string name;
  Shape shape;
  std::vector<Piece> pieces;
};

/// Every tensor of a foreign checkpoint of the class `type`, made of hebb's. expected: hebb's tensors of `model`.
std::vector<Recipe> foreign_tensors(const std::string& type, const ModelConfig& model,
                                    const std::vector<ExpectedTensor>& expected);

/// The reverse: hebb's tensors made of foreign ones.
std::vector<Recipe> inverted(const std::vector<Recipe>& foreign, const std::vector<ExpectedTensor>& expected);

/// Tensors of foreign checkpoints of the class that have no part in its values: tables that hebb computes, and parts
/// for other inputs and losses than a language model's.
bool is_ignored(const std::string& type, std::string_view name);

}  // namespace hebb
