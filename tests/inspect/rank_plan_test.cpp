#include "inspect/rank_plan.h"

#include "tests/test.h"
#include "tests/train/step_account.h"

namespace {

/// Resolved, with so many ranks of one row each.
RunConfig run_of(const TempFolder& folder, int ranks) {
  RunConfig config = test_run(folder);
  config.train.batch_size = ranks;
  config.train.micro_batch_size = 1;
  resolve(config, 1, false);
  return config;
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

FOLDER_TEST("a plan of ranks is what the ranks reserve and send, to the byte", "[fast]") {
  const int zero = GENERATE(-1, 0);  // -1: not given
  const std::string reduce = GENERATE("fp32", "bf16");
  const bool overlap = GENERATE(false, true);
  CAPTURE(zero, reduce, overlap);
  const auto make = [&] {
    RunConfig config = run_of(folder, 4);
    if (zero == 0) { config.source = parse_json(R"({"train": {"zero": 0}})", "run.json"); }
    config.train.precision = "fp32";
    config.train.comm = CommConfig{};
    config.train.comm->reduce = reduce;
    config.train.comm->overlap = overlap;  // not by device: `auto` may find one that the ranks here do not use
    return config;
  };
  const RankPlan plan = plan_ranks(make(), {.ranks = 4, .ranks_per_host = 2, .link = read_link("nvlink")});
  REQUIRE((plan.lanes == 4 && plan.allowed == std::vector<int>{1, 2, 4} && plan.rows.size() == 3));
  for (const RankPlanRow& row : plan.rows) {
    CAPTURE(row.ranks);
    CHECK(row.zero == (row.ranks > 1 && zero != 0 ? 1 : 0));
    CHECK((row.micro_batches == 4 / row.ranks && row.hosts == (row.ranks == 4 ? 2 : 1)));
    const StepAccount account = account_of_step(make(), row.ranks, row.zero, DeviceKind::cpu);
    CHECK(account.state_bytes == row.memory.state_bytes());
    CHECK(account.work_bytes == row.memory.work_bytes);
    CHECK(account.exchanged_bytes == row.reduce_bytes);
    CHECK(account.gathered_bytes == row.gather_bytes);
  }
  const Json rows = plan.json().at("rows");
  CHECK(rows.items()[1].at("memory").at("total").as_int() == plan.rows[1].memory.total_bytes());
  CHECK_THAT(plan.text(), Contains("for 4 lanes: 1, 2, 4") && Contains("--tokens-per-s"));
}

FOLDER_TEST("a plan of ranks that share a memory has one lane a rank", "[fast]") {
  const auto make = [&] {
    RunConfig config = run_of(folder, 4);
    config.model =
        Fields::read<ModelConfig>(parse_json(R"({"vocab_size": 29, "hidden_size": 8, "num_layers": 1, "layers": {
                   "att": {"type": "attention", "num_heads": 2, "head_dim": 4},
                   "m": {"type": "swiglu", "intermediate_size": 8},
                   "fw": {"type": "fwpkm", "num_subkeys": 4, "key_dim": 4, "value_dim": 4, "top_k": 2, "chunk_size": 6}},
                   "pattern": [{"mixer": "att", "ffn": "m", "memory": "fw"}]})",
                                             "model.json"),
                                  "model");
    return config;
  };
  RankPlanOptions options{.ranks = 4, .link = read_link("nvlink")};
  const RankPlan four = plan_ranks(make(), options);
  REQUIRE((four.allowed == std::vector<int>{4} && four.rows.size() == 1));
  const StepAccount account = account_of_step(make(), 4, 1, DeviceKind::cpu);
  CHECK(account.work_bytes == four.rows[0].memory.work_bytes);
  CHECK(account.state_bytes == four.rows[0].memory.state_bytes());
  options.ranks = 2;
  RunConfig config = make();
  config.train.lanes = 4;
  CHECK_THROWS_WITH(plan_ranks(std::move(config), options),
                    Contains("train.lanes: found 4, expected 2: blocks.0.memory"));
}

FOLDER_TEST("a plan of ranks keeps the lanes of the configuration", "[fast]") {
  RunConfig config = run_of(folder, 8);
  config.train.lanes = 8;
  const RankPlanOptions options{.ranks = 2, .link = read_link("nvlink")};
  const RankPlan plan = plan_ranks(std::move(config), options);
  CHECK((plan.lanes == 8 && plan.rows.size() == 2 && plan.rows[1].micro_batches == 4));
  RunConfig other = run_of(folder, 6);
  other.train.lanes = 6;
  CHECK_THROWS_WITH(plan_ranks(std::move(other), options), Contains("found 2 ranks, expected 1, 3, 6 with 6 lanes"));
}

FOLDER_TEST("a plan of ranks predicts times where the speed of a device is known", "[fast]") {
  const auto config = [&] { return run_of(folder, 8); };
  const auto efficiency = [&](const char* link, int per_host) {
    const RankPlan plan =
        plan_ranks(config(), {.ranks = 8, .ranks_per_host = per_host, .link = read_link(link), .tokens_per_s = 1e5});
    CHECK(plan.rows[0].efficiency == Approx(1));  // one rank has nothing to wait for
    CHECK(plan.json().at("rows").items().back().at("efficiency").as_double() == plan.rows.back().efficiency);
    return plan.rows.back().efficiency;
  };
  CHECK(efficiency("nvlink", 8) > efficiency("0.001:0.001", 8));
  CHECK(efficiency("nvlink:ib400", 4) > efficiency("nvlink:0.0001", 4));
  CHECK_THROWS_WITH(efficiency("nvlink", 3), Contains("--ranks-per-host"));
  CHECK_THROWS_WITH(plan_ranks(config(), {.ranks = 16, .link = read_link("nvlink")}),
                    Contains("train.batch_size") && Contains("a multiple of 16 = 16 lanes x"));
}

TEST_CASE("the hours of a plan of ranks are those of all steps", "[fast]") {
  RankPlan plan;
  plan.is_timed = true;
  plan.steps = 7200;
  plan.rows.push_back({.ranks = 2, .memory = {}, .step_seconds = 0.5, .exposed_seconds = 0.002});
  const Json row = plan.json().at("rows").items()[0];
  CHECK(row.at("hours").as_double() == 1);
  CHECK(row.at("step_ms").as_double() == 500);
  CHECK(row.at("exposed_ms").as_double() == 2);
  CHECK_THAT(plan.text(), Contains("500.0") && Contains("01:00:00"));
}

FOLDER_TEST("gradients leave beside the pass where each rank has one lane alone", "[fast]") {
  const auto seconds = [&](bool overlaps) {
    RunConfig config = run_of(folder, 4);
    config.source = parse_json(R"({"train": {"zero": 0}})", "run.json");
    config.train.zero = 0;  // values come back with the gradients: nothing is sent beside the forward pass
    config.train.comm = CommConfig{};
    config.train.comm->overlap = overlaps;
    std::vector<double> found;
    for (const RankPlanRow& row :
         plan_ranks(std::move(config), {.ranks = 4, .link = read_link("1:1"), .tokens_per_s = 1e5}).rows) {
      found.push_back(row.step_seconds);
    }
    return found;
  };
  const std::vector<double> with = seconds(true), without = seconds(false);
  REQUIRE(with.size() == 3);
  CHECK((with[0] == without[0] && with[1] == without[1]));
  CHECK(with[2] != without[2]);
}
