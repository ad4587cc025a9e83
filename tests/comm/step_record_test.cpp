#include "comm/step_record.h"

#include <cmath>
#include <mutex>

#include "comm/lanes.h"
#include "comm/thread_communicator.h"
#include "core/random.h"
#include "tests/comm/engine_checks.h"
#include "tests/test.h"

namespace {

const std::vector<int64_t> kSizes{70000, 1, 16385, 300000, 63};
constexpr int kLanes = 12;
constexpr int64_t kMicroBatches = 3;

RecordShape shape_of(const BucketLayout& layout, int ranks) {
  return {.ranks = ranks,
          .lanes = kLanes,
          .micro_batches = kMicroBatches,
          .squares = most_segments(layout, ranks),
          .parameters = layout.parameters(),
          .counts = 3,
          .flags = 70};
}

double number(const std::string& label, int64_t index) {
  Rng rng(23, label, static_cast<uint64_t>(index));
  return std::ldexp(rng.uniform(), static_cast<int>(rng.below(30)));
}

/// What one rank of `ranks` finds out about one and the same batch.
StepRecord record_of(const BucketLayout& layout, int rank, int ranks) {
  StepRecord record(shape_of(layout, ranks));
  const int64_t own = kLanes / ranks;
  for (int64_t lane = 0; lane < own; ++lane) {
    for (int64_t m = 0; m < kMicroBatches; ++m) {
      const int64_t batch = m * kLanes + rank * own + lane;
      record.set_loss(lane, m, number("loss", batch));
    }
    const int64_t global = rank * own + lane;
    if (global == 5) { record.set_reached(3); }
    if (global == 11) { record.set_flag(64); }
    for (int64_t i = 0; i < 3; ++i) { record.set_count(i, record.count(i) + global * (i + 1)); }
  }
  int64_t index = 0, next = 0;
  for (const FlatSegment& segment : layout.segments()) {
    if (layout.owner(segment, ranks) == rank) { record.set_square(next++, number("square", index)); }
    ++index;
  }
  return record;
}

StepRules rules_of() { return {.valid_tokens = 1000, .clip_set = {0, 1, 0, 1, 0}, .clip_norm = {0.5, 0}}; }

}  // namespace

TEST_CASE("a step is decided alike for every number of ranks", "[fast][threads]") {
  const BucketLayout layout(kSizes, kLanes, 1);
  // By plain loops.
  double loss = 0, squares[2] = {};
  for (int64_t batch = 0; batch < kLanes * kMicroBatches; ++batch) { loss += number("loss", batch); }
  for (size_t i = 0; i < layout.segments().size(); ++i) {
    squares[layout.segments()[i].parameter % 2] += number("square", static_cast<int64_t>(i));
  }
  for (const int ranks : allowed_sizes(kLanes)) {
    CAPTURE(ranks);
    std::mutex mutex;
    std::vector<StepDecision> decisions;
    run_ranks(ranks, [&](Communicator& comm) {
      HostExchange exchange(comm, DeviceKind::cpu);
      StepRecord own = record_of(layout, comm.rank(), ranks);
      own.set_history(comm.history());
      const StepDecision decision = decide_step(gather_records(exchange, own), layout, rules_of());
      const std::lock_guard lock(mutex);
      decisions.push_back(decision);
    });
    for (const StepDecision& d : decisions) {
      CHECK(d.loss == loss / 1000);
      CHECK(d.norm == std::vector{std::sqrt(squares[0]), std::sqrt(squares[1])});
      CHECK(d.clip[0] == 0.5 / (std::sqrt(squares[0]) + 1e-6));
      CHECK(d.clip[1] == 1);
      CHECK((d.applies && !d.stop));
      CHECK(d.reached == std::vector{false, false, false, true, false});
      CHECK(d.counts == std::vector<int64_t>{66, 132, 198});
      for (size_t i = 0; i < 70; ++i) { CHECK(d.flags[i] == (i == 64)); }
    }
  }
}

TEST_CASE("what one rank reports counts for all", "[fast]") {
  const BucketLayout layout(kSizes, kLanes, 1);
  const auto decide = [&](auto&& change) {
    std::vector<StepRecord> records;
    for (int rank = 0; rank < 3; ++rank) { records.push_back(record_of(layout, rank, 3)); }
    change(records);
    return decide_step(records, layout, rules_of());
  };
  using Records = std::vector<StepRecord>;
  CHECK(decide([](Records& r) { r[2].set_stop(); }).stop);
  CHECK_FALSE(decide([](Records& r) { r[1].set_loss(0, 2, NAN); }).applies);
  CHECK_FALSE(decide([](Records& r) { r[0].set_square(0, INFINITY); }).applies);
  CHECK_FALSE(decide([](Records& r) { r[0].set_square(0, NAN); }).applies);
  CHECK(decide([](Records&) {}).applies);
}

TEST_CASE("ranks with other collectives are named", "[fast]") {
  const BucketLayout layout(kSizes, kLanes, 1);
  std::vector<StepRecord> records;
  for (int rank = 0; rank < 4; ++rank) { records.push_back(StepRecord({.ranks = 4, .lanes = 4, .parameters = 5})); }
  records[1].set_history(7);
  records[3].set_history(9);
  const StepRules rules{.clip_set = {0, 0, 0, 0, 0}, .clip_norm = {}};
  CHECK_THROWS_AS(decide_step(records, layout, rules), CommError);
  CHECK_THROWS_WITH(decide_step(records, layout, rules), Catch::Contains("ranks 1, 3 differ"));
}

TEST_CASE("the sections of a record do not overlap", "[fast]") {
  const RecordShape shape{
      .ranks = 2, .lanes = 4, .micro_batches = 2, .squares = 3, .parameters = 65, .counts = 2, .flags = 1};
  CHECK(shape.words() == 2 + 4 + 3 + 2 + 2 + 1);
  StepRecord record(shape);
  record.set_history(1);
  record.set_stop();
  for (int64_t lane = 0; lane < 2; ++lane) {
    for (int64_t m = 0; m < 2; ++m) { record.set_loss(lane, m, static_cast<double>(10 * lane + m)); }
  }
  for (int64_t i = 0; i < 3; ++i) { record.set_square(i, static_cast<double>(200 + i)); }
  record.set_count(0, -3);
  record.set_count(1, 300);
  record.set_reached(64);
  record.set_flag(0);
  const StepRecord other(shape, record.words());
  CHECK((other.history() == 1 && other.stop()));
  for (int64_t lane = 0; lane < 2; ++lane) {
    for (int64_t m = 0; m < 2; ++m) { CHECK(other.loss(lane, m) == static_cast<double>(10 * lane + m)); }
  }
  for (int64_t i = 0; i < 3; ++i) { CHECK(other.square(i) == static_cast<double>(200 + i)); }
  CHECK((other.count(0) == -3 && other.count(1) == 300));
  for (int64_t i = 0; i < 65; ++i) { CHECK(other.reached(i) == (i == 64)); }
  CHECK(other.flag(0));
}
