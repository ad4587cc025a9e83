#include "train/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#ifdef HEBB_HAVE_CUDA
#include "core/cuda_device.h"
#endif
#include "comm/member.h"
#include "core/hash.h"
#include "core/progress.h"
#include "train/training_state.h"

namespace hebb {
namespace {

constexpr int64_t kPlannedDocuments = 8;

/// Rows of a micro-batch are in memory before anything else of it.
void check_rows(const TrainConfig& train) {
  const auto tokens = static_cast<double>(*train.micro_batch_size) * static_cast<double>(train.sequence_length);
  const double bytes = 3 * sizeof(int32_t) * tokens;
  const MemoryLimit limit = available_memory(DeviceKind::cpu);
  const auto available = static_cast<double>(limit.bytes);
  if (bytes > available) {
    throw MemoryError(
        "train.micro_batch_size",
        fmt::format("the rows of a micro-batch do not fit (found {:d} rows of {:d} tokens, expected at most {}{})",
                    *train.micro_batch_size, train.sequence_length, format_bytes(available), under(limit)));
  }
}

MicroBatch planned_rows(const TrainConfig& train) {
  MicroBatch rows(*train.micro_batch_size, train.sequence_length);
  for (int64_t i = 0; i < rows.rows * rows.length; ++i) {
    rows.doc_ids[static_cast<size_t>(i)] = static_cast<int32_t>(i % rows.length * kPlannedDocuments / rows.length);
  }
  return rows;
}

/// "blocks.7.ffn/linear" as "blocks.*.ffn/linear": blocks have the same temporaries.
std::string without_block(const std::string& name) {
  const size_t end = name.rfind("blocks.", 0) == 0 ? name.find('.', 7) : std::string::npos;
  return end == std::string::npos ? name : "blocks.*" + name.substr(end);
}

struct NamedSum {
  std::string name;
  int64_t bytes, count;
};

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, const Ranks& ranks, ProductList* products) {
  check_rows(config.train);
  TrainingState training(config, ranks, DeviceKind::count, 0, 0);
  training.stream.products = products;
  MemoryPlan plan;
  for (const auto& p : training.model.params().all()) {
    for (const Tensor& t : {p->value, p->copy}) { plan.parameter_bytes += t.defined() ? t.bytes() : 0; }
    plan.gradient_bytes += p->grad.defined() && !training.exchange ? p->grad.bytes() : 0;
  }
  if (training.exchange) {
    plan.gradient_bytes = training.exchange->gradient_bytes();
    plan.parameter_bytes += training.exchange->value_bytes();
  }
  if (training.memories) { plan.parameter_bytes += training.memories->added_bytes(); }
  plan.optimizer_bytes = training.state.peak_bytes() - plan.parameter_bytes - plan.gradient_bytes;

  const MicroBatch rows = planned_rows(config.train);
  const Tensor row_loss = training.row_loss.tensor().slice(0, {rows.rows * rows.length});
  PassSettings settings;
  settings.document_mask = config.train.document_mask;
  {
    const CarriedState aside(training.stream, training.work, training.model.params());
    training.run_validation(rows, rows.rows, settings, row_loss);
  }
  settings.training = true;
  training.model.begin_step(training.stream, 0);
  for (int lane = 0; lane < training.own_lanes(); ++lane) {
    training.begin_lane(lane);
    if (lane == 0) { training.passes->run(rows, settings, row_loss); }
    training.end_lane();
  }
  if (training.exchange) { training.exchange->reduce(training.stream, training.work); }
  training.model.after_step(training.stream, 0, training.optimizer->applies());
  plan.work_bytes = training.work.peak_bytes();
  plan.work_peak = training.work.peak_table();
  return plan;
}

Json MemoryPlan::json() const {
  return Json::object({{"parameters", parameter_bytes},
                       {"gradients", gradient_bytes},
                       {"optimizer", optimizer_bytes},
                       {"work", work_bytes},
                       {"total", total_bytes()}});
}

MemoryPlan plan_rank_memory(const RunConfig& config, int ranks) {
  if (ranks == 1) { return plan_memory(config); }
  PlannedCommunicator communicator(0, ranks);
  FlightLog flight;
  return plan_memory(config, Ranks(communicator, flight));
}

void check_host_memory(HostExchange& ranks, int64_t own_bytes) {
  if (ranks.communicator().size() == 1) { return; }
  const Member self = this_member(ranks.communicator().rank());
  const uint64_t host = fnv1a64(self.host + " " + self.boot);
  const MemoryLimit limit = available_memory(DeviceKind::cpu);
  // All ranks look before one of them reserves anything.
  const std::vector<uint64_t> all =
      ranks.gather(std::vector<uint64_t>{host, static_cast<uint64_t>(own_bytes), static_cast<uint64_t>(limit.bytes)});
  uint64_t needed = 0, available = std::numeric_limits<uint64_t>::max(), here = 0;
  for (size_t at = 0; at < all.size(); at += 3) {
    if (all[at] != host) { continue; }
    here += 1;
    needed += all[at + 1];
    available = std::min(available, all[at + 2]);
  }
  if (needed <= available) { return; }
  throw MemoryError(
      "memory plan",
      fmt::format("the {} ranks on {} do not fit (found {} available{}, expected {}: {} for this one); fewer "
                  "ranks on this host, or a smaller train.micro_batch_size, need less",
                  here, self.host, format_bytes(static_cast<double>(available)), under(limit),
                  format_bytes(static_cast<double>(needed)), format_bytes(static_cast<double>(own_bytes))));
}

void require_memory(const MemoryPlan& plan, DeviceKind device) {
  const MemoryLimit available = available_memory(device);
  if (plan.total_bytes() <= available.bytes) { return; }
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const std::string largest = plan.work_peak.empty() ? "nothing" : plan.work_peak.front().name;
  throw MemoryError("memory plan", "the run does not fit (found " + text(available.bytes) + " available" +
                                       under(available) + ", expected " + text(plan.total_bytes()) + ": " +
                                       text(plan.state_bytes()) + " for model and optimizer, " + text(plan.work_bytes) +
                                       " for a micro-batch, its largest part " + largest +
                                       "); a smaller train.micro_batch_size or train.recompute needs less");
}

std::string describe(const MemoryPlan& plan, size_t rows) {
  const auto line = [](const std::string& what, int64_t bytes) {
    return fmt::format("  {:<44} {:>12}\n", what, format_bytes(static_cast<double>(bytes)));
  };
  std::string text = "memory plan: " + format_bytes(static_cast<double>(plan.total_bytes())) + "\n";
  text += line("parameters", plan.parameter_bytes) + line("gradients", plan.gradient_bytes);
  text += line("optimizer", plan.optimizer_bytes) + line("activations and temporaries, at the peak", plan.work_bytes);
  std::vector<NamedSum> sums;
  for (const Arena::Use& use : plan.work_peak) {
    const std::string name = without_block(use.name);
    auto it = std::find_if(sums.begin(), sums.end(), [&](const NamedSum& s) { return s.name == name; });
    it = it != sums.end() ? it : sums.insert(sums.end(), {name, 0, 0});
    it->bytes += use.bytes;
    it->count += 1;
  }
  std::stable_sort(sums.begin(), sums.end(), [](const NamedSum& a, const NamedSum& b) { return a.bytes > b.bytes; });
  int64_t rest = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (i < rows) {
      text +=
          line("  " + sums[i].name + (sums[i].count > 1 ? " x " + std::to_string(sums[i].count) : ""), sums[i].bytes);
    } else {
      rest += sums[i].bytes;
    }
  }
  return text + (rest > 0 ? line("  others", rest) : "");
}

MemoryLimit available_memory(DeviceKind device) {
#ifdef HEBB_HAVE_CUDA
  if (device == DeviceKind::cuda) {
    // The driver takes memory beside what a run plans: for graphs, and when a kernel is launched for the first time,
    // for its code and the stacks of all threads that fit on the device. Too little of it would end a run in its first
    // steps.
    constexpr int64_t kDriver = int64_t{1} << 30;
    return {std::max<int64_t>(cuda::device_info().free_bytes - kDriver, 0), ""};
  }
#endif
  return memory_left();
}

}  // namespace hebb
