#include "train/finite_check.h"

#include <cmath>

#include "kernels/adamw.h"

namespace hebb {
namespace {

int64_t blocks_of(const Param& p) { return (p.value.numel() + kSumSquaresBlock - 1) / kSumSquaresBlock; }

}  // namespace

FiniteCheck::FiniteCheck(const ParamStore& params, Arena& arena) {
  int64_t blocks = 0;
  for (const auto& p : params.all()) {
    if (p->spec.kind == ParamKind::fast || p->spec.kind == ParamKind::state) {
      carried_.push_back(p.get());
      blocks += blocks_of(*p);
    }
  }
  if (blocks > 0) {
    partial_ = Buffer(arena, {blocks}, DType::f64, "check of carried state");
  }
}

void FiniteCheck::check(Stream& stream, int64_t completed_steps) const {
  if (carried_.empty()) {
    return;
  }
  int64_t at = 0;
  for (const Param* p : carried_) {
    run(stream, SumSquares{partial_.tensor().slice(at, {blocks_of(*p)}), p->value});
    at += blocks_of(*p);
  }
  std::vector<double> sums(static_cast<size_t>(at));
  copy_to_host(stream, sums.data(), partial_);
  size_t next = 0;
  for (const Param* p : carried_) {
    for (int64_t i = 0; i < blocks_of(*p); ++i) {
      if (!std::isfinite(sums[next++])) {
        throw NumericError("step " + std::to_string(completed_steps) + ": " + p->name(),
                           "the state that this layer carries is not finite; the last checkpoint stays");
      }
    }
  }
}

}  // namespace hebb
