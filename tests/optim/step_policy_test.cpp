#include "optim/step_policy.h"

#include "core/error.h"
#include "tests/test.h"

TEST_CASE("a loss far outside the last 128 is a spike, measured before it is added", "[fast]") {
  SpikeWindow window;
  for (int i = 0; i < 128; ++i) {
    CHECK_FALSE(window.add(i % 2 == 0 ? 1.0 : 3.0));  // mean 2, standard deviation 1
  }
  CHECK_FALSE(window.add(8.0));  // z = 6 is no spike
  SpikeWindow again;
  again.restore(window.values());
  CHECK(again.values() == window.values());
  SpikeWindow fresh;
  std::vector<double> values;
  for (int i = 0; i < 128; ++i) { values.push_back(i % 2 == 0 ? 1.0 : 3.0); }
  fresh.restore(values);
  const auto spike = fresh.add(9.0);
  REQUIRE(spike);
  CHECK(*spike == Catch::Approx(7.0));
  fresh.restore(values);
  CHECK(*fresh.add(-5.0) == Catch::Approx(-7.0));
}

TEST_CASE("losses that are not finite and windows without spread give no spike", "[fast]") {
  SpikeWindow window;
  window.restore(std::vector<double>(128, 2.0));
  CHECK_FALSE(window.add(std::nan("")));
  CHECK(window.values().size() == 128);
  CHECK_FALSE(window.add(100.0));
  SpikeWindow young;
  young.restore(std::vector<double>(127, 2.0));
  CHECK_FALSE(young.add(100.0));
}

TEST_CASE("skipped steps are counted, and too many in a row are an error that names the step", "[fast]") {
  SkipPolicy policy(false, 2);
  policy.skipped(4, "the loss is nan");
  policy.skipped(5, "the loss is nan");
  policy.applied();
  policy.skipped(7, "the loss is nan");
  policy.skipped(8, "the loss is nan");
  CHECK(policy.total() == 4);
  CHECK(policy.consecutive() == 2);
  CHECK_THROWS_WITH(policy.skipped(9, "the loss is inf"),
                    Catch::Contains("step 10: the loss is inf") && Catch::Contains("found 3 skipped"));
}

TEST_CASE("stop ends the run at the first number that is not finite, not at an empty batch", "[fast]") {
  SkipPolicy policy(true, 5);
  policy.skipped(0, "no target of the batch is valid", false);
  CHECK(policy.total() == 1);
  CHECK_THROWS_AS(policy.skipped(1, "the loss is nan"), NumericError);
}
