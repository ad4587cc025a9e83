#include "optim/schedule.h"

#include <cmath>

#include "core/error.h"
#include "tests/test.h"

namespace {

ScheduleConfig read(const std::string& json) {
  return Fields::read<ScheduleConfig>(parse_json(json, "test.json"), "schedule");
}

void check(const Schedule& schedule, const std::vector<double>& expected) {
  for (size_t s = 0; s < expected.size(); ++s) {
    INFO("step index " << s);
    // The same formula in another order of operations.
    CHECK(std::abs(schedule(static_cast<int64_t>(s)) - expected[s]) <= 1e-14 * std::abs(expected[s]));
  }
}

}  // namespace

TEST_CASE("a constant schedule warms up by equal parts and stays", "[fast]") {
  check(Schedule(read(R"({"type": "constant", "warmup_steps": 3})"), 0.3, 6),
        {0.3 / 3, 0.3 * 2 / 3, 0.3, 0.3, 0.3, 0.3});
  check(Schedule(ScheduleConfig(), 0.3, 2), {0.3, 0.3});
}

TEST_CASE("linear and cosine decay after the warmup and do not reach the minimum", "[fast]") {
  const double lo = 0.1, peak = 1.1;
  check(Schedule(read(R"({"type": "linear", "warmup_steps": 1, "min_lr": 0.1})"), peak, 5),
        {peak, peak, lo + 0.75, lo + 0.5, lo + 0.25});
  const double pi = std::acos(-1.0);
  check(Schedule(read(R"({"type": "cosine", "min_lr": 0.1})"), peak, 3),
        {peak, lo + (1 + std::cos(pi / 3)) / 2, lo + (1 + std::cos(2 * pi / 3)) / 2});
}

TEST_CASE("wsd stays at the peak until its last steps, with every shape of decay", "[fast]") {
  const double peak = 1.0, lo = 0.25;
  const auto with = [&](const std::string& decay) {
    return Schedule(
        read(R"({"type": "wsd", "warmup_steps": 1, "decay_steps": 4, "min_lr": 0.25, "decay": ")" + decay + "\"}"),
        peak, 6);
  };
  const auto mixed = [&](double y) { return lo + (peak - lo) * y; };
  check(with("linear"), {1, 1, 1, mixed(0.75), mixed(0.5), mixed(0.25)});
  check(with("one_minus_sqrt"), {1, 1, 1, mixed(0.5), mixed(1 - std::sqrt(0.5)), mixed(1 - std::sqrt(0.75))});
  check(with("sqrt"), {1, 1, 1, mixed(std::sqrt(0.75)), mixed(std::sqrt(0.5)), mixed(0.5)});
  check(with("inverse"), {1, 1, 1, 1 / (0.25 / lo + 0.75), 1 / (0.5 / lo + 0.5), 1 / (0.75 / lo + 0.25)});
  check(with("cosine"), {1, 1, 1, mixed((1 + std::sqrt(0.5)) / 2), mixed(0.5), mixed((1 - std::sqrt(0.5)) / 2)});
}

TEST_CASE("wsd with a decay of no steps stays at its peak", "[fast]") {
  for (const char* text :
       {R"({"type": "wsd", "decay_steps": 0, "min_lr": 0.25})", R"({"type": "wsd", "decay_fraction": 0})"}) {
    check(Schedule(read(text), 1.0, 3), {1, 1, 1});
  }
}

TEST_CASE("the default decay of wsd is a fifth of the run, rounded half up", "[fast]") {
  const ScheduleConfig config = read(R"({"type": "wsd"})");
  CHECK(config.resolved_decay_steps(10) == 2);
  CHECK(config.resolved_decay_steps(12) == 2);
  CHECK(config.resolved_decay_steps(13) == 3);
  CHECK(read(R"({"type": "wsd", "decay_fraction": 0.5})").resolved_decay_steps(7) == 4);
}

TEST_CASE("schedules that cannot mean what they say are refused", "[fast]") {
  CHECK_THROWS_WITH(read(R"({"type": "cosin"})"), Catch::Contains("schedule.type") && Catch::Contains("cosine"));
  CHECK_THROWS_WITH(
      read(R"({"type": "constant", "min_lr": 0.1})"),
      Catch::EndsWith("schedule.min_lr: found 0.1, expected 0.0 (default): it acts only with a type that decays"));
  CHECK_NOTHROW(read(R"({"type": "constant", "min_lr": 0})"));  // the default, as resolved configurations write it
  CHECK_THROWS_WITH(read(R"({"type": "cosine", "decay_steps": 3})"),
                    Catch::EndsWith("schedule.decay_steps: needs type \"wsd\" (found \"cosine\")"));
  CHECK_THROWS_WITH(read(R"({"type": "wsd", "decay": "inverse"})"), Catch::Contains("schedule.min_lr"));
  CHECK_THROWS_WITH(read(R"({"type": "wsd", "decay_steps": 3, "decay_fraction": 0.2})"),
                    Catch::Contains("schedule.decay_fraction: give either decay_steps or decay_fraction, not both"));
}

TEST_CASE("a schedule that is written can be read again", "[fast]") {
  for (const char* text :
       {R"({"type": "cosine", "warmup_steps": 2})", R"({"type": "wsd", "decay_steps": 5, "decay": "sqrt"})"}) {
    const Json written = Fields::write(read(text));
    CHECK(Fields::write(read(written.dump())) == written);
  }
}
