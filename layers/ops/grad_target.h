#pragma once
#include <vector>

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

/// Marks parameters as reached and gives values a gradient of 0 where they get no other one: what enters a computation
/// whose result does not depend on it (docs/model.md, Reached parameters).
inline void reach(Tape& tape, const std::vector<Var>& values) {
  if (!tape.recording()) { return; }
  const Var reached = tape.output({1}, DType::f32, "reached");
  tape.mark_reached(reached);
  tape.record(reached, [=](Tape& tape) {
    for (const Var v : values) {
      const GradSlot d = tape.grad_slot(v);
      if (d && !d.accumulate) { fill_zero(tape.stream(), d.tensor); }
    }
  });
}

}  // namespace hebb
