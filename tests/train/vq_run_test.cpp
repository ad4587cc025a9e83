// What a vq run carries from step to step: idle counters, and the codebook that starts late.
#include "tests/paths.h"
#include "tests/train/run_fixture.h"

namespace {

/// Seven steps with a checkpoint after each; the codebook starts in step 4.
RunConfig late_run() {
  RunConfig config = read_run_config((fs::path(test_data_path()) / "golden" / "train-01" / "run.json").string());
  Json json = Fields::write(config.model);
  json.find("layers")->find("x")->set("quantize_after", Json(3));
  config.model = Fields::read<ModelConfig>(json, "model");
  config.train.steps = 7;
  config.train.checkpoint.every = 1;
  config.train.checkpoint.keep = 10;
  resolve(config);
  return config;
}

}  // namespace

FOLDER_TEST("a vq run resumed around the start of its codebook equals one without a break", "[fast]") {
  REQUIRE(run_in(folder / "whole", late_run()) == 0);
  const auto codebook = [&](int64_t step) { return weights_of(folder / "whole", step, "blocks.1.mixer.codebook"); };
  CHECK(codebook(3) == codebook(1));
  CHECK(codebook(4) != codebook(3));
  for (const int64_t step : {2, 3, 4, 5}) {
    INFO("from step " << step);
    const RunOptions options{.resume = checkpoint_in(folder / "whole", step).string()};
    Heard heard;
    const fs::path again = folder / ("from-" + std::to_string(step));
    REQUIRE(run_in(again, late_run(), heard, options) == 0);
    CHECK((tensor_bytes(again, 7) == tensor_bytes(folder / "whole", 7)));
  }
}
