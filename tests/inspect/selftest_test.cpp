#include <algorithm>

#include "inspect/selftest.h"
#include "tests/test.h"

namespace {

TraceOutput output_of(double gradient) {
  TraceOutput out;
  out.logits.values = {1.0, -2.0, 0.5};
  out.loss = 3.0;
  out.grads["w"].values = {0.0, gradient};
  out.grads["v"].values = {100.0};
  out.after["f"].values = {4.0};
  return out;
}

std::string verdict(const TraceOutput& found) {
  return judge("x", found, output_of(1.0), selftest_limits(DType::f32)).failure;
}

}  // namespace

TEST_CASE("the self-test passes on the CPU in fp32 and bf16, for every type of layer", "[fast]") {
  const std::vector<std::string> names = selftest_names();
  for (const LayerType& type : layer_types()) {
    INFO(type.name);
    CHECK(std::count(names.begin(), names.end(), type.name) == 1);
  }
  for (const std::string& name : names) {
    const SelftestResult r = selftest(name, {DeviceKind::cpu, DType::f32});
    INFO(name);
    CHECK(r.failure.empty());
    CHECK(selftest(name, {DeviceKind::cpu, DType::bf16}).failure == "");
    CHECK(r.logits > 0);  // fp32 rounds
    CHECK(r.logits < 1e-5);
    CHECK((r.decoding > 0) == (name != "optimizer"));
  }
}

TEST_CASE("the self-test names what differs by too much", "[fast]") {
  CHECK(verdict(output_of(1.0)).empty());
  CHECK(verdict(output_of(1.0 + 5e-5)).empty());
  CHECK_THAT(verdict(output_of(1.5)), Contains("gradients of w differ by 5.0e-01, expected at most 1e-03"));
  TraceOutput out = output_of(1.0);
  out.logits.values[2] = NAN;
  CHECK_THAT(verdict(out), Contains("logits differ by inf"));
  out = output_of(1.0);
  out.loss = 3.01;
  CHECK_THAT(verdict(out), Contains("losses"));
  out = output_of(1.0);
  out.grads.erase("v");
  CHECK_THAT(verdict(out), Contains("gradients of v"));
  out = output_of(1.0);
  out.after["f"].values = {4.1};
  CHECK_THAT(verdict(out), Contains("fast weights f"));
}
