#include "comm/communicator.h"

#include <atomic>

#include "comm/thread_communicator.h"
#include "core/arena.h"
#include "tests/comm/engine_checks.h"
#include "tests/test.h"

TEST_CASE("one rank and ranks that are threads exchange what they say", "[fast][threads]") {
  SelfCommunicator self;
  check_engine(self);
  for (const int ranks : {1, 2, 4, 6}) {
    CAPTURE(ranks);
    std::atomic<int> seen{0};
    run_ranks(ranks, [&](Communicator& comm) {
      expect(comm.size() == ranks, "all ranks are counted");
      seen += 1 << comm.rank();
      check_engine(comm);
    });
    CHECK(seen == (1 << ranks) - 1);
  }
}

TEST_CASE("the error of a rank wakes those that wait for it", "[fast][threads]") {
  const auto run = [](auto&& body) {
    std::atomic<int> woken{0};
    std::string what;
    try {
      run_ranks(4, [&](Communicator& comm) {
        Stream stream;
        try {
          body(comm, stream);
          for (int i = 0; i < 3; ++i) { comm.barrier(stream); }
        } catch (const CommError&) {
          ++woken;
          throw;
        }
      });
    } catch (const std::exception& error) { what = error.what(); }
    return std::pair(what, woken.load());
  };
  const auto [thrown, woken] = run([](Communicator& comm, Stream&) {
    if (comm.rank() == 2) { throw DataError("shard", "damaged"); }
  });
  CHECK(thrown == "shard: damaged");
  CHECK(woken == 3);
  const auto [differ, all] = run([](Communicator& comm, Stream& stream) {
    std::vector<int64_t> one(1);
    if (comm.rank() == 1) { comm.sum(stream, tensor_of(one)); }
  });
  CHECK_THAT(differ, Catch::Contains("collectives differ") && Catch::Contains("sum of 8"));
  CHECK(all == 4);
  const auto [sizes, four] = run([](Communicator& comm, Stream& stream) {
    std::vector<uint8_t> send(8), receive(8);
    const std::vector<int64_t> even{2, 2, 2, 2}, odd{1, 3, 2, 2};
    comm.all_to_all(stream, tensor_of(receive), even, tensor_of(send), comm.rank() == 3 ? odd : even);
  });
  CHECK_THAT(sizes, Catch::Contains("expects 2 bytes from rank 3, which sends 1"));
  CHECK(four == 4);
}

TEST_CASE("a rank that ends early is named", "[fast][threads]") {
  CHECK_THROWS_WITH(run_ranks(2,
                              [](Communicator& comm) {
                                Stream stream;
                                if (comm.rank() == 0) { comm.barrier(stream); }
                              }),
                    Catch::Contains("rank 1 has ended"));
}

TEST_CASE("histories tell other orders and sizes of collectives apart", "[fast]") {
  const auto history = [](auto&& calls) {
    SelfCommunicator comm;
    Stream stream;
    calls(comm, stream);
    return comm.history();
  };
  std::vector<int64_t> one(1), two(2);
  const uint64_t sum_barrier = history([&](auto& c, auto& s) { c.sum(s, tensor_of(one)), c.barrier(s); });
  CHECK(sum_barrier == history([&](auto& c, auto& s) { c.sum(s, tensor_of(one)), c.barrier(s); }));
  CHECK(sum_barrier != history([&](auto& c, auto& s) { c.barrier(s), c.sum(s, tensor_of(one)); }));
  CHECK(sum_barrier != history([&](auto& c, auto& s) { c.sum(s, tensor_of(two)), c.barrier(s); }));
  CHECK(sum_barrier != history([&](auto& c, auto& s) { c.sum(s, tensor_of(one)); }));
}

TEST_CASE("nothing moves on the counting device", "[fast]") {
  SelfCommunicator comm;
  Stream stream{DeviceKind::count};
  const Tensor nowhere{reinterpret_cast<void*>(64), DType::i64, {3}};
  comm.sum(stream, nowhere);
  comm.all_gather(stream, nowhere, {reinterpret_cast<void*>(1024), DType::i64, {3}});
  CHECK(comm.history() != 0);
}

TEST_CASE("ranks count what they send to others", "[fast]") {
  std::vector<CommCounts> counts(3);
  run_ranks(3, [&](Communicator& communicator) {
    Stream stream;
    Arena arena(DeviceKind::cpu, "test");
    const Buffer whole(arena, {12}, DType::f32, "whole"), other(arena, {12}, DType::f32, "other"),
        integers(arena, {2}, DType::i64, "integers");
    fill_zero(stream, whole);
    fill_zero(stream, integers);
    communicator.all_to_all(stream, other, whole);
    communicator.all_gather(stream, whole, other.tensor().slice(0, {4}));
    communicator.broadcast(stream, whole, 1);
    communicator.sum(stream, integers);
    communicator.barrier(stream);
    counts[static_cast<size_t>(communicator.rank())] = communicator.counts();
  });
  for (size_t r = 0; r < 3; ++r) {
    CHECK(counts[r].exchanged_bytes == 2 * 16);
    CHECK(counts[r].gathered_bytes == 2 * 16);
    CHECK(counts[r].other_bytes == (r == 1 ? 2 * 48 : 0) + 2 * 16);
    CHECK(counts[r].seconds > 0);
  }
}
