#pragma once
#include <string>
#include <string_view>

#include "train/tensor_match.h"

namespace hebb {

/// The name of a tensor of hebb in a checkpoint of the class `model_type`.
std::string foreign_name(const std::string& name, const std::string& model_type);

/// Its shape there.
Shape foreign_shape(const ExpectedTensor& e);

/// Tables that old files carry and that hebb computes.
bool is_computed(std::string_view name);

}  // namespace hebb
