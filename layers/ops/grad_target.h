#pragma once
#include "core/tape.h"

namespace hebb {

/// Where a kernel that always writes the gradient of `input` puts it: the input's slot, or scratch where nothing wants
/// it.
class GradTarget {
 public:
  GradTarget(Tape& tape, Var input) : slot_(tape.grad_slot(input)) {
    if (!slot_) {
      unwanted_ = tape.scratch(tape.shape(input), tape.dtype(input), "unwanted gradient");
      slot_.tensor = unwanted_;
    }
  }
  Tensor view(const Shape& shape) const { return slot_.tensor.view(shape); }
  bool accumulate() const { return slot_.accumulate; }

 private:
  GradSlot slot_;
  Buffer unwanted_;
};

}  // namespace hebb
