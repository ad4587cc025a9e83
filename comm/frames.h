#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/json.h"

namespace hebb {

// The control connection carries frames: u32 little-endian length, one JSON object with the member "kind", and, once
// both ends have a key, a seal of 32 bytes over a count of frames and that text.
constexpr size_t kLargestFrame = size_t{1} << 24, kLargestHello = size_t{1} << 12;

/// key: empty for a frame without a seal; number: of frames with a seal sent before.
std::string encode_frame(const Json& frame, const std::string& key = "", uint64_t number = 0);

/// Cuts a stream of bytes into frames. What it reads comes from strangers: nothing in it is trusted.
class FrameReader {
 public:
  /// limit: of the JSON text, in bytes.
  explicit FrameReader(size_t limit) : limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }
  /// All frames that follow have a seal with this key.
  void set_key(std::string key) { key_ = std::move(key); }
  void add(std::string_view bytes) { buffer_ += bytes; }
  /// The next complete frame. Errors: CommError for one that is too long, has a wrong seal or is no JSON object with a
  /// kind.
  std::optional<Json> next();

 private:
  size_t limit_;
  std::string buffer_, key_;
  uint64_t number_ = 0;  // frames with a seal read before
};

// Members of frames. Errors: CommError where one is absent or of another type.
const std::string& frame_text(const Json& frame, std::string_view key);
int64_t frame_integer(const Json& frame, std::string_view key);
/// Errors: CommError also for one that is not in [lowest, highest].
int64_t frame_integer(const Json& frame, std::string_view key, int64_t lowest, int64_t highest);
/// The member "code" as the exit code of a process that fails: the general one where it is none from 1 to 255.
int frame_exit_code(const Json& frame);
/// The member "kind".
const std::string& frame_kind(const Json& frame);

}  // namespace hebb
