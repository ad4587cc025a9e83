#pragma once
#include <string>
#include <vector>

#include "core/params.h"
#include "core/weight_source.h"

namespace hebb {

/// One tensor that a file must hold.
struct ExpectedTensor {
  std::string name;
  Shape shape;
  bool is_integer = false;
};

/// Every tensor of a store, in its order.
std::vector<ExpectedTensor> tensors_of(const ParamStore& params);

/// Throws the CheckpointError that lists every missing, foreign or differently shaped tensor.
void require_tensors(const WeightSource& file, const std::vector<ExpectedTensor>& expected);

/// Fills a device tensor (F32, F64 or I32) from the file; floating types convert.
void load_tensor(const WeightSource& file, const std::string& name, Stream& stream, const Tensor& to);

}  // namespace hebb
