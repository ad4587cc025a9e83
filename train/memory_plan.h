#pragma once
#include <string>
#include <vector>

#include "comm/host_exchange.h"
#include "core/arena.h"
#include "core/machine_limits.h"
#include "train/ranks.h"
#include "train/run_config.h"

namespace hebb {

/// What a run will allocate on its device, in bytes.
struct MemoryPlan {
  int64_t parameter_bytes = 0;  // values, their bf16 copies, fast weights, counters
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;        // moments, losses and sums of squares
  int64_t work_bytes = 0;             // activations and temporaries of the largest pass
  std::vector<Arena::Use> work_peak;  // what lies in work memory at its peak, largest first

  int64_t state_bytes() const { return parameter_bytes + gradient_bytes + optimizer_bytes; }
  int64_t total_bytes() const { return state_bytes() + work_bytes; }
  Json json() const;
};

/// Runs one training micro-batch and one validation micro-batch of the real model code on the counting
/// device. With a document mask eight documents a row are assumed.
/// `config` must be resolved for so many ranks. The plan is that of one rank. products: takes the matrix products.
MemoryPlan plan_memory(const RunConfig& config, const Ranks& ranks = {}, ProductList* products = nullptr);

/// That of the first of so many ranks, which are not there.
MemoryPlan plan_rank_memory(const RunConfig& config, int ranks);

/// Memory of all ranks of a host together. Errors: MemoryError where the ranks of this one need more than it has. Every
/// rank calls it, before it reserves any. own_bytes: what this rank will take of the host's memory.
void check_host_memory(HostExchange& ranks, int64_t own_bytes);

/// Before a run reserves its memory. Errors: MemoryError where the plan needs more than the device can still give,
/// naming its largest part.
void require_memory(const MemoryPlan& plan, DeviceKind device);

/// The plan as lines of text: totals, then the largest `rows` entries of the peak.
std::string describe(const MemoryPlan& plan, size_t rows = 12);

/// Memory that this process can still get: of the machine, under the limits of this process, or of the GPU.
MemoryLimit available_memory(DeviceKind device = DeviceKind::cpu);

}  // namespace hebb
