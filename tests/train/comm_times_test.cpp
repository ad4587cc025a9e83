// What a run of several ranks says about its communication (docs/formats/metrics.md).
#include "train/comm_times.h"
#include "comm/thread_communicator.h"
#include "tests/test.h"

TEST_CASE("times of ranks are compared step by step", "[fast]") {
  // Rank 1 is slow in the first step, rank 2 in the second: each waits for the other.
  const std::vector<RankTimes> of = {
      {.peak_bytes = 7, .sent_bytes = 200, .steps = {{1.0, 0.5}, {1.0, 0.4}}},
      {.peak_bytes = 9, .sent_bytes = 200, .steps = {{1.0, 0.1}, {1.0, 0.3}}},
      {.peak_bytes = 8, .sent_bytes = 220, .steps = {{1.0, 0.5}, {1.0, 0.1}}},
  };
  const CommTimes times = compare_times(of, true);
  CHECK((times.ranks == 3 && times.peak_bytes == 9 && times.sent_bytes == 110));
  CHECK(times.exposed_ms == Approx(100));
  CHECK(times.wait_ms[0] == Approx(100));
  CHECK(times.wait_ms[1] == Approx(1e3 * (0.35 + 0.1 + 0.2) / 3));
  CHECK(times.wait_ms[2] == Approx(350));
  CHECK(times.slowest == 1);
  CHECK(times.skew == Approx(0.8 / 0.7));
  const Json json = times.json();
  CHECK(json.at("gb_per_s").as_double() == Approx(110 / 0.1 * 1e-9));
  CHECK(json.at("wait_ms").items().size() == 3);
  CHECK(compare_times(of, false).json().dump() == R"({"ranks":3,"sent_bytes":110})");
}

TEST_CASE("every rank knows the times of all", "[fast]") {
  run_ranks(3, [](Communicator& communicator) {
    HostExchange host(communicator, DeviceKind::cpu);
    const int rank = communicator.rank();
    const auto all = gather_times(
        host, {.peak_bytes = rank, .sent_bytes = 10 * rank, .steps = {{1.5 * rank, 0.5}, {2.0, 0.25 * rank}}});
    REQUIRE(all.size() == 3);
    for (int r = 0; r < 3; ++r) {
      const RankTimes& of = all[static_cast<size_t>(r)];
      const bool is_his = of.peak_bytes == r && of.sent_bytes == 10 * r && of.steps.size() == 2 &&
                          of.steps[0].seconds == 1.5 * r && of.steps[1].comm_seconds == 0.25 * r;
      if (!is_his) { throw std::runtime_error("times of another rank"); }  // assertions belong to the main thread
    }
  });
}

TEST_CASE("a rank that others wait for is named once, after twenty lines", "[fast]") {
  SkewWatch watch;
  const auto line = [](int slowest, double skew) {
    return CommTimes{.is_timed = true, .slowest = slowest, .skew = skew};
  };
  for (int i = 0; i < 19; ++i) { CHECK_FALSE(watch.add(line(2, 1.3))); }
  CHECK_FALSE(watch.add(line(1, 1.3)));  // another one
  for (int i = 0; i < 18; ++i) { CHECK_FALSE(watch.add(line(1, 1.3))); }
  CHECK(watch.add(line(1, 1.3)));
  for (int i = 0; i < 40; ++i) { CHECK_FALSE(watch.add(line(1, 1.3))); }
  SkewWatch other;
  for (int i = 0; i < 40; ++i) { CHECK_FALSE(other.add(line(0, i % 10 == 0 ? 1.0 : 1.5))); }
}
