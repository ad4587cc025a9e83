#include "layers/ops/slot_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "layers/ops/host_values.h"

namespace hebb {

double entropy(const std::vector<double>& mass) {
  const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
  double h = 0;
  for (const double m : mass) { h -= m > 0 ? m / total * std::log(m / total) : 0.0; }
  return h;
}

SlotCounts count_slots(std::vector<int32_t> accesses, double table) {
  std::sort(accesses.begin(), accesses.end());
  const double total = static_cast<double>(accesses.size());
  double distinct = 0, shared = 0, kld = 0;
  for (auto slot = accesses.begin(); slot != accesses.end();) {
    const auto next = std::upper_bound(slot, accesses.end(), *slot);
    const double count = static_cast<double>(next - slot);
    distinct += 1;
    shared += count > 1 ? count : 0;
    kld += count / total * std::log(table * count / total);
    slot = next;
  }
  return {shared / total, distinct / table, kld};
}

void count_slots(Stream& stream, const Tensor& slots, double table, std::map<std::string, double>& out) {
  const SlotCounts counts = count_slots(host_integers(stream, slots), table);
  out["collision"] = counts.collision;
  out["coverage"] = counts.coverage;
  out["kld"] = counts.kld;
}

}  // namespace hebb
