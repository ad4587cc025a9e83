#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace hebb {

// The control connection carries frames: u32 little-endian length, then one JSON object with the member "kind".
constexpr size_t kLargestFrame = size_t{1} << 20, kLargestHello = size_t{1} << 16;

std::string encode_frame(const Json& frame);

/// Cuts a stream of bytes into frames. What it reads comes from strangers: nothing in it is trusted.
class FrameReader {
 public:
  /// limit: of the JSON text, in bytes.
  explicit FrameReader(size_t limit) : limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }
  void add(std::string_view bytes) { buffer_ += bytes; }
  /// The next complete frame. Errors: CommError for one that is too long or no JSON object with a kind.
  std::optional<Json> next();

 private:
  size_t limit_;
  std::string buffer_;
};

// Members of frames. Errors: CommError where one is absent or of another type.
const std::string& frame_text(const Json& frame, std::string_view key);
int64_t frame_integer(const Json& frame, std::string_view key);
/// The member "kind".
const std::string& frame_kind(const Json& frame);

}  // namespace hebb
