#pragma once
// What a step of several ranks takes and sends, for comparison with plans.
#include <numeric>

#include "comm/bucket_layout.h"
#include "comm/step_record.h"
#include "comm/thread_communicator.h"
#include "layers/model.h"
#include "tests/train/run_fixture.h"
#include "train/training_passes.h"
#include "train/training_state.h"

namespace hebb::testing {

/// What rank 0 of a run reserves, and what its ranks send in a step, on average.
struct StepAccount {
  int64_t state_bytes = 0, work_bytes = 0, exchanged_bytes = 0, gathered_bytes = 0;
};

/// The passes and the update of a step on rows of zeros.
inline void do_step(const RunConfig& config, TrainingState& memory) {
  const TrainConfig& train = config.train;
  const int64_t tokens = *train.micro_batch_size * train.sequence_length;
  const MicroBatch rows(*train.micro_batch_size, train.sequence_length);
  PassSettings settings;
  settings.training = true;
  memory.begin_step(0, 1.0 / static_cast<double>(train.tokens_per_step()));
  const int64_t count = memory.row_loss.tensor().numel() / tokens;
  for (int64_t lane = 0; lane < memory.own_lanes(); ++lane) {
    memory.begin_lane(static_cast<int>(lane));
    for (int64_t i = lane; i < count; i += memory.own_lanes()) {
      settings.sends = i + 1 == count ? memory.sends_in_last_pass() : nullptr;
      memory.passes->run(rows, settings, memory.row_loss.tensor().slice(i * tokens, {tokens}));
    }
    memory.end_lane();
  }
  memory.finish_step(0, train.tokens_per_step(), false);
  memory.complete_values();
}

inline std::vector<int64_t> sizes_of_trained(const Model& model) {
  std::vector<int64_t> sizes;
  for (const auto& p : model.params().all()) {
    if (p->trained()) { sizes.push_back(p->spec.shape.numel()); }
  }
  return sizes;
}

/// With 4 lanes of one micro-batch each.
inline StepAccount account_of_step(RunConfig config, int ranks, int zero, DeviceKind device) {
  config.train.lanes = 4;
  config.train.zero = zero;
  StepAccount account;
  std::vector<int64_t> gathered(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    FlightLog flight;
    const Ranks self(communicator, flight, 1);
    const MemoryPlan plan = plan_memory(config, self);
    TrainingState memory(config, self, device, plan.state_bytes(), plan.work_bytes);
    memory.make_values([&] { memory.model.params().initialize(memory.stream, 1); });
    memory.start_lanes();
    const CommCounts before = communicator.counts();
    do_step(config, memory);
    const BucketLayout layout(sizes_of_trained(memory.model), 4, config.train.comm.value_or(CommConfig{}).bucket_mib);
    const RecordShape record{.ranks = ranks,
                             .lanes = 4,
                             .micro_batches = 1,
                             .squares = most_segments(layout, ranks),
                             .parameters = layout.parameters()};
    gathered[static_cast<size_t>(self.rank())] =
        communicator.counts().gathered_bytes - before.gathered_bytes - 8 * record.words() * (ranks - 1);
    if (!self.is_first()) { return; }
    account = {.state_bytes = memory.state.peak_bytes(),
               .work_bytes = memory.work.peak_bytes(),
               .exchanged_bytes = communicator.counts().exchanged_bytes - before.exchanged_bytes};
  });
  account.gathered_bytes = std::accumulate(gathered.begin(), gathered.end(), int64_t{0}) / ranks;
  return account;
}

}  // namespace hebb::testing
