#pragma once
// What the libFuzzer program for weights with an index runs.
#include "core/weight_source.h"
#include "tests/fuzz/folder.h"

namespace hebb::fuzz {

inline bool weights(std::string_view input) {
  const Folder folder(input, {"model.safetensors.index.json", "a.safetensors", "b.safetensors"});
  return is_read([&] {
    const WeightSource source(folder.path());
    for (const std::string& name : source.names()) {
      expect(source.find(name) != nullptr, "a tensor of the index is there");
      is_read([&] { source.doubles(name); });
    }
  });
}

}  // namespace hebb::fuzz
