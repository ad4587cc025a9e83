#include "comm/ordered_reduce.h"

#include <iterator>

#include "comm/thread_communicator.h"
#include "core/bfloat.h"
#include "kernels/ordered_sum/ordered_sum.h"
#include "tests/comm/engine_checks.h"
#include "tests/test.h"

TEST_CASE("allowed numbers of ranks are lanes halved, and one", "[fast]") {
  CHECK(allowed_sizes(1) == std::vector{1});
  CHECK(allowed_sizes(6) == std::vector{1, 3, 6});
  CHECK(allowed_sizes(8) == std::vector{1, 2, 4, 8});
  CHECK(allowed_sizes(12) == std::vector{1, 3, 6, 12});
  CHECK(allowed_sizes(7) == std::vector{1, 7});
  check_lanes(12, 6, "train.lanes");
  CHECK_THROWS_AS(check_lanes(6, 4, "train.lanes"), ConfigError);
  CHECK_THROWS_WITH(check_lanes(6, 2, "train.lanes"),
                    Catch::Contains("train.lanes") && Catch::Contains("2 ranks") && Catch::Contains("1, 3, 6"));
}

TEST_CASE("a rank keeps few buffers and adds its lanes in order, step after step", "[fast]") {
  CHECK(LaneSums::buffers(1) == 1);
  CHECK(LaneSums::buffers(2) == 2);
  CHECK(LaneSums::buffers(8) == 4);
  CHECK(LaneSums::buffers(6) == 3);
  CHECK(LaneSums::buffers(12) == 4);
  for (const int lanes : {1, 2, 3, 4, 5, 6, 8, 12, 20, 28, 64}) {
    CAPTURE(lanes);
    constexpr int64_t kCount = 50;
    std::vector<std::vector<float>> memory(static_cast<size_t>(LaneSums::buffers(lanes)), std::vector<float>(kCount));
    std::vector<Tensor> buffers;
    for (auto& m : memory) { buffers.push_back(tensor_of(m)); }
    LaneSums sums(lanes, buffers);
    Stream stream;
    const std::vector<float> expected = ordered_sum_of_lanes<float>(lanes, kCount);
    for (int step = 0; step < 3; ++step) {
      for (int lane = 0; lane < lanes; ++lane) {
        const std::vector<float> g = lane_gradients<float>(lane, kCount);
        std::copy(g.begin(), g.end(), sums.next().as<float>());
        sums.finish(stream);
      }
      const float* total = sums.total().as<float>();
      CHECK(same_bits(std::vector<float>(total, total + kCount), expected));
    }
  }
}

TEST_CASE("the kernel adds parts in the stated order", "[fast]") {
  const auto check = [](auto zero, int parts, int64_t count) {
    using S = decltype(zero);
    CAPTURE(parts, count);
    std::vector<S> rows, sum(static_cast<size_t>(count));
    for (int p = 0; p < parts; ++p) {
      const std::vector<S> row = lane_gradients<S>(p, count);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    Stream stream;
    run(stream, OrderedSum{tensor_of(sum), tensor_of(rows).view({parts, count})});
    CHECK(same_bits(sum, ordered_sum_of_lanes<S>(parts, count)));
  };
  for (const int parts : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 64}) {
    for (const int64_t count : {1, 63, 1025}) {
      check(float{}, parts, count);
      check(double{}, parts, count);
    }
  }
  for (const int64_t count : {16383, 16384, 16385, 70000}) { check(float{}, 6, count); }
}

TEST_CASE("sums of signed zeros, subnormals, infinities and NaN are IEEE's", "[fast]") {
  const float tiny = 1e-45f, inf = INFINITY;
  std::vector<float> rows{-0.0f, tiny, inf, inf, NAN, 0.0f, -0.0f, tiny, 1.0f, -inf, 1.0f, -0.0f}, sum(6);
  Stream stream;
  run(stream, OrderedSum{tensor_of(sum), tensor_of(rows).view({2, 6})});
  CHECK((sum[0] == 0 && std::signbit(sum[0])));
  CHECK(sum[1] == 2 * tiny);
  CHECK(sum[2] == inf);
  CHECK(std::isnan(sum[3]));
  CHECK(std::isnan(sum[4]));
  CHECK((sum[5] == 0 && !std::signbit(sum[5])));
}

