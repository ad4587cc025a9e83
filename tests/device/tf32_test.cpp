// `train.allow_tf32` on the device "cuda" (a GPU, or the SIMT emulator).
#include "core/cuda_device.h"
#include "kernels/gemm/gemm.h"
#include "tests/train/run_fixture.h"

namespace {

/// Of products that cuBLASLt has kernels in TF32 for.
RunConfig small_run(bool allow_tf32) {
  Json json = parse_json(R"({"name": "tf32",
    "model": {"vocab_size": 31, "hidden_size": 128, "num_layers": 2,
      "layers": {"att": {"type": "attention", "num_heads": 2, "head_dim": 64, "rope": {"theta": 100.0}},
                 "mlp": {"type": "swiglu", "intermediate_size": 256}},
      "pattern": [{"mixer": "att", "ffn": "mlp"}]},
    "data": {"sources": [{"type": "synthetic", "task": "mqar", "seed": 1, "vocab": 31, "pairs": 3}]},
    "train": {"steps": 3, "batch_size": 4, "sequence_length": 16, "device": "cuda", "precision": "fp32", "log_every": 1},
    "optimizer": {"lr": 0.01}})",
                         "tf32.json");
  json.find("train")->set("allow_tf32", Json(allow_tf32));
  auto config = Fields::read<RunConfig>(json, "");
  resolve(config);
  return config;
}

}  // namespace

TEST_CASE("a stream that allows TF32 leaves every other one as it was") {
  if (cuda::device_count() == 0) {
    WARN("no usable GPU: nothing was tested");
    return;
  }
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

TEST_CASE("allow_tf32 rounds the operands of fp32 products in that run, and only there") {
  if (cuda::device_count() == 0) {
    WARN("no usable GPU: nothing was tested");
    return;
  }
  const TempFolder folder;
  Heard heard;
  REQUIRE(run_in(folder / "exact", small_run(false)) == 0);
  REQUIRE(run_in(folder / "rounded", small_run(true), heard) == 0);
  REQUIRE(run_in(folder / "again", small_run(false)) == 0);
  CHECK(heard.has("TF32 in matrix products"));
  const std::vector<double> exact = metric(folder / "exact", "loss"), rounded = metric(folder / "rounded", "loss");
  REQUIRE(rounded.size() == 3);
  CHECK(rounded != exact);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(std::abs(rounded[i] - exact[i]) < 5e-3);
  }  // 2^-11 an operand, three steps of lr 0.01
  CHECK(metric(folder / "again", "loss") == exact);
}
