#include "train/finite_check.h"

#include <fmt/core.h>

#include <cmath>

#include "kernels/adamw/adamw.h"

namespace hebb {
namespace {

int64_t blocks_of(const Param& p) { return (p.value.numel() + kSumSquaresBlock - 1) / kSumSquaresBlock; }

}  // namespace

FiniteCheck::FiniteCheck(const ParamStore& params, const LaneMemories* memories, Arena& arena) {
  for (const auto& p : params.all()) {
    const bool is_fast = p->spec.kind == ParamKind::fast && (memories == nullptr || !p->is_of_lane());
    if (is_fast || p->spec.kind == ParamKind::state) { carried_.push_back({p.get(), p->value}); }
  }
  if (memories != nullptr) {
    for (const LaneMemories::Memory& m : memories->own()) { carried_.push_back({m.param, m.values}); }
  }
  int64_t blocks = 0;
  for (const Carried& c : carried_) { blocks += blocks_of(*c.param); }
  if (blocks > 0) {
    partial_ = Buffer(arena, {blocks}, DType::f64, "check of carried state");
    sums_.resize(static_cast<size_t>(blocks));
  }
}

void FiniteCheck::enqueue(Stream& stream) const {
  int64_t at = 0;
  for (const Carried& c : carried_) {
    run(stream, SumSquares{partial_.tensor().slice(at, {blocks_of(*c.param)}), c.values});
    at += blocks_of(*c.param);
  }
}

std::vector<HostCopy> FiniteCheck::result() {
  return carried_.empty() ? std::vector<HostCopy>{} : std::vector<HostCopy>{{sums_.data(), partial_}};
}

void FiniteCheck::check(int64_t completed_steps) const {
  size_t next = 0;
  for (const Carried& c : carried_) {
    const Param* const p = c.param;
    for (int64_t i = 0; i < blocks_of(*p); ++i) {
      if (!std::isfinite(sums_[next++])) {
        throw NumericError(fmt::format("step {:d}: {}", completed_steps, p->name()),
                           "the state that this layer carries is not finite; the last checkpoint stays");
      }
    }
  }
}

}  // namespace hebb
