#pragma once
#include <vector>

#include "core/params.h"

namespace hebb {

/// Watches the state that layers carry from batch to batch (fast weights, thresholds).
class FiniteCheck {
 public:
  FiniteCheck(const ParamStore& params, Arena& arena);
  /// Throws NumericError naming step and tensor when a value is not finite (spec 83, section 4).
  void check(Stream& stream, int64_t completed_steps) const;

 private:
  std::vector<const Param*> carried_;
  Buffer partial_;
};

}  // namespace hebb
