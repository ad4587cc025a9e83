#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"

namespace hebb {

/// Weights by name from a .safetensors file, a "NAME.safetensors.index.json" with its shards, or a
/// folder that holds model.safetensors or model.safetensors.index.json (docs/formats/safetensors.md).
/// Errors: CheckpointError; the index and its shards must name the same tensors.
class WeightSource {
 public:
  explicit WeightSource(const fs::path& path);

  /// Null when there is no such tensor.
  const SafetensorsFile* file_of(std::string_view name) const;
  const SafetensorsFile::Entry* find(std::string_view name) const;
  /// As those of SafetensorsFile; an absent tensor is an error that names the nearest one.
  std::vector<double> doubles(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;
  std::vector<std::string> names() const;  // in byte order
  const fs::path& path() const { return path_; }

 private:
  void open_index(const fs::path& path);
  const SafetensorsFile& file_at(std::string_view name) const;

  fs::path path_;  // of the file or index that was opened
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*, std::less<>> by_name_;
};

}  // namespace hebb
