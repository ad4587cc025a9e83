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
  std::optional<bool> truncate;  // absent: true, as in configurations of runs that know no such key
};
void fields(Fields& f, YarnConfig& c);
/// `spec` with this extension in place of its own.
RopeSpec extended(RopeSpec spec, const YarnConfig& c);

/// Llama 3.1's extension.
struct Llama3Config {
  double factor = 1.0;
  int64_t original = 0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
};
void fields(Fields& f, Llama3Config& c);

/// The `rope` object of mixers (docs/layers/attention.md, Rotary positions).
struct RopeConfig {
  double theta = 10000.0;
  std::optional<int64_t> dims;
  bool endpoint = false;
  std::optional<YarnConfig> yarn;
  std::optional<Llama3Config> llama3;

  /// Fills in what defaults to the head size and checks it; `f` reads the object that holds `rope`.
  void resolve(const Fields& f, int64_t head_dim);
  RopeSpec spec() const;
};
void fields(Fields& f, RopeConfig& c);

}  // namespace hebb
