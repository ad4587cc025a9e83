// `train.allow_tf32` on the device "cuda" (a GPU, or the SIMT emulator).
#include "kernels/gemm/gemm.h"
#include "tests/device/device_run.h"

TEST_CASE("a stream that allows TF32 leaves every other one as it was") {
  if (!has_device()) { return; }
  // 1 + 2^-12 is 1 in TF32: its square tells whether operands were rounded.
  constexpr int64_t n = 256;
  const std::vector<float> values(n * n, 1.0f + 0x1p-12f);
  const auto first = [&](Stream& stream) {
    Arena arena(DeviceKind::cuda);
    const Buffer a(arena, {n, n}, DType::f32, "a"), c(arena, {n, n}, DType::f32, "c");
    copy_to_device(stream, a, values.data());
    run(stream, Gemm{.c = c, .a = a, .b = a, .m = n, .n = n, .k = n, .alpha = 1.0 / n});
    std::vector<float> result(n * n);
    copy_to_host(stream, result.data(), c);
    return static_cast<double>(result[0]);
  };
  Stream exact{DeviceKind::cuda}, rounding{DeviceKind::cuda};
  rounding.allows_tf32 = true;
  const double square = (1 + 0x1p-12) * (1 + 0x1p-12);
  CHECK(first(exact) == Approx(square).epsilon(1e-6));
  CHECK(std::abs(first(rounding) - square) > 1e-4);
  CHECK(first(exact) == Approx(square).epsilon(1e-6));
}

FOLDER_TEST("allow_tf32 rounds the operands of fp32 products in that run, and only there") {
  if (!has_device()) { return; }
  const auto run = [](const char* allow_tf32) {  // of products that cuBLASLt has kernels in TF32 for
    return device_run(
        R"({"model": {"hidden_size": 128, "layers": {"att": {"head_dim": 64}, "mlp": {"intermediate_size": 256}}},
                          "train": {"log_every": 1, "allow_tf32": )" +
        std::string(allow_tf32) + "}}");
  };
  Heard heard;
  REQUIRE(run_in(folder / "exact", run("false")) == 0);
  REQUIRE(run_in(folder / "rounded", run("true"), heard) == 0);
  REQUIRE(run_in(folder / "again", run("false")) == 0);
  CHECK(heard.has("TF32 in matrix products"));
  const std::vector<double> exact = metric(folder / "exact", "loss"), rounded = metric(folder / "rounded", "loss");
  REQUIRE(rounded.size() == 3);
  CHECK(rounded != exact);
  // 2^-11 an operand, three steps of lr 0.01.
  for (size_t i = 0; i < 3; ++i) { CHECK(std::abs(rounded[i] - exact[i]) < 5e-3); }
  CHECK(metric(folder / "again", "loss") == exact);
}
