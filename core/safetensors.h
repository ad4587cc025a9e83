#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/device_reader.h"
#include "core/files.h"

namespace hebb {

/// One tensor to write, row-major.
struct NamedTensor {
  std::string name;
  Tensor tensor;
  bool on_device = false;  // else in memory of the host
};

/// Reads a safetensors file through a memory map (docs/formats/safetensors.md): checks header length, JSON,
/// dtypes, shapes (product overflow), offsets (no holes, no overlap, file size) and duplicate names.
/// Every failure is a CheckpointError naming the file, the tensor or the byte offset, what was found
/// and what was expected.
class SafetensorsFile {
 public:
  struct Entry {
    DType dtype;             // u8 where hebb has no such type: dtype_text tells
    std::string dtype_text;  // as written; F16 and other types that hebb does not compute with are listed too
    std::vector<int64_t> shape;
    uint64_t begin, end;  // relative to the data section

    int64_t numel() const;
    std::string shape_text() const;  // "[2, 3]"
  };
  explicit SafetensorsFile(const fs::path& path);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const Entry* find(std::string_view name) const;
  const uint8_t* data(const Entry& e) const { return file_.data() + data_begin_ + e.begin; }
  /// Like find, but an absent tensor is an error that names the nearest one.
  const Entry& at(std::string_view name) const;
  /// Values converted to double (F64, F32, BF16, F16) or int64 (I*, U*, BOOL).
  std::vector<double> doubles(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;
  const fs::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  uint64_t data_begin_ = 0;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes sorted by dtype width (descending) then name, the header padded with spaces to a multiple
/// of 8; fsynced. Not atomic by itself: callers write into a temporary folder or path.
/// Names are unique and not "__metadata__". Returns the CRC-32 of the file. Throws CheckpointError
/// (path, system's reason). `reader` reads tensors on a device; needed where there is one.
uint32_t write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata = {}, DeviceReader* reader = nullptr);

}  // namespace hebb
