#pragma once
#include <optional>

#include "core/fields.h"
#include "kernels/rope/rope.h"

namespace hebb {

struct YarnConfig {
  double factor = 1.0;
  int64_t original = 0;
  double beta_fast = 32.0, beta_slow = 1.0;
  std::optional<double> attention_factor;
};
void fields(Fields& f, YarnConfig& c);
/// `spec` with this extension in place of its own.
RopeSpec extended(RopeSpec spec, const YarnConfig& c);

/// The `rope` object of mixers (docs/layers/attention.md, Rotary positions).
struct RopeConfig {
  double theta = 10000.0;
  std::optional<int64_t> dims;
  bool endpoint = false;
  std::optional<YarnConfig> yarn;

  /// Fills in what defaults to the head size and checks it; `f` reads the object that holds `rope`.
  void resolve(const Fields& f, int64_t head_dim);
  RopeSpec spec() const;
};
void fields(Fields& f, RopeConfig& c);

}  // namespace hebb
