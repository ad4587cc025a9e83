#pragma once
// A model whose configuration and random weights lie in files, as `hebb eval` reads them.
#include <functional>

#include "core/safetensors.h"
#include "layers/model.h"
#include "tests/temp_folder.h"

namespace hebb::testing {

/// Writes FOLDER/model.json and FOLDER/w.safetensors in `dtype`, f32 or f64; `change` may replace what a parameter
/// begins with.
inline void write_random_model(const TempFolder& folder, const std::string& json, DType dtype,
                               const std::function<void(Param&)>& change = {}) {
  folder.write("model.json", json);
  ModelConfig config;
  Fields::read(parse_json(json, "model.json"), "model", config);
  Stream stream;
  Arena arena(DeviceKind::cpu);
  Model model(config);
  model.params().allocate(arena, dtype, false);
  model.params().initialize(stream, 3);
  std::vector<NamedTensor> tensors;
  for (const auto& p : model.params().all()) {
    if (change) { change(*p); }
    tensors.push_back({p->name(), p->value});
  }
  write_safetensors(folder / "w.safetensors", tensors);
}

}  // namespace hebb::testing
