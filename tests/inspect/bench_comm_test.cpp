#include "inspect/bench_comm.h"

#include "comm/thread_communicator.h"
#include "tests/temp_folder.h"
#include "tests/train/process.h"

TEST_CASE("collectives are measured by sizes that buckets can have", "[fast]") {
  std::vector<CommSpeed> speeds;
  run_ranks(3, [&](Communicator& communicator) {
    const auto own = measure_comm(communicator, {.sizes = {1 << 20, 1000, 1 << 20}, .seconds = 0.001});
    if (communicator.rank() == 0) { speeds = own; }
  });
  REQUIRE(speeds.size() == 6);  // two sizes
  const int64_t unit = 3 * 16384 * 4;
  for (size_t i = 0; i < speeds.size(); ++i) {
    const CommSpeed& s = speeds[i];
    CHECK(s.bytes == (i < 3 ? unit : 6 * unit));
    CHECK(s.sent_bytes == Approx(static_cast<double>(s.bytes) * 2 / 3));
    CHECK((0 < s.best_ms && s.best_ms <= s.median_ms));
  }
  CHECK(speeds[1].name == "ordered reduction");
  CHECK_THAT(describe(speeds, 3, "threads"), Contains("for hebb plan: --link "));
}

FOLDER_TEST("hebb bench --comm prints a line for each collective and size", "[fast]") {
  for (const std::string engine : {"threads", "mpi"}) {
    if (engine == "mpi" && !has_mpi()) { continue; }
    const Result result = run_hebb(
        {"bench", "--comm", "--ranks", "2", "--engine", engine, "--bucket", "3", "--seconds", "0.001", "--json"},
        folder / engine);
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    const Json json = parse_json(result.out, "bench");
    CHECK(json.at("ranks").as_int() == 2);
    CHECK(json.at("engine").as_string() == engine);
    CHECK(json.at("collectives").items().size() == (engine == "mpi" ? 20 : 15));  // 1, 3, 4, 16, 64 MiB
    for (const Json& row : json.at("collectives").items()) { CHECK(row.at("gb_per_s").as_double() > 0); }
  }
  const Result refused = run_hebb({"bench", "--ranks", "2"}, folder / "refused");
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("--comm"));
}
