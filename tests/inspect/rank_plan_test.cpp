#include "inspect/rank_plan.h"

#include "layers/model.h"
#include "tests/test.h"
#include "tests/train/run_fixture.h"

using namespace hebb;
using namespace hebb::testing;
using Catch::Contains;

namespace {

/// Resolved, with so many ranks of one row each.
RunConfig run_of(const TempFolder& folder, int ranks) {
  RunConfig config = test_run(folder);
  config.train.batch_size = ranks;
  config.train.micro_batch_size = 1;
  resolve(config, 1, false);
  return config;
}

double parameters(const RunConfig& config) {
  const Model model(config.model);
  double n = 0;
  for (const auto& p : model.params().all()) { n += p->trained() ? static_cast<double>(p->spec.shape.numel()) : 0; }
  return n;
}

}  // namespace

TEST_CASE("links are presets or numbers", "[fast]") {
  CHECK((read_link("nvlink").in == 330e9 && read_link("nvlink").out == 42e9));
  CHECK((read_link("pcie:eth100").in == 20e9 && read_link("pcie:eth100").out == 1.25e9));
  CHECK((read_link("12.5:3").in == 12.5e9 && read_link("12.5:3").out == 3e9));
  for (const char* wrong : {"", "nvlink:", "ib400", "1:2:3", "-1:2", "0:1", "nan:1"}) {
    CHECK_THROWS_WITH(read_link(wrong), Contains("--link") && Contains("nvlink, pcie; out: ib400, eth100"));
  }
}

TEST_CASE("a plan of ranks counts what each sends and holds", "[fast]") {
  const TempFolder folder;
  const RunConfig config = run_of(folder, 4);
  REQUIRE(config.train.precision == "fp64");
  const double bytes = 8 * parameters(config);
  const RankPlan plan =
      plan_ranks(config, {.ranks = 4, .ranks_per_host = 2, .link = read_link("nvlink"), .tokens_per_s = {}});
  CHECK((plan.lanes == 4 && plan.allowed == std::vector<int>{1, 2, 4} && plan.rows.size() == 3));
  const RankPlanRow &one = plan.rows[0], &two = plan.rows[1], &four = plan.rows[2];
  CHECK((one.reduce_bytes == 0 && one.gather_bytes == 0 && one.micro_batches == 4 && one.hosts == 1));
  CHECK((two.reduce_bytes == bytes / 2 && two.micro_batches == 2 && two.hosts == 1));
  CHECK((four.reduce_bytes == 3 * bytes / 4 && four.gather_bytes == four.reduce_bytes && four.micro_batches == 1 &&
         four.hosts == 2));
  // Values, gradients of one, two, three buffers, moments in shards.
  CHECK(four.state_bytes == Approx(bytes * (1 + 1 + 2.0 / 4)));
  CHECK(two.state_bytes == Approx(bytes * (1 + 2 + 2.0 / 2)));
  CHECK(one.state_bytes == Approx(bytes * (1 + 3 + 2)));
  CHECK_THAT(plan.text(), Contains("for 4 lanes: 1, 2, 4") && Contains("--tokens-per-s"));
}

TEST_CASE("a plan of ranks predicts times where the speed of a device is known", "[fast]") {
  const TempFolder folder;
  const RunConfig config = run_of(folder, 8);
  const auto efficiency = [&](const char* link, int per_host) {
    const RankPlan plan =
        plan_ranks(config, {.ranks = 8, .ranks_per_host = per_host, .link = read_link(link), .tokens_per_s = 1e5});
    CHECK(plan.rows[0].efficiency == Approx(1));  // one rank has nothing to wait for
    CHECK(plan.json().at("rows").items().back().at("efficiency").as_double() == plan.rows.back().efficiency);
    return plan.rows.back().efficiency;
  };
  CHECK(efficiency("nvlink", 8) > efficiency("0.001:0.001", 8));
  CHECK(efficiency("nvlink:ib400", 4) > efficiency("nvlink:0.0001", 4));
  CHECK_THROWS_WITH(efficiency("nvlink", 3), Contains("--ranks-per-host"));
  CHECK_THROWS_WITH(
      plan_ranks(config, {.ranks = 16, .ranks_per_host = 0, .link = read_link("nvlink"), .tokens_per_s = {}}),
      Contains("train.batch_size") && Contains("a multiple of 16 = 16 ranks x"));
}
