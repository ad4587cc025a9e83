#pragma once
#include "kernels/ham/ham.h"
#include "layers/ops/attention.h"

namespace hebb {

/// How a layer decides.
struct HamDecision {
  Selecting selecting = Selecting::threshold;
  Tensor threshold;  // [1]: tau = range sigmoid(threshold); undefined: tau
  double range = 1, tau = 0;
};

/// What was selected: see SelectTokens.
struct HamSelection {
  Var slot, lo, hi;  // [B, T] i32
  Buffer selected;   // [B] i32 tokens of each row
  /// They, on the host: waits for the device.
  std::vector<int64_t> host_selected(Stream& stream) const;
  KeyIntervals visible() const { return {lo, hi}; }
};

/// Selects tokens by score [B T] (no Var where it does not matter). `held` (see SelectTokens): undefined when nothing
/// is carried. With an inspector and nothing carried, decisions are taken from and reported as NAME.mask, and
/// NAME.score, NAME.kv_growth [16] and NAME.score_by_position [T] are reported (docs/layers/ham.md, Statistics).
/// Errors: DataError for a forced mask of another size or with other values than 0 and 1.
HamSelection select_tokens(Pass& pass, Var score, const HamDecision& decision, const Tensor& held,
                           const std::string& name);

/// The selected tokens of x [B T, C], in order, at the start of [B T, C] (the rest is not written); times factor
/// [B T] where given. Tokens that are not selected get gradients of 0.
Var pack_tokens(Pass& pass, Var x, const HamSelection& selection, Var factor);

}  // namespace hebb
