#include "layers/ops/slot_statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace hebb {

void count_slots(Stream& stream, const Tensor& slots, double table, std::map<std::string, double>& out) {
  std::vector<int32_t> accesses(static_cast<size_t>(slots.numel()));
  copy_to_host(stream, accesses.data(), slots);
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
  out["collision"] = shared / total;
  out["coverage"] = distinct / table;
  out["kld"] = kld;
}

}  // namespace hebb
