#pragma once
// Small training runs on the device "cuda".
#include <fmt/format.h>

#include "tests/device/device.h"
#include "tests/train/run_fixture.h"

namespace hebb::testing {

/// A resolved run of 3 steps of a small model in fp32; `changes` is merged over it.
inline RunConfig device_run(const std::string& changes) {
  Json json = parse_json(R"({"name": "small",
    "model": {"vocab_size": 31, "hidden_size": 24, "num_layers": 2,
      "layers": {"att": {"type": "attention", "num_heads": 2, "head_dim": 8, "rope": {"theta": 100.0}},
                 "mlp": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "att", "ffn": "mlp"}]},
    "data": {"sources": [{"type": "synthetic", "task": "mqar", "seed": 1, "vocab": 31, "pairs": 3}]},
    "train": {"steps": 3, "batch_size": 4, "sequence_length": 16, "device": "cuda", "precision": "fp32"},
    "schedule": {"type": "constant"}, "optimizer": {"lr": 0.01}})",
                         "small.json");
  merge_json(json, parse_json(changes, "changes.json"));
  return resolved_run(json);
}

/// For Heard::on_line: a weight turns NaN after step `step`, and after the next one, which is skipped, it is as before.
inline std::function<void(const std::string&)> break_weight(Trainer* const& trainer, int step) {
  return [&trainer, step, whole = std::vector<float>()](const std::string& line) mutable {
    if (trainer == nullptr) { return; }
    Stream stream{DeviceKind::cuda};
    const Tensor value = trainer->params().find("final_norm.weight")->value;
    if (line.starts_with(fmt::format("step {}/", step))) {
      whole.resize(static_cast<size_t>(value.numel()));
      copy_to_host(stream, whole.data(), value);
      std::vector<float> broken = whole;
      broken[3] = std::numeric_limits<float>::quiet_NaN();
      copy_to_device(stream, value, broken.data());
    } else if (line.starts_with(fmt::format("step {} skipped", step + 1))) {
      copy_to_device(stream, value, whole.data());
    }
  };
}

}  // namespace hebb::testing
