// Limits of the norm kernels.
#include "support.h"

using namespace hebb_test;
using hebb::NormKind;

namespace {

TEST_CASE("a row too wide for the norm kernels is an error that names the limit", "[fast]") {
  TestStream stream;
  DeviceArray<float> x(9000), rstd(1);
  const auto run = [&] {
    device::run(stream, hebb::NormForward{.y = x.tensor({1, 9000}),
                                          .h_out = {},
                                          .mean = {},
                                          .rstd = rstd.tensor(),
                                          .h = x.tensor({1, 9000}),
                                          .branch = {},
                                          .weight = x.tensor(),
                                          .bias = {},
                                          .rho = 1,
                                          .eps = 1e-5,
                                          .kind = NormKind::rms});
  };
  CHECK_THROWS_WITH(run(), "model.hidden_size: found 9000, expected at most 8192 on cuda");
}

TEST_CASE("norms of no rows launch nothing", "[fast]") {
  TestStream stream;
  DeviceArray<float> weight(7);
  hebb::NormForward args{};
  args.h.shape = {0, 7};
  args.weight = weight.tensor();
  CHECK_NOTHROW(device::run(stream, args));
}

}  // namespace
