#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/stream.h"

namespace hebb {

/// How tokens spread over a table: share of the accesses whose slot has another one too, share of the slots accessed,
/// and divergence [nats] of the accesses from even use (docs/evaluations/memories.md, memory_stats).
struct SlotCounts {
  double collision = 0, coverage = 0, kld = 0;
};
/// Of the slots of all accesses (at least one) to a table of `table` slots.
SlotCounts count_slots(std::vector<int32_t> accesses, double table);

/// Entropy [nats] of the distribution proportional to `mass`; 0 without mass.
double entropy(const std::vector<double>& mass);

/// Writes "collision", "coverage" and "kld" of the slots i32 that tokens read from a table of `table` slots.
void count_slots(Stream& stream, const Tensor& slots, double table, std::map<std::string, double>& out);

}  // namespace hebb