TEST_CASE("sums of squares depend on the segment alone, not on where it lies", "[fast]") {
  std::vector<float> x = lane_gradients<float>(0, 40000);
  std::copy(x.begin(), x.begin() + 16384, x.begin() + 17001);
  std::vector<int64_t> begin{0, 17001, 5, 100}, end{16384, 33385, 5, 101};
  std::vector<double> partial(4, -1);
  Stream stream;
  run(stream, SegmentSquares{
                  .partial = tensor_of(partial), .x = tensor_of(x), .begin = tensor_of(begin), .end = tensor_of(end)});
  double expected = 0;
  for (int i = 0; i < 16384; ++i) { expected += static_cast<double>(x[i]) * static_cast<double>(x[i]); }
  CHECK(partial[0] == Approx(expected).epsilon(1e-12));
  CHECK(partial[1] == partial[0]);
  CHECK(partial[2] == 0);
  CHECK(partial[3] == static_cast<double>(x[100]) * static_cast<double>(x[100]));
}

TEST_CASE("gradients have the same bits for every allowed number of ranks and every size of buckets",
          "[fast][threads]") {
  const std::vector<int64_t> sizes{70000, 1, 0, 16385, 300000, 63};
  for (const int lanes : {8, 12}) {
    for (const int ranks : {1, 2, 4, 6}) {
      const std::vector<int> allowed = allowed_sizes(lanes);
      if (std::find(allowed.begin(), allowed.end(), ranks) == allowed.end()) { continue; }
      run_ranks(ranks, [&](Communicator& comm) {
        for (const int64_t mib : {1, 64}) { check_reduction<float>(comm, lanes, sizes, mib); }
        check_reduction<double>(comm, lanes, {5}, 1);
      });
    }
  }
}

TEST_CASE("gradients that travel in bf16 are rounded once a rank and added in fp32", "[fast]") {
  const int lanes = 8;
  const BucketLayout layout({70000, 300000}, lanes, 1);
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    std::vector<float> parts, expected(static_cast<size_t>(layout.size())), found;
    for (int rank = 0; rank < ranks; ++rank) {  // the sums of each rank's lanes, rounded
      const int own = lanes / ranks;
      std::vector<float> rows;
      for (int lane = rank * own; lane < (rank + 1) * own; ++lane) {
        const std::vector<float> lane_values = lane_gradients<float>(lane, layout.size());
        rows.insert(rows.end(), lane_values.begin(), lane_values.end());
      }
      std::vector<float> sum(static_cast<size_t>(layout.size()));
      Stream stream;
      run(stream, OrderedSum{tensor_of(sum), tensor_of(rows).view({own, layout.size()})});
      std::transform(sum.begin(), sum.end(), std::back_inserter(parts),
                     [](float x) { return widened(nearest_bf16(x)); });
    }
    Stream stream;
    run(stream, OrderedSum{tensor_of(expected), tensor_of(parts).view({ranks, layout.size()})});
    run_ranks(ranks, [&](Communicator& comm) {
      const std::vector<float> own = reduced_gradients<float>(comm, layout, lanes, DType::bf16);
      if (comm.rank() == 0) { found = own; }
    });
    CHECK(same_bits(found, expected));
    const std::vector<float> exact = ordered_sum_of_lanes<float>(lanes, layout.size());
    double difference = 0, size = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      difference += std::pow(double(found[i]) - double(exact[i]), 2);
      size += std::pow(double(exact[i]), 2);
    }
    CHECK(difference > 0);
    CHECK(std::sqrt(difference / size) < 1.0 / 256);
  }
}

TEST_CASE("gradients of random sizes have the same bits for all ranks", "[threads]") {
  Rng rng(17, "sizes");
  for (int round = 0; round < 6; ++round) {
    std::vector<int64_t> sizes(rng.below(9) + 1);
    for (int64_t& size : sizes) { size = static_cast<int64_t>(rng.below(90000)); }
    const int lanes = static_cast<int>(rng.below(8)) + 1;
    CAPTURE(round, lanes, sizes);
    for (const int ranks : allowed_sizes(lanes)) {
      run_ranks(ranks, [&](Communicator& comm) { check_reduction<float>(comm, lanes, sizes, 1); });
    }
  }
}
